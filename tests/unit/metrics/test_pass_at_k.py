"""pass@k and best@k against every subset."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from distmatch.metrics.group_score import GroupScore
from distmatch.metrics.pass_at_k import BestAtK, PassAtK, best_at_k, pass_at_k

CASES = [(n, k) for n in range(1, 9) for k in range(1, n + 1)]


@pytest.mark.parametrize(("n", "k"), CASES)
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n: int, k: int) -> None:
    for c in range(n + 1):
        answers = [True] * c + [False] * (n - c)
        expected = statistics.mean(any(subset) for subset in itertools.combinations(answers, k))
        assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "k"), CASES)
def test_best_at_k_is_the_mean_best_of_subsets(n: int, k: int) -> None:
    qualities = [random.Random(n).choice([0.0, 0.0, 0.3, 0.7, 1.1, 2.0]) for _ in range(n)]
    expected = statistics.mean(max(subset) for subset in itertools.combinations(qualities, k))
    assert best_at_k(qualities, k) == pytest.approx(expected, abs=1e-12)


def test_edges() -> None:
    assert pass_at_k(2, 0, 5) is None and best_at_k([0.0, 1.0], 5) is None
    assert pass_at_k(4, 1, 4) == 1 and pass_at_k(4, 0, 4) == 0 and pass_at_k(4, 4, 1) == 1
    assert pass_at_k(8, 2, 1) == pytest.approx(0.25)


def test_sampling_with_replacement_would_be_too_low() -> None:
    """One success in four: any four of four hold it; with replacement they miss it in 0.316."""
    assert best_at_k([1.0, 0, 0, 0], 4) == pytest.approx(1.0)


def test_large_n_neither_overflows_nor_loses_precision() -> None:
    exact = 1 - math.comb(9_990, 128) / math.comb(10_000, 128)
    assert pass_at_k(10_000, 10, 128) == pytest.approx(exact, rel=1e-9)
    assert best_at_k([1.0] * 4096, 512) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0)])
def test_nonsense_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def test_best_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="best@k needs"):
        best_at_k([1.0], 0)


def test_metrics_average_over_prompts_and_refuse_to_guess() -> None:
    long = GroupScore("t", "c", [True, False, False, False], [1.0, 0, 0, 0], ["a", None, None, None])
    short = GroupScore("t", "c", [True], [0.5], ["a"])
    passes, best = PassAtK(1), BestAtK(1)
    for score in (long, short):
        passes.update(score)
        best.update(score)
    assert passes.compute() == pytest.approx((0.25 + 1) / 2) and best.compute() == pytest.approx(
        (0.25 + 0.5) / 2
    )
    missing = PassAtK(2)
    missing.update(long, short)
    assert missing.compute().isnan()
