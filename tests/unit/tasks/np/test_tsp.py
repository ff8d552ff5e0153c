import itertools

import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.exact import shortest_tour
from distmatch.tasks.np.tsp import TSP, _held_karp, _matrix

SQUARE = {
    "0": {"1": 10, "2": 15, "3": 20},
    "1": {"0": 10, "2": 35, "3": 25},
    "2": {"0": 15, "1": 35, "3": 30},
    "3": {"0": 20, "1": 25, "2": 30},
}
INSTANCE = Instance("tsp", "tiny", "train", 0, 0, SQUARE)
TASK = TSP()


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("[0, 1, 3, 2, 0]", 80),
        ("[0, 2, 1, 3, 0]", 95),
        ("[2, 0, 1, 3, 2]", 80),  # any city may come first
        ("0->1->3->2->0", 80),
        ("0, 1, 3, 2, 0", 80),
    ],
)
def test_valid_tours(answer, value):
    verdict = TASK.verify(INSTANCE, f"Answer: {answer}")
    assert (verdict.feasible, verdict.value) == (True, value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("[0, 1, 3, 2]", "wrong length"),
        ("[0, 1, 3, 2, 1]", "not closed"),
        ("[0, 1, 1, 2, 0]", "repeated city"),
        ("[0, 1, 3, 4, 0]", "unknown city"),
        ("[0, 1, -1, 2, 0]", "unknown city"),
        ("[0, 1, 3, 2, 0, 0]", "wrong length"),
        ("[0, 1, 2, 0]", "wrong length"),
        ("[0, 0]", "wrong length"),
        ("[]", "wrong length"),
    ],
)
def test_invalid_tours(answer, reason):
    verdict = TASK.verify(INSTANCE, f"Answer: {answer}")
    assert verdict.parsed
    assert not verdict.feasible
    assert verdict.value is None and verdict.key is None
    assert verdict.reason == reason


def test_rotations_and_reversals_are_one_solution():
    keys = set()
    for order in itertools.permutations(range(5)):
        keys.add(TASK.key([*order, order[0]]))
    assert len(keys) == 12  # 4! / 2
    assert TASK.key([3, 1, 0, 2, 3]) == TASK.key([0, 1, 3, 2, 0]) == "0-1-3-2"


def test_the_published_diagonal_is_harmless():
    data = {city: {city: 0, **row} for city, row in SQUARE.items()}
    with_diagonal = Instance("tsp", "tiny", "train", 0, 0, data)
    assert TASK.verify(with_diagonal, "Answer: [0, 1, 3, 2, 0]").value == 80
    assert TASK.solve(with_diagonal).value == TASK.solve_exact(with_diagonal).value == 80


def test_the_two_exact_methods_agree():
    task = TSP("easy")
    for index in range(3):
        instance = task.instance("train", index)
        _, distances = _matrix(instance.data)
        distances = [row[:9] for row in distances[:9]]
        lengths = [
            sum(distances[a][b] for a, b in itertools.pairwise([*tour, tour[0]]))
            for tour in (_held_karp(distances), shortest_tour(distances))
        ]
        assert lengths[0] == lengths[1]


def test_easy_instances_have_the_published_ranges():
    task = TSP("easy")
    for index in range(20):
        data = task.instance("train", index).data
        assert 10 <= len(data) <= 20
        assert all(10 <= d <= 100 and data[b][a] == d for a, row in data.items() for b, d in row.items())
        assert all(list(row) == sorted(row, key=int) and len(row) == len(data) - 1 for row in data.values())
