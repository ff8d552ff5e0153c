import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.graph_coloring import GraphColoring

PENTAGON = {"0": [4, 1], "1": [0, 2], "2": [1, 3], "3": [2, 4], "4": [3, 0]}
INSTANCE = Instance("graph_coloring", "tiny", "train", 0, 0, PENTAGON)
TASK = GraphColoring()


@pytest.mark.parametrize(
    ("answer", "value"),
    [("[1, 2, 1, 2, 3]", 3), ("[7, 2, 7, 2, 5]", 3), ("[1, 2, 3, 4, 5]", 5), ("1->2->1->2->3", 3)],
)
def test_valid_colorings(answer, value):
    verdict = TASK.verify(INSTANCE, f"Answer: {answer}")
    assert (verdict.feasible, verdict.value) == (True, value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("[1, 2, 1, 2]", "wrong length"),
        ("[1, 2, 1, 2, 3, 1]", "wrong length"),
        ("[]", "wrong length"),
        ("[0, 1, 0, 1, 2]", "a colour below 1"),
        ("[1, 2, 1, 2, -3]", "a colour below 1"),
        ("[1, 2, 1, 2, 1]", "two neighbours of the same colour"),
    ],
)
def test_invalid_colorings(answer, reason):
    verdict = TASK.verify(INSTANCE, f"Answer: {answer}")
    assert (verdict.feasible, verdict.reason) == (False, reason)


def test_renamed_colors_are_one_solution():
    assert TASK.key([1, 2, 1, 2, 3]) == TASK.key([9, 4, 9, 4, 1]) == "1,2,1,2,3"
    assert TASK.key([1, 2, 1, 3, 2]) != TASK.key([1, 2, 1, 2, 3])


def test_both_published_forms_are_read():
    weighted = {node: {str(b): int(b in others) for b in range(5)} for node, others in PENTAGON.items()}
    instance = Instance("graph_coloring", "tiny", "train", 0, 0, weighted)
    assert TASK.solve_exact(instance).value == 3
    assert TASK.verify(instance, "Answer: [1, 2, 1, 2, 3]").feasible


def test_all_colorings_of_a_triangle_with_a_tail():
    graph = {"0": [1, 2], "1": [0, 2], "2": [0, 1, 3], "3": [2]}
    answers = list(TASK.feasible_answers(Instance("graph_coloring", "tiny", "train", 0, 0, graph)))
    assert sorted(answers) == [[1, 2, 3, 1], [1, 2, 3, 2], [1, 2, 3, 4]]


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "bench"])
def test_the_heuristic_is_never_better_than_the_proof(level):
    task = GraphColoring(level)
    for index in range(2):
        instance = task.instance("val", index)
        heuristic, exact = task.solve(instance), task.solve_exact(instance)
        assert exact.proved
        assert exact.value <= heuristic.value <= exact.value + 1
        assert task.solve(instance) == heuristic  # pure
