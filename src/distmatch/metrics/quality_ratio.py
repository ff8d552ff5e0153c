"""QR: how good answers are against the reference solution. DMPO, arXiv 2605.19461."""

from __future__ import annotations

from distmatch.metrics.group_score import GroupScore, Ratio, RatioMetric


def _quality_ratio_update(score: GroupScore) -> Ratio:
    """Summed quality, out of all answers."""
    return float(sum(score.qualities)), float(score.n)


def _quality_feasible_update(score: GroupScore) -> Ratio:
    """Summed quality, out of feasible answers."""
    return float(sum(score.qualities)), float(score.feasible)


class QualityRatio(RatioMetric):
    """Mean quality over all answers, infeasible ones as 0; at most the success rate on exact references."""

    def contribution(self, score: GroupScore) -> Ratio:
        """Summed quality, out of all answers."""
        return _quality_ratio_update(score)


class QualityOfFeasible(RatioMetric):
    """Mean quality over feasible answers only: optimisation apart from validity. nan if there is none."""

    def contribution(self, score: GroupScore) -> Ratio:
        """Summed quality, out of feasible answers."""
        return _quality_feasible_update(score)
