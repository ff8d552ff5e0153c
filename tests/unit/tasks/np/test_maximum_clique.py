import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.maximum_clique import LEVELS, MaximumClique

GRAPH = {"0": [1, 2], "1": [0, 2, 3], "2": [0, 1, 3], "3": [1, 2]}
WEIGHTED = {
    "0": {"1": 1, "2": 1, "3": 0},
    "1": {"0": 1, "2": 1, "3": 1},
    "2": {"0": 1, "1": 1, "3": 1},
    "3": {"0": 0, "1": 1, "2": 1},
}
TASK = MaximumClique()


def instance(data):
    return Instance("maximum_clique", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize("data", [GRAPH, WEIGHTED])
@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[0, 1, 2]", 3, ""),
        ("[2, 1, 0] is the clique", 3, ""),
        ("[3]", 1, ""),
        ("[]", None, "empty set"),
        ("[0, 1, 2, 2]", None, "repeated id"),
        ("[0, 1, 3]", None, "two vertices are not adjacent"),
        ("[0, 4]", None, "unknown id"),
        ("[-1]", None, "unknown id"),
        ("{0, 1, 2}", None, "not in [ ]"),
        ("0->1->2", None, "no answer in an accepted form"),
    ],
)
def test_answers_by_hand(data, answer, value, reason):
    verdict = TASK.verify(instance(data), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_both_published_forms_have_the_same_optimum():
    assert TASK.solve_exact(instance(GRAPH)).value == TASK.solve_exact(instance(WEIGHTED)).value == 3


@pytest.mark.parametrize("level", LEVELS)
def test_planted_cliques_are_found_and_in_range(level):
    task = MaximumClique(level)
    for index in range(10):
        drawn = task.instance("test", index)
        low, high = LEVELS[level].vertices
        assert low <= len(drawn.data) <= high
        assert all(int(node) in drawn.data[str(other)] for node in drawn.data for other in drawn.data[node])
        exact = task.solve_exact(drawn)
        assert LEVELS[level].planted[0] <= task.solve(drawn).value <= exact.value


def test_planted_vertices_do_not_sit_in_front():
    task = MaximumClique("bench")
    positions = []
    for index in range(100):
        drawn = task.instance("train", index)
        positions += [node / (len(drawn.data) - 1) for node in task.solve(drawn).answer]
    assert abs(sum(positions) / len(positions) - 0.5) < 0.05
