"""The plan of a comparison: its arms, and one cell (a run of `train.py`) for every arm and seed.

All cells are composed and checked here, before the first one starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from distmatch.settings.checks import check
from distmatch.settings.compose import Catalogue, compose, parse
from distmatch.settings.errors import ConfigError, did_you_mean
from distmatch.settings.folder import safe_name
from distmatch.study.comparison.request import Request

BUDGET = ("data.prompts_per_iteration", "data.group_size", "trainer.max_epochs")
"""Their product is the number of answers that a run learns from."""

SAME_QUESTIONS = ("task", "data.eval_split", "data.eval_prompts", "data.max_prompt_tokens")
"""What must be equal for figures to be paired by prompt."""


@dataclass(frozen=True)
class Arm:
    """One point of the axes.

    Attributes:
        label: Its name in tables and pictures, such as `dmpo` or `weight=2, temperature=0.1`.
        overrides: What sets it apart.
        values: Its value on every axis, by setting.
    """

    label: str
    overrides: tuple[str, ...]
    values: Mapping[str, object]

    @property
    def name(self) -> str:
        """The label as part of a file name."""
        return safe_name(self.label.replace(", ", "-").replace("=", "-"))


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Attributes:
        arm: Label of its arm.
        name: Name of its folder in the comparison.
        seed: Its seed.
        run: The run's folder.
        evaluation: Where the final evaluation's records go.
        overrides: Its command line.
        cfg: Its composed config.
    """

    arm: str
    name: str
    seed: int
    run: Path
    evaluation: Path
    overrides: tuple[str, ...]
    cfg: DictConfig


@dataclass(frozen=True)
class Plan:
    """A checked comparison.

    Attributes:
        request: What was asked.
        name: Of the comparison.
        folder: Where everything goes.
        arms: In the order of tables.
        cells: Seed by seed, so that a comparison that is stopped has whole seeds.
        baseline: Label of the arm that differences are taken to.
        notes: Differences beyond the axes that the report must name.
    """

    request: Request
    name: str
    folder: Path
    arms: tuple[Arm, ...]
    cells: tuple[Cell, ...]
    baseline: str
    notes: tuple[str, ...] = ()


def make_plan(request: Request, catalogue: Catalogue) -> Plan:
    """Compose and check every cell.

    Args:
        request: What is asked.
        catalogue: The config tree with `train` as its main config.

    Raises:
        ConfigError: A cell cannot run, the arms are not asked the same, or the baseline is none of them.
    """
    arms = tuple(make_arms(request.axes, request.variants))
    baseline = find_baseline(request.baseline, arms)
    configs = {arm.label: _composed(request, catalogue, arm) for arm in arms}
    notes = check_comparable(configs)
    first = configs[arms[0].label]
    name = safe_name(str(request.name)) if request.name else _name(arms, first)
    folder = request.folder or Path(first.paths.log_dir) / "compare" / name
    cells = [
        _cell(request, folder, arm, seed, configs[arm.label])
        for seed, arm in itertools.product(request.seeds, arms)
    ]
    return Plan(request, name, folder, arms, tuple(cells), baseline, notes)


def make_arms(
    axes: Mapping[str, Sequence[object]], variants: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Arm]:
    """Every combination of values, the last axis varying fastest.

    Raises:
        ConfigError: Two of them would have one name.
    """
    keys = list(axes)
    names = {key: key.rpartition(".")[2].lstrip("+") for key in keys}
    if len(set(names.values())) < len(keys):
        names = {key: key for key in keys}
    choices = [list((variants or {}).items()) or [("", [])], *([(key, v) for v in axes[key]] for key in keys)]
    taken: set[str] = set()
    for (variant, overrides), *point in itertools.product(*choices):
        words = [variant] if variant else []
        words += [_word(names[key], value) for key, value in point]
        arm = Arm(
            ", ".join(words),
            (*overrides, *(f"{key}={literal(value)}" for key, value in point)),
            {**({"variant": variant} if variant else {}), **dict(point)},
        )
        if arm.name in taken:
            raise ConfigError(f"two points of the axes would be called {arm.label!r}: name them by variants")
        taken.add(arm.name)
        yield arm


