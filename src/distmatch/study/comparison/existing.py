"""Finished runs as the cells of a comparison: what sets them apart, and what must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from distmatch.settings.errors import ConfigError, listing
from distmatch.settings.folder import CHANGEABLE_ON_RESUME, CONFIG_FILE, load, safe_name
from distmatch.study.comparison.plan import Arm, Cell, Plan, check_comparable, find_baseline, trained_model
from distmatch.study.comparison.request import Request

COMPARED = ("task", "reward", "model", "sampler", "data", "module", "trainer", "algo")
"""Sections of a config that decide what a run learns."""

HARMLESS = ("data.eval_samples", *(key for key in CHANGEABLE_ON_RESUME if key != "trainer.max_epochs"))
"""Of these, what does not: evaluations during training, and where and in what portions one computes."""
NEEDED = (CONFIG_FILE, "metrics.json", "metrics.csv", "export/config.json")


def read_plan(request: Request) -> Plan:
    """The plan of a comparison whose runs exist.

    Raises:
        ConfigError: A folder is not that of a finished run, two are the same cell, or runs differ in a
            setting that is neither an axis nor accepted.
    """
    configs = {folder: read_config(folder) for folder in request.runs}
    axes = tuple(request.axes) or ("algo",)
    notes = _refuse_differences(configs, axes, request.accept)
    labels = _labels(configs, axes)
    arms = {label: Arm(label, (), dict(point)) for label, point in labels.values()}
    name = safe_name(str(request.name or "-".join(arm.name for arm in arms.values())))
    folder = request.folder or Path("logs") / "compare" / name
    cells: dict[str, Cell] = {}
    for run, (label, _) in labels.items():
        seed = int(configs[run].seed)
        cell_name = f"{arms[label].name}-seed{seed}"
        if cell_name in cells:
            raise ConfigError(f"runs: {cells[cell_name].run} and {run} are both {label} with seed {seed}")
        evaluation = folder / "cells" / cell_name / "evaluation.jsonl"
        cells[cell_name] = Cell(label, cell_name, seed, run, evaluation, (), configs[run])
    first_of = {cell.arm: cell.cfg for cell in reversed(cells.values())}
    ordered = tuple(arms.values())
    notes = (*notes, *check_comparable({arm.label: first_of[arm.label] for arm in ordered}))
    baseline = find_baseline(request.baseline, ordered)
    return Plan(request, name, folder, ordered, tuple(cells.values()), baseline, notes)


def read_config(folder: Path) -> DictConfig:
    """The config of a finished run, with `paths.run_dir` where the folder lies now.

    Raises:
        ConfigError: The folder is not that of a finished run.
    """
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"runs: {folder} has no {listing(missing)}: give the folder of a finished run")
    cfg = load(folder / CONFIG_FILE)
    cfg.paths.run_dir = folder.as_posix()
    trained_model(cfg, folder / "export")
    return cfg


def settings(cfg: DictConfig) -> dict[str, Any]:
    """What decides a run, by full key; interpolations as they are, so that places do not count."""
    plain = OmegaConf.to_container(cfg, resolve=False)
    flat = flatten({key: plain.get(key) for key in COMPARED})  # type: ignore[union-attr]
    flat["choices.algo"] = OmegaConf.select(cfg, "choices.algo")
    return {key: value for key, value in flat.items() if key not in HARMLESS}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Keys whose values differ, or that only one has."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted path; lists are leaves."""
    if not isinstance(node, Mapping) or not node:
        return {prefix: node}
    parts = [flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in node.items()]
    return {key: value for part in parts for key, value in part.items()}


def _belongs(key: str, parents: Sequence[str]) -> bool:
    return any(key == p or key.startswith(f"{p}.") or key == f"choices.{p}" for p in parents)


def _refuse_differences(
    configs: Mapping[Path, DictConfig], axes: Sequence[str], accept: Sequence[str]
) -> tuple[str, ...]:
    first, *others = configs
    notes = {}
    for run in others:
        one, other = settings(configs[first]), settings(configs[run])
        for key in differing(one, other):
            if _belongs(key, axes):
                continue
            text = f"{key} is {one.get(key)} in {first} and {other.get(key)} in {run}"
            notes.setdefault(key, text)
    refused = [key for key in notes if not _belongs(key, accept)]
    if refused:
        shown, more = "; ".join(notes[key] for key in refused[:4]), len(refused) - 4
        raise ConfigError(
            f"runs: {shown}{f'; and {more} more settings' if more > 0 else ''}. Runs must differ in "
            f"{listing(axes)} only. If that is what you compare, name it: axes={{{refused[0]}: []}}; if they "
            f"may differ: accept=[{','.join(_shortest(refused))}]"
        )
    return tuple(notes.values())


def _shortest(keys: Sequence[str]) -> list[str]:
    """Names that cover all keys: a group's where several of its settings are among them."""
    groups = Counter(key.partition(".")[0] for key in keys)
    names = (key if groups[key.partition(".")[0]] == 1 else key.partition(".")[0] for key in keys)
    return list(dict.fromkeys(names))


def _labels(
    configs: Mapping[Path, DictConfig], axes: Sequence[str]
) -> dict[Path, tuple[str, Mapping[str, object]]]:
    """Label and values of every run: the algorithm where it is an axis, and each setting that varies."""
    flat = {run: settings(cfg) for run, cfg in configs.items()}
    found = {}
    for run, own in flat.items():
        point: dict[str, object] = {}
        if "algo" in axes:
            point["algo"] = own["choices.algo"]
        peers = [other for other in flat.values() if other["choices.algo"] == own["choices.algo"]]
        for key in own:
            varies = any(other.get(key) != own[key] for other in peers)
            if varies and _belongs(key, axes):
                point[key] = own[key]
        words = [str(value) if key == "algo" else _setting(key, value) for key, value in point.items()]
        found[run] = (", ".join(words) or str(own["choices.algo"]), point)
    return found


def _setting(key: str, value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{key.rpartition('.')[2]}={text}"
