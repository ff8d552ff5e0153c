import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distmatch.tasks.base import Instance
from distmatch.tasks.np.exact_structures import lightest_bisection
from distmatch.tasks.np.minimum_bisection import LEVELS, MinimumBisection

SPARSE = {
    "0": {"1": 3, "2": 1},
    "1": {"0": 3, "2": 2, "3": 2},
    "2": {"0": 1, "1": 2, "3": 3},
    "3": {"1": 2, "2": 3},
}
DENSE = {str(a): {str(b): SPARSE[str(a)].get(str(b), 0) for b in range(4)} for a in range(4)}
ODD = {"0": {"1": 1, "2": 5}, "1": {"0": 1, "2": 1}, "2": {"0": 5, "1": 1}}
TASK = MinimumBisection()


def instance(data=DENSE):
    return Instance("minimum_bisection", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize("data", [SPARSE, DENSE], ids=["sparse", "dense"])
@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[[0, 1], [2, 3]]", 5, ""),
        ("[[3, 2], [1, 0]]", 5, ""),
        ("[[0, 3], [1, 2]]", 9, ""),
        ("[[0], [1, 2, 3]]", None, "unequal sides"),
        ("[[], [0, 1, 2, 3]]", None, "unequal sides"),
        ("[[0, 1], [2]]", None, "missing vertex"),
        ("[[0, 1, 1], [2, 3]]", None, "repeated vertex"),  # 5 by the published verifier
        ("[[0, 1], [1, 2]]", None, "repeated vertex"),
        ("[[0, 1], [2, 4]]", None, "unknown vertex"),
        ("[[0, 1], [2, -1]]", None, "unknown vertex"),
        ("[[0, 1], [2], [3]]", None, "not two sides"),
        ("[[0, 1]]", None, "not two sides"),
        ("[]", None, "not two sides"),
        ("[0, 1]", None, "not a list of lists of integers"),
        ("[(0, 1), (2, 3)]", None, "not a list of lists of integers"),
        ("[[0, 1], [2, 3.0]]", None, "not a list of lists of integers"),
        ("[0, 1], [2, 3]", None, "not a list of lists of integers"),
        ("[[0, 1], [2, 3]]\n[[0, 2], [1, 3]]", None, "more than one answer"),
    ],
)
def test_answers_by_hand(data, answer, value, reason):
    verdict = TASK.verify(instance(data), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


@pytest.mark.parametrize(
    ("answer", "value"),
    [("[[0, 2], [1]]", 2), ("[[1], [2, 0]]", 2), ("[[0], [1, 2]]", 6), ("[[0, 1, 2], []]", None)],
)
def test_sizes_differ_by_one_where_the_number_is_odd(answer, value):
    assert TASK.verify(instance(ODD), f"Answer: {answer}").value == value
    assert TASK.solve(instance(ODD)).value == TASK.solve_exact(instance(ODD)).value == 2


def test_one_row_is_enough_for_an_edge_and_loops_do_not_count():
    data = {"0": {"0": 7}, "1": {"0": 4, "1": 9}}
    assert TASK.verify(instance(data), "Answer: [[0], [1]]").value == 4


def test_sides_and_their_order_make_no_difference():
    assert TASK.key([[3, 2], [1, 0]]) == TASK.key([[0, 1], [2, 3]]) == "0,1|2,3"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 4), max_size=4), max_size=3))
def test_just_the_enumerated_answers_are_valid(rows):
    verdict = TASK.verify(instance(), f"Answer: {rows}")
    known = {frozenset({frozenset(a), frozenset(b)}) for a, b in TASK.feasible_answers(instance())}
    once = len(rows) == 2 and len(rows[0] + rows[1]) == 4
    assert verdict.feasible == (once and frozenset(map(frozenset, rows)) in known)


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance()) == "bisection 4: 0-1=3, 0-2=1, 1-2=2, 1-3=2, 2-3=3"


def test_exact_equals_brute_force_and_is_never_beaten():
    for index in range(40):
        drawn = TASK.instance("val", index)
        cuts = [
            sum(drawn.data[str(a)][str(b)] for a in side for b in range(8) if b not in side)
            for side in itertools.combinations(range(8), 4)
        ]
        exact = TASK.solve_exact(drawn)
        assert (exact.value, exact.proved) == (min(cuts), True)
        assert TASK.solve(drawn).value >= exact.value


@pytest.mark.parametrize("n", [4, 5, 8, 9])
def test_both_exact_methods_agree(n):
    for index in range(5):
        data = TASK.instance("test", index).data
        part = instance({str(a): {str(b): data[str(a % 8)][str(b % 8)] for b in range(n)} for a in range(n)})
        weights = {(a, b): part.data[str(a)][str(b)] for a, b in itertools.combinations(range(n), 2)}
        side = lightest_bisection(range(n), weights, TASK.solve(part).answer[1])
        others = [vertex for vertex in range(n) if vertex not in side]
        assert TASK.value(part, [side, others]) == TASK.solve_exact(part).value


def test_large_dense_graphs_are_refused(monkeypatch):
    monkeypatch.setattr("distmatch.tasks.np.exact.DETERMINISTIC_LIMIT", 0.5)
    with pytest.raises(ValueError, match="not proved"):
        task = MinimumBisection("bench")
        task.solve_exact(task.instance("test", 0))


@pytest.mark.parametrize("level", LEVELS)
def test_generated_graphs_are_dense_symmetric_matrices(level):
    task = MinimumBisection(level)
    for index in range(4):
        data = task.instance("test", index).data
        n = len(data)
        sizes = {"tiny": (8, 8), "small": (10, 14), "easy": (42, 42), "medium": (45, 45)}
        low, high = (sizes | {"hard": (45, 45), "bench": (50, 50)})[level]
        assert low <= n <= high
        assert all(data[str(a)][str(b)] == data[str(b)][str(a)] for a in range(n) for b in range(n))
        assert all(len(data[str(a)]) == n and data[str(a)][str(a)] == 0 for a in range(n))
        assert max(weight for row in data.values() for weight in row.values()) <= 10


def test_communities_do_not_follow_the_names():
    task = MinimumBisection("bench")
    sides = [task.solve(task.instance("train", index)).answer[0] for index in range(12)]
    means = [sum(side) / len(side) for side in sides]
    assert abs(sum(means) / len(means) - 24.5) < 4
