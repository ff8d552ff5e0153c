"""What the benchmark scripts share: reading a finished run's folder, and tables."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

COMPARABLE = ("task", "reward", "model", "sampler", "data", "module", "trainer")
"""Sections of a config that runs must share before their figures say something about algorithms."""


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
        for key, (first, other) in differences(runs[0], run).items():
            print(
                f"warning: {key} is {first!r} in {runs[0].label} and {other!r} in {run.label}",
                file=sys.stderr,
            )
    return runs


def differences(one: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Settings other than algorithm, seed and places that two runs do not share, by their full keys."""
    left, right = ({key: run.config.get(key) for key in COMPARABLE} for run in (one, other))
    flat_left, flat_right = _flat(left), _flat(right)
    keys = [key for key in {**flat_left, **flat_right} if flat_left.get(key) != flat_right.get(key)]
    return {key: (flat_left.get(key), flat_right.get(key)) for key in keys}


def by_algo(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by algorithm, in order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.algo, []).append(run)
    return found


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float, digits: int = 3) -> str:
    """A rounded number with a true minus sign; a dash for what does not exist."""
    if math.isnan(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def write_json(file: Path, report: Mapping[str, Any]) -> None:
    """Write a report; figures that do not exist become null."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_without_nan(report), indent=1) + "\n", encoding="utf-8")


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {prefix: node}
    parts = [_flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in node.items()]
    return {key: value for part in parts for key, value in part.items()}


def _without_nan(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _without_nan(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_without_nan(value) for value in node]
    return None if isinstance(node, float) and math.isnan(node) else node
