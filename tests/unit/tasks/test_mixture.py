from collections import Counter

import pytest

from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.maximum_clique import MaximumClique
from distmatch.tasks.np.tsp import TSP


def mixture(weights=None):
    return Mixture({"tsp": TSP(), "knapsack": Knapsack(), "maximum_clique": MaximumClique()}, weights)


def test_equal_shares_go_round():
    tasks = [mixture().instance("train", index).task for index in range(7)]
    assert tasks == ["tsp", "knapsack", "maximum_clique"] * 2 + ["tsp"]


def test_shares_hold_in_every_prefix_and_members_have_no_gaps():
    mixed = mixture({"tsp": 5.0, "knapsack": 3.0, "maximum_clique": 2.0})
    share = {"tsp": 0.5, "knapsack": 0.3, "maximum_clique": 0.2}
    seen = Counter()
    for index in range(200):
        instance = mixed.instance("val", index)
        assert instance.index == seen[instance.task]
        seen[instance.task] += 1
        assert all(abs(seen[name] - share[name] * (index + 1)) <= 1 for name in share)


def test_random_access_equals_order():
    mixed, weights = mixture, {"tsp": 1.0, "knapsack": 2.5, "maximum_clique": 0.7}
    forwards = [mixed(weights).instance("train", index).id for index in range(30)]
    other = mixed(weights)
    assert [other.instance("train", index).id for index in reversed(range(30))] == forwards[::-1]


def test_dispatch():
    mixed = mixture()
    for index in range(3):
        instance = mixed.instance("train", index)
        member = mixed.problem(instance)
        assert member.name == instance.task
        assert mixed.render(instance, "compact") == member.render(instance, "compact")
        assert mixed.reference(instance) is member.reference(instance)
        assert mixed.solve(instance) == member.solve(instance)
        completion = member.format(mixed.solve_exact(instance).answer)
        assert mixed.verify(instance, completion) == member.verify(instance, completion)
        assert mixed.verify(instance, completion).feasible


@pytest.mark.parametrize(
    ("tasks", "weights", "message"),
    [
        ({}, None, "empty task"),
        ({"a": TSP(), "b": TSP("easy")}, None, "two members are the task 'tsp'"),
        ({"tsp": TSP()}, {"knapsack": 1.0}, "weights name"),
        ({"tsp": TSP()}, {"tsp": 0.0}, "positive"),
        ({"tsp": TSP()}, {"tsp": float("inf")}, "finite"),
        ({"tsp": TSP()}, {"tsp": float("nan")}, "positive"),
    ],
)
def test_refused_by_name(tasks, weights, message):
    with pytest.raises(ValueError, match=message):
        Mixture(tasks, weights)


def test_foreign_instances_and_negative_positions_are_refused():
    with pytest.raises(ValueError, match="not a member"):
        Mixture({"tsp": TSP()}).verify(Knapsack().instance("train", 0), "Answer: [0]")
    with pytest.raises(ValueError, match="negative"):
        mixture().instance("train", -1)
    with pytest.raises(TypeError, match="mixture formats nothing"):
        mixture().format([0])
