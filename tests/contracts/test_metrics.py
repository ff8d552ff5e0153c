"""What every metric of `distmatch.metrics` promises. A new class is found by itself."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import pickle
import pkgutil
import warnings
from collections.abc import Mapping

import pytest
from torch import Tensor
from torchmetrics import Metric

import distmatch.metrics
from distmatch.metrics.group_score import GroupScore
from tests.unit.metrics.scores import TASKS, make_score, make_scores

ARGUMENTS: Mapping[str, object] = {"tasks": TASKS, "num_samples": 4, "n": 4, "k": 2}
"""Values for constructor arguments without a default; extend it when a metric has another one."""


def find_metrics() -> list[type[Metric]]:
    """Every class in the package that can be made an object of."""
    found = set()
    for module in pkgutil.walk_packages(distmatch.metrics.__path__, "distmatch.metrics."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, Metric) and value.__module__ == module.name:
                found |= set() if inspect.isabstract(value) else {value}
    return sorted(found, key=lambda found: found.__name__)


METRICS = find_metrics()


@pytest.fixture(params=METRICS, ids=lambda found: found.__name__)
def metric(request: pytest.FixtureRequest) -> Metric:
    needed = [
        name
        for name, parameter in inspect.signature(request.param).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return request.param(**{name: ARGUMENTS[name] for name in needed})


def figures(metric: Metric) -> dict[str, float]:
    """What a metric computes, as plain numbers under names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method")
        value = metric.compute()
    named = value if isinstance(value, Mapping) else {"": value}
    assert all(isinstance(number, Tensor) and number.ndim == 0 for number in named.values())
    return {name: float(number) for name, number in named.items()}


def of(metric: Metric, *scores: GroupScore) -> dict[str, float]:
    """What a fresh copy computes of prompts that come at once."""
    fresh = copy.deepcopy(metric)
    fresh.update(*scores)
    return figures(fresh)


def test_all_are_found() -> None:
    assert {"BenchmarkMetrics", "SuccessRate", "PassAtK"} <= {found.__name__ for found in METRICS}


def test_ordinary_data_give_finite_figures(metric: Metric) -> None:
    found = of(metric, *make_scores(24))
    assert found
    assert all(math.isfinite(number) for number in found.values())


@pytest.mark.parametrize("size", [1, 7])
def test_batched_equals_unbatched(metric: Metric, size: int) -> None:
    scores = make_scores(24)
    whole = of(metric, *scores)
    for start in range(0, 24, size):
        metric.update(*scores[start : start + size])
    assert figures(metric) == pytest.approx(whole, rel=1e-6)


def test_the_order_of_prompts_and_answers_changes_nothing(metric: Metric) -> None:
    scores = make_scores(24)
    turned = [
        GroupScore(s.task, s.category, s.successes[::-1], s.qualities[::-1], s.keys[::-1])
        for s in scores[::-1]
    ]
    assert of(metric, *turned) == pytest.approx(of(metric, *scores), rel=1e-6)


def test_reset_gives_a_new_metric(metric: Metric) -> None:
    expected = of(metric, *make_scores(9, seed=1))
    metric.update(*make_scores(24))
    figures(metric)
    metric.reset()
    metric.update(*make_scores(9, seed=1))
    assert figures(metric) == expected


def test_nothing_seen_is_nan_or_nothing(metric: Metric) -> None:
    for _ in range(2):
        assert all(math.isnan(number) for number in figures(metric).values())
        metric.update()  # a batch without prompts
        metric.update(make_score(["a", None, None, None]))
        metric.reset()


@pytest.mark.parametrize(
    "score",
    [
        make_score([None] * 4),
        make_score(["a"] * 4),
        make_score(["a", None, None, None], [0.0, 0, 0, 0]),
        make_score(["a"] * 4, [7.5] * 4),
        make_score(["a"]),
    ],
    ids=["none feasible", "all the same", "worthless", "better than the reference", "one answer"],
)
def test_extreme_prompts_never_raise(metric: Metric, score: GroupScore) -> None:
    assert all(not math.isinf(number) for number in of(metric, score).values())
    of(metric, score, *make_scores(6))


def test_two_parts_merge_into_the_whole(metric: Metric) -> None:
    """What gathering over ranks does, without processes."""
    scores = make_scores(11)
    whole, other = of(metric, *scores), copy.deepcopy(metric)
    metric.update(*scores[:3])
    other.update(*scores[3:])
    metric.merge_state(other)
    assert figures(metric) == pytest.approx(whole, rel=1e-6)


def test_computing_twice_and_going_on_is_safe(metric: Metric) -> None:
    scores = make_scores(24)
    whole = of(metric, *scores)
    metric.update(*scores[:5])
    assert figures(metric) == figures(metric)
    metric.update(*scores[5:])
    assert figures(metric) == pytest.approx(whole, rel=1e-6)


def test_pickles(metric: Metric) -> None:
    metric.update(*make_scores(6))
    assert figures(pickle.loads(pickle.dumps(metric))) == figures(metric)
