"""What k attempts would reach, estimated without bias from n >= k answers to each prompt.

pass@k = 1 - C(n-c, k) / C(n, k) for c successes among n (Chen et al., arXiv 2107.03374), and its graded twin
best@k, the expected best quality among k of the n answers drawn without replacement. Both in log space, so
large n is no problem. With fewer answers than k there is no estimate, and none is made up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from distmatch.metrics.group_score import GroupScore, Ratio, RatioMetric


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Probability that k of n answers, c of them right, hold a right one; None if n < k.

    Raises:
        ValueError: c outside 0..n, or k below 1.
    """
    if not 0 <= c <= n or k < 1:
        raise ValueError(f"pass@k needs 0 <= c <= n and k >= 1, got n={n}, c={c}, k={k}")
    if n < k:
        return None
    if n - c < k:
        return 1.0
    return -math.expm1(_log_choose(n - c, k) - _log_choose(n, k)) if c else 0.0


def best_at_k(qualities: Sequence[float], k: int) -> float | None:
    """Expected largest quality among k of the n answers; None if n < k.

    By order statistics: the i-th smallest is the largest of k in C(i-1, k-1) of C(n, k) cases.

    Raises:
        ValueError: k below 1.
    """
    if k < 1:
        raise ValueError(f"best@k needs k >= 1, got {k}")
    n = len(qualities)
    if n < k:
        return None
    total = _log_choose(n, k)
    ranked = enumerate(sorted(qualities), start=1)
    return sum(q * math.exp(_log_choose(i - 1, k - 1) - total) for i, q in ranked if i >= k)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _pass_at_k_update(score: GroupScore, k: int) -> Ratio:
    """pass@k of the prompt (nan if it has fewer than k answers), out of one prompt."""
    value = pass_at_k(score.n, score.feasible, k)
    return math.nan if value is None else value, 1.0


def _best_at_k_update(score: GroupScore, k: int) -> Ratio:
    """best@k of the prompt (nan if it has fewer than k answers), out of one prompt."""
    value = best_at_k(score.qualities, k)
    return math.nan if value is None else value, 1.0


class PassAtK(RatioMetric):
    """Mean over prompts of pass@k; nan if one prompt has fewer than k answers.

    Args:
        k: Number of attempts.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def contribution(self, score: GroupScore) -> Ratio:
        """pass@k of the prompt, out of one prompt."""
        return _pass_at_k_update(score, self.k)


class BestAtK(RatioMetric):
    """Mean over prompts of best@k, the expected best quality of k answers; nan if one prompt has fewer.

    Args:
        k: Number of attempts.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def contribution(self, score: GroupScore) -> Ratio:
        """best@k of the prompt, out of one prompt."""
        return _best_at_k_update(score, self.k)
