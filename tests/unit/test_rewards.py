"""Rewards of hand-made answers, and `score`, the one place that computes them."""

import math

import pytest

from distmatch.rewards import Binary, NPCode, NPGated, NPPaper, Overlong, score
from distmatch.tasks.base import Instance, Solution, Verdict
from distmatch.tasks.np.graph_coloring import GraphColoring
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.tsp import TSP

VALID = Verdict(True, True, 5.0, "k", formatted=True)
INVALID = Verdict(True, False, formatted=True)
UNFORMATTED = Verdict(False, False)
VALID_UNFORMATTED = Verdict(True, True, 5.0, "k", formatted=False)


@pytest.mark.parametrize(
    ("reward", "valid", "invalid", "unformatted", "valid_unformatted"),
    [
        (NPPaper(), 0.9, 0.1, 0.0, 0.8),
        (NPCode(), 1.8, -0.5, -2.5, -0.2),
        (NPGated(), 0.8, 0.0, 0.0, 0.0),
        (Binary(), 1.0, 0.0, 0.0, 1.0),
    ],
)
def test_definitions(reward, valid, invalid, unformatted, valid_unformatted):
    assert reward(VALID, 0.8) == pytest.approx(valid)
    assert reward(INVALID, 0.0) == pytest.approx(invalid)
    assert reward(UNFORMATTED, 0.0) == pytest.approx(unformatted)
    assert reward(VALID_UNFORMATTED, 0.8) == pytest.approx(valid_unformatted)


@pytest.mark.parametrize("kind", [NPPaper, NPCode, NPGated])
def test_quality_above_one_is_cut_on_request_only(kind):
    assert kind()(VALID, 1.25) - kind(clip_quality=True)(VALID, 1.25) == pytest.approx(0.25)
    assert kind(clip_quality=True)(VALID, 0.5) == kind()(VALID, 0.5)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0), (1, 0), (16384, 0), (16385, -1 / 4096), (18432, -0.5), (20480, -1), (30000, -1)],
)
def test_the_overlong_penalty_is_the_papers(length, penalty):
    """DAPO, eq. 13, with L_max = 20480 and L_cache = 4096, which is also what null stands for."""
    for buffer in (4096, None):
        reward = Overlong(Binary(), limit=20480, buffer=buffer)
        assert reward(INVALID, 0.0, length) == pytest.approx(penalty, abs=1e-12)
        assert reward(VALID, 0.8, length) == pytest.approx(1 + penalty, abs=1e-12)


def test_the_overlong_penalty_is_added_to_any_reward_and_leaves_the_figures_alone():
    plain = score(Knapsack(), KNAPSACK, "Answer: [1]", NPPaper(), 9)
    shaped = score(Knapsack(), KNAPSACK, "Answer: [1]", Overlong(NPPaper(), 10, buffer=4, weight=2), 9)
    assert shaped.reward == pytest.approx(plain.reward - 2 * 3 / 4)
    assert (shaped.success, shaped.quality, shaped.verdict) == (plain.success, plain.quality, plain.verdict)
    nested = Overlong(Overlong(NPPaper(), 10, buffer=4), 10, buffer=2)
    assert nested(VALID, 0.8, 9) == pytest.approx(0.9 - 3 / 4 - 1 / 2)


def test_where_lengths_are_not_counted_nothing_is_too_long():
    assert score(Knapsack(), KNAPSACK, "Answer: [1]", Overlong(Binary(), 10)).reward == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"limit": 10, "buffer": 11}, "reward.buffer=11 must be null or between 1 and reward.limit=10"),
        ({"limit": 10, "buffer": 0}, "reward.buffer=0"),
        ({"limit": 0}, "reward.limit=0"),
        ({"limit": 10, "weight": -1.0}, "reward.weight=-1.0 must not be negative"),
    ],
)
def test_a_penalty_that_makes_no_sense_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Overlong(Binary(), **settings)


ITEMS = {"0": {"weight": 3, "value": 4}, "1": {"weight": 4, "value": 5}, "2": {"weight": 7, "value": 10}}
KNAPSACK = Instance("knapsack", "tiny", "train", 0, 0, {"capacity": 10, "items": ITEMS})
PENTAGON = {"0": [4, 1], "1": [0, 2], "2": [1, 3], "3": [2, 4], "4": [3, 0]}
COLORING = Instance("graph_coloring", "tiny", "train", 0, 0, PENTAGON)


def test_score_for_a_maximum():
    outcome = score(Knapsack(), KNAPSACK, "Answer: [1]", NPPaper())
    assert outcome.success
    assert (outcome.reference, outcome.verdict.value) == (14.0, 5.0)
    assert outcome.quality == pytest.approx(5 / 14)
    assert outcome.reward == pytest.approx(0.1 + 5 / 14)


def test_score_for_a_minimum():
    outcome = score(GraphColoring(), COLORING, "Answer: [1, 2, 3, 4, 5]", NPGated())
    assert outcome.quality == pytest.approx(3 / 5)
    assert outcome.reward == pytest.approx(3 / 5)


@pytest.mark.parametrize("completion", ["", "Answer: [0, 0]", "Answer: [1, 2]", "Answer: []"])
def test_failure_has_quality_zero(completion):
    outcome = score(Knapsack(), KNAPSACK, completion, NPPaper())
    assert (outcome.success, outcome.quality) == (False, 0.0)
    assert outcome.reward <= 0.1
    assert outcome.reference == 14.0


class WrongProof(TSP):
    def solve(self, instance):
        return Solution([0], 1000.0, proved=True)


def test_beating_a_proved_optimum_is_an_error():
    task = WrongProof()
    instance = task.instance("train", 0)
    completion = task.format(task.solve_exact(instance).answer)
    with pytest.raises(RuntimeError, match="beats the proved optimum"):
        score(task, instance, completion, NPPaper())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rewards_must_be_finite(value):
    with pytest.raises(RuntimeError, match="not finite"):
        score(Knapsack(), KNAPSACK, "Answer: [1]", lambda verdict, quality, length: value)
