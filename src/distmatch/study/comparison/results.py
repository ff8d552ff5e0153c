"""A comparison's results: evaluations, curves and costs of all arms, read once for report and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distmatch.callbacks.rollout_log import read_rows
from distmatch.settings.errors import ConfigError
from distmatch.study.comparison.cells import Failure, is_finished
from distmatch.study.comparison.evaluation import Record, evaluate_cell, evaluate_start, start_name
from distmatch.study.comparison.plan import Cell, Plan
from distmatch.study.comparison.statistics import (
    LADDERS,
    Array,
    Bootstrap,
    Crossing,
    Estimate,
    contributions,
    crossing,
    estimate,
    figure_names,
)

CURVES = {
    "rollout/reward": "reward",
    "rollout/success_rate": "success rate",
    "rollout/quality_ratio": "quality ratio",
    "train/entropy": "entropy (nats a token)",
    "rollout/length": "length (tokens)",
    "rollout/distinct_solutions": "distinct solutions of a group",
}


@dataclass(frozen=True)
class ArmResult:
    """One arm, or the start.

    Attributes:
        label: Its name.
        seeds: The seeds that ended well; none for the start.
        replicates: All figures in every resample, (1 + resamples, figures).
        per_seed: All figures of each seed, (figures,).
        differences: Replicates of arm minus baseline on the seeds that both have; None without any.
        crossings: By ladder, against the start of this arm; empty for a start.
        curves: By column of metrics.csv, (seeds, iterations); nan where a run has no value.
        costs: Means over seeds of `metrics.json`: tokens, seconds, answers trained on, peak memory.
        start: Label of the start that it is compared with; its own label for a start.
    """

    label: str
    seeds: tuple[int, ...]
    replicates: Array
    per_seed: Mapping[int, Array]
    differences: Array | None
    crossings: Mapping[str, Crossing]
    curves: Mapping[str, Array]
    costs: Mapping[str, float]
    start: str


@dataclass(frozen=True)
class Results:
    """All of a comparison.

    Attributes:
        plan: What was compared.
        starts: Policies before training, mostly one.
        arms: In the order of the plan; arms without a finished cell are left out.
        n: Answers to each prompt.
        prompts: How many prompts.
        failures: Cells that did not end well.
    """

    plan: Plan
    starts: tuple[ArmResult, ...]
    arms: tuple[ArmResult, ...]
    n: int
    prompts: int
    failures: tuple[Failure, ...]

    def column(self, figure: str) -> int:
        """Place of a figure in the replicates."""
        return figure_names(self.n).index(figure)

    def ladder(self, name: str) -> slice:
        """Places of a ladder, k = 1 ... n."""
        first = self.column(f"{name}@1")
        return slice(first, first + self.n)

    def figure(self, arm: ArmResult, name: str) -> Estimate:
        """A figure with its interval."""
        return estimate(arm.replicates[:, self.column(name)])

    def difference(self, arm: ArmResult, name: str) -> Estimate | None:
        """The paired difference to the baseline; None for that, for starts, and without common seeds."""
        if arm.differences is None:
            return None
        return estimate(arm.differences[:, self.column(name)])

    def seed_differences(self, arm: ArmResult, seed: int) -> Array | None:
        """All figures of a seed minus those of the baseline's run of that seed, if there is another one."""
        base = next((other for other in self.arms if other.label == self.plan.baseline), arm)
        if base is arm or seed not in base.per_seed:
            return None
        return arm.per_seed[seed] - base.per_seed[seed]


def collect(plan: Plan, failures: Sequence[Failure]) -> Results:
    """Evaluate what is not evaluated yet, and compute everything.

    Raises:
        ConfigError: No cell is finished, or the policies were not asked the same.
    """
    cells = [cell for cell in plan.cells if is_finished(cell)]
    if not cells:
        raise ConfigError("no cell of this comparison has ended well, so there is nothing to compare")
    starts = {start_name(cell.cfg, plan.request): cell.cfg for cell in cells}
    names = {key: "start" if len(starts) == 1 else key for key in starts}
    before = {
        key: evaluate_start(cfg, plan.folder / names[key] / "evaluation.jsonl", plan.request)
        for key, cfg in starts.items()
    }
    after = {cell.name: evaluate_cell(cell, plan.request) for cell in cells}
    first = next(iter(before.values()))
    check_same_questions(first, {**before, **after})
    bootstrap = Bootstrap(
        [record.score() for record in first],
        sorted({cell.seed for cell in plan.cells}),
        plan.request.resamples,
    )
    begun = {key: _start(names[key], records, bootstrap) for key, records in before.items()}
    tables = {name: _contributions(records) for name, records in after.items()}
    arms = []
    for arm in plan.arms:
        own = [cell for cell in cells if cell.arm == arm.label]
        base = [cell for cell in cells if cell.arm == plan.baseline]
        if own:
            start = begun[start_name(own[0].cfg, plan.request)]
            arms.append(_arm(own, base, tables, bootstrap, start, plan))
    return Results(
        plan, tuple(begun.values()), tuple(arms), plan.request.eval_samples, len(first), tuple(failures)
    )


