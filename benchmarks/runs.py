"""What the benchmark scripts share: reading finished runs, and writing figures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from distmatch.study.comparison.existing import differing, settings


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Where it lies.
        algo: Name of its algorithm.
        seed: Its seed.
        config: Its `config.yaml`, interpolations as they are.
        metrics: Its `metrics.json`.
    """

    folder: Path
    algo: str
    seed: int
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"{self.algo} seed {self.seed}"


def read_run(folder: Path) -> Run:
    """Read a finished run.

    Raises:
        SystemExit: The folder is not that of a finished run.
    """
    missing = [name for name in ("config.yaml", "metrics.json") if not (folder / name).is_file()]
    if missing:
        sys.exit(f"error: {folder} has no {' and no '.join(missing)}: give the folder of a finished run")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return Run(folder, config["choices"]["algo"], int(config["seed"]), config, metrics)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read finished runs and sort them by algorithm and seed; say on stderr where settings differ.

    Raises:
        SystemExit: A folder is not that of a finished run, or two have the same algorithm and seed.
    """
    runs = sorted(map(read_run, folders), key=lambda run: (run.algo, run.seed))
    labels = [run.label for run in runs]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        sys.exit(f"error: more than one run is called {', '.join(twice)}; give one folder for each seed")
    for run in runs[1:]:
        first, other = (settings(OmegaConf.create(dict(one.config))) for one in (runs[0], run))
        for key in differing(first, other):
            if not key.startswith(("algo.", "choices.")):
                print(
                    f"warning: {key} is {first.get(key)!r} in {runs[0].label} and {other.get(key)!r} in "
                    f"{run.label}",
                    file=sys.stderr,
                )
    return runs


def by_algo(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by algorithm, in order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.algo, []).append(run)
    return found


def write_json(file: Path, report: Mapping[str, Any]) -> None:
    """Write a report; figures that do not exist become null."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_without_nan(report), indent=1) + "\n", encoding="utf-8")


def _without_nan(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _without_nan(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_without_nan(value) for value in node]
    return None if isinstance(node, float) and math.isnan(node) else node
