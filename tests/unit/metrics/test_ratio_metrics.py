"""Success, quality and diversity against plain Python."""

from __future__ import annotations

import math
import random

import pytest

from distmatch.metrics.diversity import (
    DistinctSolutions,
    DuplicatesRate,
    EffectiveSolutions,
    InverseSimpson,
    effective_solutions,
    inverse_simpson,
)
from distmatch.metrics.group_score import GroupScore
from distmatch.metrics.quality_ratio import QualityOfFeasible, QualityRatio
from distmatch.metrics.success_rate import MeanAtN, SuccessRate
from tests.unit.metrics.scores import make_score, make_scores

ALL = [
    SuccessRate,
    QualityRatio,
    QualityOfFeasible,
    DistinctSolutions,
    EffectiveSolutions,
    InverseSimpson,
    DuplicatesRate,
]


def value(metric_class, *scores: GroupScore) -> float:
    metric = metric_class()
    metric.update(*scores)
    return float(metric.compute())


def test_rates_weigh_by_answers() -> None:
    one, four = make_score(["a"], [0.5]), make_score(["a", "b", None, None], [1.0, 0.8, 0, 0])
    assert value(SuccessRate, one, four) == pytest.approx(3 / 5)
    assert value(QualityRatio, one, four) == pytest.approx(2.3 / 5)
    assert value(QualityOfFeasible, one, four) == pytest.approx(2.3 / 3)


def test_mean_at_n_weighs_by_prompts_and_needs_all_n() -> None:
    metric = MeanAtN(2)
    metric.update(make_score(["a", None]), make_score(["a", "b"]))
    assert metric.compute() == pytest.approx(0.75)
    metric.update(make_score(["a"]))
    assert metric.compute().isnan()


@pytest.mark.parametrize(
    ("keys", "distinct", "effective", "simpson", "duplicates"),
    [
        (["tour"] * 8, 1, 1.0, 1.0, 7 / 8),
        (list("abcdefgh"), 8, 8.0, 8.0, 0.0),
        (["a", "a", "b", "b", None, None, None, None], 2, 2.0, 2.0, 0.5),
        (["a", "a", "a", "b"], 2, math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)), 1.6, 0.5),
        ([None] * 4, 0, 0.0, 0.0, math.nan),
    ],
)
def test_diversity_counts_solutions(keys, distinct, effective, simpson, duplicates) -> None:
    score = make_score(keys)
    found = [value(m, score) for m in (DistinctSolutions, EffectiveSolutions, InverseSimpson, DuplicatesRate)]
    assert found == pytest.approx([distinct, effective, simpson, duplicates], nan_ok=True)


def test_effective_numbers_lie_between_one_and_the_distinct_number() -> None:
    rng = random.Random(0)
    for _ in range(200):
        keys = [rng.choice("abcdef") for _ in range(rng.randrange(1, 17))]
        assert 1 - 1e-9 <= inverse_simpson(keys) <= effective_solutions(keys) + 1e-9 <= len(set(keys)) + 2e-9


@pytest.mark.parametrize("metric_class", ALL)
def test_batched_equals_one_by_one(metric_class) -> None:
    scores = make_scores(20)
    metric = metric_class()
    for score in scores:
        metric.update(score)
    assert float(metric.compute()) == pytest.approx(value(metric_class, *scores), rel=1e-6)


@pytest.mark.parametrize(
    ("successes", "qualities", "keys", "message"),
    [
        ([True], [1.0, 0.5], ["a"], "one length"),
        ([], [], [], "one length"),
        ([True], [math.nan], ["a"], "finite"),
        ([False], [0.5], [None], "without success"),
    ],
)
def test_broken_records_are_refused(successes, qualities, keys, message) -> None:
    with pytest.raises(ValueError, match=message):
        GroupScore("t", "c", successes, qualities, keys)