def _word(name: str, value: object) -> str:
    """Options of groups stand for themselves; other values need their setting's name."""
    if isinstance(value, str) and name == "algo":
        return value
    return f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


def literal(value: object) -> str:
    """A value in the grammar of the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(literal, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return value if _stays_a_word(value) else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)


def _stays_a_word(text: str) -> bool:
    try:
        override = parse(f"key={text}")
    except ConfigError:
        return False
    return not override.is_sweep_override() and override.value() == text


def find_baseline(given: str | None, arms: Sequence[Arm]) -> str:
    """The label that `baseline` names, by itself or as in file names.

    Raises:
        ConfigError: It is none of the arms.
    """
    if given is None:
        return arms[0].label
    names = {name: arm.label for arm in arms for name in (arm.name, arm.label)}
    if str(given) not in names:
        hint = did_you_mean(str(given), [arm.name for arm in arms], "baseline={}")
        known = ", ".join(arm.name for arm in arms)
        raise ConfigError(f"baseline={given} is not among what is compared: {known}.{hint}")
    return names[str(given)]


def _composed(request: Request, catalogue: Catalogue, arm: Arm) -> DictConfig:
    try:
        cfg = compose(catalogue, [*request.common, *arm.overrides])
        check(cfg)
    except ConfigError as error:
        raise ConfigError(f"{arm.label}: {error}") from error
    if OmegaConf.select(cfg, "callbacks.export") is None:
        raise ConfigError("callbacks.export=null: a comparison evaluates the exported policies; leave it in")
    trained_model(cfg, Path("export"))
    return cfg


def trained_model(cfg: DictConfig, export: Path) -> DictConfig:
    """The `model` node that loads what a run has exported.

    Raises:
        ConfigError: The node has no place for a folder.
    """
    node = cfg.model.copy()
    keys = [key for key in ("weights", "path") if key in node]
    if not keys:
        raise ConfigError(
            f"model: {node._target_} has neither `weights` nor `path`, so it cannot load what was exported"
        )
    node[keys[0]] = export.as_posix()
    for key in ("lora", "gguf_file", "revision"):  # an export has its adapter merged and is a plain folder
        if key in node:
            node[key] = None
    return node


def check_comparable(configs: Mapping[str, DictConfig]) -> tuple[str, ...]:
    """Refuse arms that are not asked the same; name those that learn from more answers.

    Returns:
        What the report must name.

    Raises:
        ConfigError: Tasks, held-out prompts or limits of prompts differ.
    """
    first, *others = configs
    notes = []
    for label in others:
        for key in SAME_QUESTIONS:
            one, other = (OmegaConf.select(configs[name], key) for name in (first, label))
            if one != other:
                raise ConfigError(
                    f"{key} differs between {first} and {label}: a comparison needs the same prompts for all"
                )
        budgets = [[OmegaConf.select(configs[name], key) for key in BUDGET] for name in (first, label)]
        if budgets[0] != budgets[1]:
            texts = [" × ".join(map(str, budget)) for budget in budgets]
            notes.append(
                f"the rollout budget (prompts × group size × iterations) is {texts[0]} for {first} and "
                f"{texts[1]} for {label}"
            )
    return tuple(notes)


def _name(arms: Sequence[Arm], cfg: DictConfig) -> str:
    keys = list(arms[0].values)
    if keys == ["algo"]:
        return safe_name("-".join([*(arm.label for arm in arms), str(cfg.choices.task)]))
    return safe_name("-x-".join(keys) + f"-{cfg.choices.task}")


def _cell(request: Request, folder: Path, arm: Arm, seed: int, composed: DictConfig) -> Cell:
    name = f"{arm.name}-seed{seed}"
    run = folder / "cells" / name
    cfg = composed.copy()
    with open_dict(cfg):
        cfg.seed = seed
        cfg.paths.run_dir = run.as_posix()
    overrides = (*request.common, *arm.overrides, f"seed={seed}", f"paths.run_dir={literal(run.as_posix())}")
    return Cell(arm.label, name, seed, run, run / "evaluation.jsonl", overrides, cfg)
