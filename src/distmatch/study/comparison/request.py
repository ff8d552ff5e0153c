"""From the command line of `compare.py` to what is asked: its own settings, and those for `train.py`.

Like `distmatch.settings`, this imports nothing slow: a mistake answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from distmatch.settings.compose import Catalogue, compose, parse
from distmatch.settings.errors import ConfigError, did_you_mean, listing
from distmatch.settings.numbers import Number

GROUP = "compare"
"""The group of ready-made comparisons; on the command line they are called experiments, as elsewhere."""

NUMBERS = (
    Number("jobs", low=1, high=1024),
    Number("eval_samples", low=1, high=10**5),
    Number("eval_prompts", low=1, high=10**7, optional=True),
    Number("eval_seed", low=0, high=2**32 - 1),
    Number("resamples", low=100, high=10**6),
)
SEED = Number("seeds", low=0, high=2**32 - 1)


@dataclass(frozen=True)
class Request:
    """What a user wants to be compared.

    Attributes:
        axes: Values by setting; every combination is a point. `algos` is the axis `algo`.
        variants: Settings by name: one more axis, whose values are lists of overrides.
        runs: Folders of finished runs; empty to train.
        accept: Settings in which existing runs may differ beyond the axes.
        seeds: One cell each at every point.
        baseline: What differences are taken to, or None for the first.
        common: Overrides of `train.py` for all cells.
        name: Of the comparison, or None.
        folder: Where it lies, or None.
        jobs: Cells that are trained at a time.
        eval_samples: n, answers to each held-out prompt.
        eval_prompts: How many prompts; None for `data.eval_prompts`.
        eval_seed: Of the answers.
        resamples: Of the bootstrap.
    """

    axes: Mapping[str, Sequence[object]]
    variants: Mapping[str, Sequence[str]]
    runs: Sequence[Path]
    accept: Sequence[str]
    seeds: Sequence[int]
    baseline: str | None
    common: Sequence[str]
    name: str | None
    folder: Path | None
    jobs: int
    eval_samples: int
    eval_prompts: int | None
    eval_seed: int
    resamples: int


def read_request(catalogue: Catalogue, overrides: Sequence[str]) -> Request:
    """Sort the command line, and check what belongs to the comparison itself.

    Args:
        catalogue: The config tree with `compare` as its main config.
        overrides: The command line without flags.

    Raises:
        ConfigError: A setting cannot work.
    """
    own, further = _sorted(catalogue, overrides)
    given = OmegaConf.to_container(compose(catalogue, own), resolve=True)
    common = [*_list(given, "train", str, "settings of train.py"), *further]
    for number in NUMBERS:
        if not number.accepts(given[number.key]):
            raise ConfigError(f"{number.key}={given[number.key]} must be {number.demand()}")
    _check_texts(given)
    axes = _axes(given)
    variants = _variants(given)
    runs = [Path(text).expanduser() for text in _list(given, "runs", str, "folders of runs")]
    if not (axes or variants or runs):
        raise ConfigError(
            "nothing to compare: give algos=[dmpo,grpo], axes={algo.weight: [1, 2]}, variants, "
            f"runs=[<folder>, ...] or experiment=<name>; there are: {listing(catalogue.options(GROUP))}"
        )
    if runs and (common or variants or given["algos"] is not None):
        raise ConfigError(
            "runs= reads finished runs as they are: leave out algos, variants and settings of train.py "
            f"({' '.join(common) or 'none here'}); axes may name the settings in which the runs differ"
        )
    for place, run in enumerate(runs):
        if run in runs[:place]:
            raise ConfigError(f"runs: {run} is named twice; name each run once")
    _check_common(common, [*axes])
    return Request(
        axes=axes,
        variants=variants,
        runs=runs,
        accept=_list(given, "accept", str, "settings"),
        seeds=_seeds(given),
        baseline=given["baseline"],
        common=common,
        name=given["name"],
        folder=Path(given["folder"]).expanduser() if given["folder"] else None,
        **{number.key: given[number.key] for number in NUMBERS},
    )


def _sorted(catalogue: Catalogue, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of the comparison itself, and those of all cells."""
    keys = {str(key) for key in catalogue.main() if key != "defaults"}
    own: list[str] = []
    common: list[str] = []
    for text in overrides:
        override = parse(text)
        key = override.key_or_group
        first = key.partition(".")[0]
        if key == "experiment" and override.value() in catalogue.options(GROUP):
            own.append(f"{GROUP}={override.value()}")
        elif first in keys:
            own.append(_forced(text, key) if first in ("axes", "variants") else text)
        else:
            common.append(text)
            _check_known(catalogue, text, first, keys)
            _check_experiment(catalogue, key, override.value() if key == "experiment" else None)
    return own, common


