"""How many different solutions a policy gives to one prompt: mode collapse, seen directly.

Solutions are compared by their canonical key, so eight rotations of one tour are one solution. Only feasible
answers count. All figures depend on n, the number of answers to a prompt: compare them at equal n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from distmatch.metrics.group_score import GroupScore, Ratio, RatioMetric


def distinct_solutions(keys: Sequence[str]) -> int:
    """Number of different solutions."""
    return len(set(keys))


def effective_solutions(keys: Sequence[str]) -> float:
    """exp(entropy) of the solutions' frequencies: between 1 and the distinct number, 0 without solutions."""
    if not keys:
        return 0.0
    shares = [count / len(keys) for count in Counter(keys).values()]
    return math.exp(-sum(p * math.log(p) for p in shares))


def inverse_simpson(keys: Sequence[str]) -> float:
    """1 / sum of squared frequencies: as `effective_solutions`, less moved by rare ones; 0 without any."""
    counts = Counter(keys).values()
    return len(keys) ** 2 / sum(c * c for c in counts) if keys else 0.0


def _distinct_solutions_update(score: GroupScore) -> Ratio:
    """Distinct solutions of the prompt, out of one prompt."""
    return float(distinct_solutions(score.solutions)), 1.0


def _effective_solutions_update(score: GroupScore) -> Ratio:
    """Effective number of solutions of the prompt, out of one prompt."""
    return effective_solutions(score.solutions), 1.0


def _inverse_simpson_update(score: GroupScore) -> Ratio:
    """Inverse Simpson number of solutions of the prompt, out of one prompt."""
    return inverse_simpson(score.solutions), 1.0


def _duplicates_rate_update(score: GroupScore) -> Ratio:
    """Feasible answers that repeat another of the same prompt, out of its feasible answers."""
    solutions = score.solutions
    return float(len(solutions) - distinct_solutions(solutions)), float(len(solutions))


class DistinctSolutions(RatioMetric):
    """Mean over prompts of the number of distinct solutions among its n answers."""

    def contribution(self, score: GroupScore) -> Ratio:
        """Distinct solutions of the prompt, out of one prompt."""
        return _distinct_solutions_update(score)


class EffectiveSolutions(RatioMetric):
    """Mean over prompts of the effective number of solutions, exp(entropy); 0 for prompts without any."""

    def contribution(self, score: GroupScore) -> Ratio:
        """Effective number of solutions of the prompt, out of one prompt."""
        return _effective_solutions_update(score)


class InverseSimpson(RatioMetric):
    """Mean over prompts of the inverse Simpson number of solutions; 0 for prompts without any."""

    def contribution(self, score: GroupScore) -> Ratio:
        """Inverse Simpson number of solutions of the prompt, out of one prompt."""
        return _inverse_simpson_update(score)


class DuplicatesRate(RatioMetric):
    """Share of feasible answers that repeat an earlier one of the same prompt; nan if nothing is feasible."""

    def contribution(self, score: GroupScore) -> Ratio:
        """Repeats, out of feasible answers."""
        return _duplicates_rate_update(score)
