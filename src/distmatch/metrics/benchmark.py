"""All held-out figures of a benchmark at once: per task, per category and overall, with intervals.

Keys of `compute()`, for n answers to a prompt and k in 1, 2, 4, ... up to and including n:

    success_rate  quality_ratio  quality_feasible  pass@<k>  best@<k>  mean@<n>
    distinct_solutions  effective_solutions  duplicates_rate

    <key>                the benchmark: unweighted mean of its categories, as in arXiv 2605.19461
    category_<c>/<key>   a category: unweighted mean of its tasks
    <task>/<key>         a task
    <key>_low, _high     95 % bootstrap interval of the benchmark's figure, over prompts, tasks as strata

A key is absent where its figure does not exist: pass@k, best@k and mean@n if some prompt of the scope has
fewer answers; `quality_feasible` and `duplicates_rate` if no answer of the scope is feasible (a category
without any is left out of the benchmark's mean of these two). Tasks without prompts are left out. Intervals
say how other prompts would move the figures, not other training seeds; a task with one prompt contributes no
width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from distmatch.metrics.diversity import (
    _distinct_solutions_update,
    _duplicates_rate_update,
    _effective_solutions_update,
)
from distmatch.metrics.group_score import GroupScore, Ratio
from distmatch.metrics.pass_at_k import _best_at_k_update, _pass_at_k_update
from distmatch.metrics.quality_ratio import _quality_feasible_update, _quality_ratio_update
from distmatch.metrics.success_rate import _mean_at_n_update, _success_rate_update

Array = np.ndarray
CONDITIONAL = ("quality_feasible", "duplicates_rate")
"""Figures about feasible answers only: where there are none, the scope is left out of means."""


def ladder(n: int) -> list[int]:
    """1, 2, 4, ... and n."""
    return [2**i for i in range(n.bit_length()) if 2**i < n] + [n]


class BenchmarkMetrics(Metric):
    """Collects `GroupScore`s and computes every figure of a benchmark. Two ranks give what one gives.

    Args:
        tasks: Category of each task by the task's name: all that may come. The order is the order of keys.
        num_samples: n, answers to each prompt; some prompts may have fewer.
        resamples: Bootstrap resamples; 0 for no intervals.
        seed: Of the bootstrap, so that equal data have equal intervals.

    Raises:
        ValueError: No tasks, or `num_samples` below 1.
    """

    full_state_update = False
    rows: list[Tensor]

    def __init__(
        self, tasks: Mapping[str, str], num_samples: int, resamples: int = 1000, seed: int = 0
    ) -> None:
        super().__init__()
        if not tasks or num_samples < 1:
            raise ValueError(
                f"BenchmarkMetrics needs tasks and num_samples >= 1, got {dict(tasks)}, {num_samples}"
            )
        self.tasks = dict(tasks)
        self.num_samples = num_samples
        self._resamples, self._seed = resamples, seed
        self._figures = _figures(num_samples)
        # Flat, so that the empty state of a rank without prompts fits the others' when they are gathered.
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, *scores: GroupScore) -> None:
        """Add prompts.

        Raises:
            ValueError: A task that was not announced, or under another category, or more than n answers.
        """
        codes = {task: code for code, task in enumerate(self.tasks)}
        for score in scores:
            if self.tasks.get(score.task) != score.category:
                raise ValueError(
                    f"task {score.task!r} in category {score.category!r} is not among the tasks {self.tasks}"
                )
            if score.n > self.num_samples:
                raise ValueError(f"{score.task}: {score.n} answers, more than num_samples={self.num_samples}")
            figures = [number for figure in self._figures.values() for number in figure(score)]
            self.rows.append(
                torch.tensor([codes[score.task], *figures], dtype=torch.float32, device=self.device)
            )

    def compute(self) -> dict[str, Tensor]:
        """Name to scalar, as listed at the top of this module; empty if no prompt came."""
        codes, ratios = self._table()
        if not len(codes):
            return {}
        present = [code for code in range(len(self.tasks)) if (codes == code).any()]
        tasks = {code: _ratio(ratios[codes == code].sum(axis=0)) for code in present}
        values = self._named("", self._over_categories(tasks))
        for category, members in self._categories(present).items():
            values |= self._named(f"category_{category}/", self._mean([tasks[code] for code in members]))
        for code in present:
            values |= self._named(f"{list(self.tasks)[code]}/", tasks[code])
        return {
            name: torch.tensor(value) for name, value in (values | self._intervals(codes, ratios)).items()
        }

    def _table(self) -> tuple[Array, Array]:
        """Task codes (M,), numerators and denominators (M, 2, figures) of all prompts, sorted.

        The order of prompts depends on the number of ranks, and resampling must not.
        """
        width = 1 + 2 * len(self._figures)
        flat = dim_zero_cat(self.rows) if len(self.rows) else torch.zeros(0)
        table = flat.double().cpu().numpy().reshape(-1, width)
        table = table[np.lexsort(table.T[::-1])]
        ratios = table[:, 1:].reshape(len(table), len(self._figures), 2).transpose(0, 2, 1)
        return table[:, 0].astype(int), ratios

    def _intervals(self, codes: Array, ratios: Array) -> dict[str, float]:
        if not self._resamples:
            return {}
        rng = np.random.default_rng(self._seed)
        tasks = {}
        for code in np.unique(codes):
            prompts = ratios[codes == code]  # (m, 2, figures)
            weights = rng.multinomial(
                len(prompts), np.full(len(prompts), 1 / len(prompts)), size=self._resamples
            )
            sums = np.tensordot(weights.astype(float), prompts, axes=1)  # (resamples, 2, figures)
            tasks[int(code)] = _ratio(sums)
        overall = self._over_categories(tasks)
        values: dict[str, float] = {}
        for end, percent in (("_low", 2.5), ("_high", 97.5)):
            bounds = [_percentile(column, percent) for column in overall.T]
            values |= {f"{name}{end}": value for name, value in self._named("", np.array(bounds)).items()}
        return values

    def _categories(self, present: list[int]) -> dict[str, list[int]]:
        """Codes of the tasks that have prompts, by category."""
        found: dict[str, list[int]] = {}
        for code, category in enumerate(self.tasks.values()):
            if code in present:
                found.setdefault(category, []).append(code)
        return found

    def _over_categories(self, tasks: Mapping[int, Array]) -> Array:
        members = self._categories(list(tasks)).values()
        return self._mean([self._mean([tasks[code] for code in codes]) for codes in members])

    def _mean(self, parts: list[Array]) -> Array:
        """Unweighted mean of (..., figures): nan spreads, but is skipped in conditional figures."""
        stacked = np.stack(parts)
        known = ~np.isnan(stacked)
        skipping = np.where(known, stacked, 0).sum(axis=0) / np.where(
            known.any(axis=0), known.sum(axis=0), np.nan
        )
        conditional = np.array([name in CONDITIONAL for name in self._figures])
        return np.where(conditional, skipping, stacked.mean(axis=0))

    def _named(self, prefix: str, figures: Array) -> dict[str, float]:
        named = zip(self._figures, figures, strict=True)
        return {f"{prefix}{name}": float(value) for name, value in named if not np.isnan(value)}


def _figures(n: int) -> dict[str, Callable[[GroupScore], Ratio]]:
    """What each prompt contributes to each figure, by name."""
    return {
        "success_rate": _success_rate_update,
        "quality_ratio": _quality_ratio_update,
        "quality_feasible": _quality_feasible_update,
        **{f"pass@{k}": partial(_pass_at_k_update, k=k) for k in ladder(n)},
        **{f"best@{k}": partial(_best_at_k_update, k=k) for k in ladder(n)},
        f"mean@{n}": partial(_mean_at_n_update, n=n),
        "distinct_solutions": _distinct_solutions_update,
        "effective_solutions": _effective_solutions_update,
        "duplicates_rate": _duplicates_rate_update,
    }


def _ratio(sums: Array) -> Array:
    """Numerators over denominators, (..., 2, figures) -> (..., figures); nan where nothing was counted."""
    counted = sums[..., 1, :] > 0
    return np.where(counted, sums[..., 0, :] / np.where(counted, sums[..., 1, :], 1), np.nan)


def _percentile(column: Array, percent: float) -> float:
    """Over the resamples in which the figure exists."""
    known = column[~np.isnan(column)]
    return float(np.percentile(known, percent)) if len(known) else float("nan")
