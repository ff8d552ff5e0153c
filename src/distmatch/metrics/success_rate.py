"""SR: the share of answers that are feasible (for mathematics: right). DMPO, arXiv 2605.19461."""

from __future__ import annotations

import math

from distmatch.metrics.group_score import GroupScore, Ratio, RatioMetric


def _success_rate_update(score: GroupScore) -> Ratio:
    """Feasible answers, out of all answers."""
    return float(score.feasible), float(score.n)


def _mean_at_n_update(score: GroupScore, n: int) -> Ratio:
    """Success rate of the prompt (nan if it does not have n answers), out of one prompt."""
    return score.feasible / score.n if score.n == n else math.nan, 1.0


class SuccessRate(RatioMetric):
    """Share of feasible answers among all answers."""

    def contribution(self, score: GroupScore) -> Ratio:
        """Feasible answers, out of all answers."""
        return _success_rate_update(score)


class MeanAtN(RatioMetric):
    """Success rate of each prompt over its n answers, then the mean over prompts; nan if one has not n.

    Args:
        n: Answers to each prompt.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def contribution(self, score: GroupScore) -> Ratio:
        """Success rate of the prompt, out of one prompt."""
        return _mean_at_n_update(score, self.n)