def _forced(text: str, key: str) -> str:
    """An addition by force may bring keys that the YAML does not have, which is what axes are."""
    group, _, setting = key.partition(".")
    value = text.partition("=")[2]
    return f"++{group}={{{setting}: {value}}}" if setting else f"++{text.lstrip('+')}"


def _check_known(catalogue: Catalogue, text: str, first: str, own: set[str]) -> None:
    training = Catalogue(catalogue.folder, "train", catalogue.extra)
    known = {*map(str, training.main()), *training.groups()}
    name = first.partition("@")[0]
    if name not in known:
        hint = did_you_mean(name, [*own, *known], "{}=" + text.partition("=")[2])
        raise ConfigError(f"{text}: {name} is a setting neither of compare.py nor of train.py.{hint}")


def _check_experiment(catalogue: Catalogue, key: str, value: object) -> None:
    of_training = catalogue.options("experiment")
    if key == "experiment" and value is not None and value not in of_training:
        ready = catalogue.options(GROUP)
        hint = did_you_mean(str(value), [*ready, *of_training], "experiment={}")
        raise ConfigError(
            f"experiment={value}: there is no such comparison ({listing(ready)}) and no such experiment "
            f"of train.py ({listing(of_training)}).{hint}"
        )


def _check_texts(given: Mapping[str, object]) -> None:
    for key in ("baseline", "name", "folder"):
        value = given[key]
        if value is not None and not isinstance(value, str | int | float):
            raise ConfigError(f"{key}={value} must be one word")


def _list(given: Mapping[str, object], key: str, kind: type, what: str) -> list:
    value = given[key]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise ConfigError(f"{key}={value} must be a list of {what}, as in {key}=[first,second]")
    return value


def _seeds(given: Mapping[str, object]) -> list[int]:
    value = given["seeds"]
    if not isinstance(value, list) or not value or not all(SEED.accepts(seed) for seed in value):
        raise ConfigError(f"seeds={value} must be a list of one or more whole numbers, as in seeds=[0,1,2]")
    if len(set(value)) < len(value):
        raise ConfigError(f"seeds={value} names a seed twice")
    return value


def _axes(given: Mapping[str, object]) -> dict[str, list[object]]:
    axes = given["axes"] or {}
    if not isinstance(axes, dict):
        raise ConfigError(
            f"axes={axes} must be lists of values by setting, as in axes={{algo.weight: [1, 2]}}"
        )
    if given["algos"] is not None:
        if "algo" in axes:
            raise ConfigError("algos is short for the axis algo: give one of them")
        axes = {"algo": given["algos"], **axes}
    reading = given["runs"] is not None
    for key, values in axes.items():
        shown = "algos" if key == "algo" and given["algos"] is not None else f"axes.{key}"
        if not isinstance(values, list) or (not values and not reading):
            raise ConfigError(f"{shown}={values} must be a list of one or more values")
        if len({str(value) for value in values}) < len(values):
            raise ConfigError(f"{shown}={values} names a value twice")
    return {str(key): values for key, values in axes.items()}


def _variants(given: Mapping[str, object]) -> dict[str, list[str]]:
    variants = given["variants"] or {}
    lists = variants.values() if isinstance(variants, dict) else [None]
    if not all(isinstance(v, list) and all(isinstance(text, str) for text in v) for v in lists):
        raise ConfigError(
            f"variants={variants} must be lists of settings by name, as in variants={{a: ['algo=dmpo']}}"
        )
    return {str(name): list(texts) for name, texts in variants.items()}


def _check_common(common: Sequence[str], axes: Sequence[str]) -> None:
    """A comparison sets some settings itself."""
    instead = {
        "seed": "give seeds=[...]",
        "resume": "the same command goes on with what is there",
        "paths.run_dir": "give folder=<folder of the comparison>",
        "stage": "cells are whole runs; they make their own preparing stages",
    }
    instead |= {key: f"it is an axis of the comparison ({key})" for key in axes}
    for text in common:
        key = parse(text).key_or_group
        if key in instead:
            raise ConfigError(f"{text} cannot be set for all cells: {instead[key]}")