def check_same_questions(reference: Sequence[Record], others: Mapping[str, Sequence[Record]]) -> None:
    """Figures are paired by prompt.

    Raises:
        ConfigError: Two evaluations have other prompts.
    """
    asked = [record.instance for record in reference]
    for name, records in others.items():
        if [record.instance for record in records] != asked:
            raise ConfigError(
                f"{name} was asked other prompts than the rest: delete its evaluation and repeat"
            )


def _contributions(records: Sequence[Record]) -> tuple[Array, Array]:
    return contributions([record.score() for record in records])


def _start(label: str, records: Sequence[Record], bootstrap: Bootstrap) -> ArmResult:
    replicates = bootstrap.replicates(_contributions(records))
    return ArmResult(label, (), replicates, {}, None, {}, {}, {}, label)


def _arm(
    own: Sequence[Cell],
    base: Sequence[Cell],
    tables: Mapping[str, tuple[Array, Array]],
    bootstrap: Bootstrap,
    start: ArmResult,
    plan: Plan,
) -> ArmResult:
    mine = {cell.seed: tables[cell.name] for cell in own}
    theirs = {cell.seed: tables[cell.name] for cell in base}
    replicates = bootstrap.replicates(mine)
    names = figure_names(plan.request.eval_samples)
    crossings = {}
    for ladder in LADDERS:
        columns = [i for i, name in enumerate(names) if name.startswith(f"{ladder}@")]
        crossings[ladder] = crossing(replicates[:, columns], start.replicates[:, columns])
    return ArmResult(
        own[0].arm,
        tuple(mine),
        replicates,
        {seed: bootstrap.replicates(table)[0] for seed, table in mine.items()},
        None if own[0].arm == plan.baseline else _paired(mine, theirs, bootstrap),
        crossings,
        read_curves([cell.run for cell in own]),
        read_costs(own),
        start.label,
    )


def _paired(
    mine: Mapping[int, tuple[Array, Array]], theirs: Mapping[int, tuple[Array, Array]], bootstrap: Bootstrap
) -> Array | None:
    common = [seed for seed in mine if seed in theirs]
    if not common:
        return None
    one, other = ({seed: table[seed] for seed in common} for table in (mine, theirs))
    return bootstrap.replicates(one) - bootstrap.replicates(other)


def read_curves(runs: Sequence[Path]) -> dict[str, Array]:
    """Columns of `CURVES` from the metrics.csv of some runs, each (runs, iterations)."""
    tables = [read_rows(run / "metrics.csv") for run in runs]
    length = max(map(len, tables))
    curves = {}
    for column in CURVES:
        values = np.full((len(runs), length), np.nan)
        for place, rows in enumerate(tables):
            for i, row in enumerate(rows):
                values[place, i] = float(row.get(column) or "nan")
        curves[column] = values
    return curves


def read_costs(cells: Sequence[Cell]) -> dict[str, float]:
    """What training took, mean over cells."""
    found = [json.loads((cell.run / "metrics.json").read_text(encoding="utf-8")) for cell in cells]
    data = cells[0].cfg.data
    return {
        "answers": float(
            np.mean([m["run/iterations"] * data.prompts_per_iteration * data.group_size for m in found])
        ),
        "tokens": float(np.mean([m["run/tokens"] for m in found])),
        "training_seconds": float(np.mean([m["run/seconds"] for m in found])),
        "wall_seconds": float(np.mean([m["run/wall_seconds"] for m in found])),
        "peak_memory_bytes": float(np.max([m["run/peak_memory_bytes"] for m in found])),
    }
