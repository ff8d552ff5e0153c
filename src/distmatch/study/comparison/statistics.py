"""What a comparison says in numbers: ladders in k, bootstrap intervals, paired differences, crossings.

Figures of one policy are means over categories of means over tasks of means over prompts, as in
`metrics.benchmark`. Figures of an arm are means over its seeds.

**Ladders.** From n answers to a prompt, without bias, for every k up to n: pass@k; best@k, the expected best
quality of k answers; distinct@k, the expected number of different feasible solutions among k answers, which
is the hypergeometric rarefaction sum over solutions of 1 - C(n - c, k) / C(n, k), c times seen each
(Hurlbert, Ecology 52, 1971).

**Intervals.** Prompts and seeds are crossed: all seeds answer the same prompts. A resample draws prompts with
replacement inside each task, and seeds with replacement, independently (the two-way or pigeonhole bootstrap;
Owen, Annals of Applied Statistics 1, 2007), and keeps every answer of a drawn pair. All arms and the start
get the same resamples, so that differences are paired by prompt and by seed. Intervals are 2.5 and 97.5
percentiles. With S seeds, the part of the variance that comes from seeds is underestimated by the factor
(S - 1) / S; with one seed an interval says nothing about seeds.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distmatch.metrics.diversity import effective_solutions
from distmatch.metrics.group_score import GroupScore
from distmatch.metrics.pass_at_k import pass_at_k

Array = np.ndarray
LADDERS = ("pass", "best", "distinct")
CONDITIONAL = "quality_feasible"
"""The figure that is about feasible answers only: tasks without any are left out of its mean."""
_TIE = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; nan where it does not exist."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Crossing:
    """Where the model before training becomes the better one.

    Attributes:
        first: The smallest k at which the start's mean is above the arm's; None if there is none up to n.
        clear: The smallest k at which the whole interval of the difference says so; None likewise.
    """

    first: int | None
    clear: int | None


@functools.lru_cache(maxsize=8)
def pass_table(n: int) -> Array:
    """pass@k for c successes among n answers, (n + 1, n): row c, column k - 1."""
    return np.array([[pass_at_k(n, c, k) for k in range(1, n + 1)] for c in range(n + 1)], dtype=float)


def distinct_ladder(solutions: Sequence[str], n: int) -> Array:
    """Expected number of different solutions among k of n answers, (n,) for k = 1 ... n.

    Args:
        solutions: Keys of the feasible answers, with repeats, at most n of them.
        n: All answers, feasible or not.
    """
    counts = list(Counter(solutions).values())
    return pass_table(n)[counts].sum(axis=0)


def best_ladder(qualities: Sequence[float], n: int) -> Array:
    """Expected best quality of k answers, (n,) for k = 1 ... n.

    The best of k reaches a level in as many cases as pass@k counts for the answers that reach it; the sum
    over the steps between sorted levels is the expectation.
    """
    ranked = np.sort(np.asarray(qualities, dtype=float))
    steps = np.diff(ranked, prepend=0.0)  # (n,), step i is reached by n - i answers
    return steps @ pass_table(n)[n - np.arange(n)]


def figure_names(n: int) -> list[str]:
    """Names of all figures, in the order of their columns."""
    ladders = [f"{ladder}@{k}" for ladder in LADDERS for k in range(1, n + 1)]
    return ["success_rate", "quality_ratio", CONDITIONAL, f"effective_solutions@{n}", *ladders]


def contributions(scores: Sequence[GroupScore]) -> tuple[Array, Array]:
    """Numerators and denominators of all figures, two arrays (prompts, figures)."""
    rows, weights = [], []
    for score in scores:
        n, quality = score.n, float(np.sum(score.qualities))
        plain = [score.feasible / n, quality / n, quality, effective_solutions(score.solutions)]
        passed = pass_table(n)[score.feasible]
        rows.append([*plain, *passed, *best_ladder(score.qualities, n), *distinct_ladder(score.solutions, n)])
        weights.append([1.0, 1.0, float(score.feasible)] + [1.0] * (len(rows[-1]) - 3))
    return np.array(rows), np.array(weights)


class Bootstrap:
    """Resamples of prompts (inside tasks) and of seeds, the same for every policy that is asked about.

    Args:
        scores: Any policy's scores: tasks and categories are read from them.
        seeds: Every seed of the comparison.
        resamples: How many.
        seed: Of the resamples.
    """

    def __init__(
        self, scores: Sequence[GroupScore], seeds: Sequence[int], resamples: int, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self._seeds = list(seeds)
        tasks = sorted({(score.category, score.task) for score in scores})
        self._tasks: list[tuple[str, Array, Array]] = []  # category, places of its prompts, their counts
        for category, task in tasks:
            places = np.array([i for i, score in enumerate(scores) if score.task == task])
            counts = _with_itself(rng, len(places), resamples)
            self._tasks.append((category, places, counts))
        self._draws = _with_itself(rng, len(self._seeds), resamples)  # (1 + resamples, seeds)

    def replicates(self, policies: Mapping[int, tuple[Array, Array]] | tuple[Array, Array]) -> Array:
        """All figures of an arm in every resample, (1 + resamples, figures); the first row is the sample.

        Args:
            policies: Contributions by seed, or those of a policy that has no seeds.
        """
        if isinstance(policies, tuple):
            parts, draws = [policies], np.ones((len(self._draws), 1))
        else:
            parts = list(policies.values())
            draws = self._draws[:, [self._seeds.index(seed) for seed in policies]]
        by_category: dict[str, list[Array]] = {}
        for category, places, counts in self._tasks:
            sums = []
            for which in (0, 1):
                stacked = np.stack([part[which][places] for part in parts])  # (S, m, F)
                weighted = np.einsum("rs,rsf->rf", draws, np.matmul(counts, stacked).transpose(1, 0, 2))
                sums.append(weighted)
            by_category.setdefault(category, []).append(_divide(*sums))
        return _mean([_mean(list(members)) for members in by_category.values()])


def _with_itself(rng: np.random.Generator, size: int, resamples: int) -> Array:
    """How often each of `size` things is drawn, (1 + resamples, size); the first row draws each once."""
    drawn = rng.multinomial(size, np.full(size, 1 / size), size=resamples)
    return np.vstack([np.ones(size), drawn])


def _divide(numerator: Array, denominator: Array) -> Array:
    some = denominator > 0
    return np.where(some, numerator / np.where(some, denominator, 1), np.nan)


def _mean(parts: Sequence[Array]) -> Array:
    """Over the parts in which a figure exists; all do, but for the conditional one."""
    stacked = np.stack(parts)
    known = ~np.isnan(stacked)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, stacked, 0).sum(axis=0) / np.maximum(count, 1), np.nan)


def estimate(replicates: Array) -> Estimate:
    """The figure of a column (1 + resamples,) with its interval."""
    known = replicates[1:][~np.isnan(replicates[1:])]
    if not len(known) or np.isnan(replicates[0]):
        return Estimate(float("nan"), float("nan"), float("nan"))
    low, high = np.percentile(known, [2.5, 97.5])
    return Estimate(float(replicates[0]), float(low), float(high))


def crossing(arm: Array, start: Array) -> Crossing:
    """Where the start overtakes the arm.

    Args:
        arm: Replicates of a ladder, (1 + resamples, n).
        start: The same of the start.
    """
    gaps = [estimate(column) for column in (arm - start).T]
    return Crossing(
        next((k for k, gap in enumerate(gaps, start=1) if gap.value < -_TIE), None),
        next((k for k, gap in enumerate(gaps, start=1) if gap.high < -_TIE), None),
    )
