import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.maximum_independent_set import MaximumIndependentSet
from distmatch.tasks.np.vertex_cover import LEVELS, VertexCover

# Edges 0-1, 0-2, 1-2, 2-3, 3-4: the smallest covers have three vertices.
LISTS = {"0": [1, 2], "1": [0, 2], "2": [0, 1, 3], "3": [2, 4], "4": [3]}
WEIGHTED = {node: {str(other): int(other in LISTS[node]) for other in range(5)} for node in LISTS}
TASK = VertexCover()


def instance(data):
    return Instance("vertex_cover", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize("data", [LISTS, WEIGHTED], ids=["lists", "weighted"])
@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[0, 2, 3]", 3, ""),
        ("[3, 2, 1] covers all", 3, ""),
        ("[0, 1, 2, 3, 4]", 5, ""),  # all vertices: valid and poor
        ("[]", None, "an edge is not covered"),
        ("[2]", None, "an edge is not covered"),
        ("[0, 1, 3]", 3, ""),
        ("[0, 1, 4]", None, "an edge is not covered"),
        ("[0, 2, 3, 3]", None, "repeated id"),  # the published verifier drops the second 3
        ("[0, 2, 3, 5]", None, "unknown id"),
        ("[0, 2, 3, -1]", None, "unknown id"),
        ("{0, 2, 3}", None, "not in [ ]"),
        ("0->2->3", None, "no answer in an accepted form"),
        ("[0, 2, 3.0]", None, "not a list of integers"),
        ("[0, 2, 3] + [1]", None, "more than one answer"),
    ],
)
def test_answers_by_hand(data, answer, value, reason):
    verdict = TASK.verify(instance(data), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_the_empty_list_covers_a_graph_without_edges_only():
    assert TASK.verify(instance({"0": [], "1": []}), "Answer: []").value == 0
    assert not TASK.verify(instance({"0": [1], "1": []}), "Answer: []").feasible


def test_the_reference_is_the_published_two_approximation():
    assert TASK.solve(instance(LISTS)).answer == [0, 1, 2, 3]  # the edges 0-1 and 2-3
    assert TASK.solve(instance({"0": [1], "1": [0]})).answer == [0, 1]
    assert TASK.solve_exact(instance({"0": [1], "1": [0]})).value == 1


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance(LISTS)) == "vertex_cover 5: 0-1, 0-2, 1-2, 2-3, 3-4"


@pytest.mark.parametrize("level", LEVELS)
def test_exact_is_never_beaten_and_leaves_an_independent_set(level):
    task = VertexCover(level)
    low, high = LEVELS[level].vertices
    for index in range(6):
        drawn = task.instance("test", index)
        assert low <= len(drawn.data) <= high
        heuristic, exact = task.solve(drawn), task.solve_exact(drawn)
        assert exact.proved
        assert 2 <= exact.value <= heuristic.value <= 2 * exact.value
        assert exact.value + MaximumIndependentSet().solve_exact(drawn).value == len(drawn.data)


def test_exact_equals_brute_force():
    for index in range(60):
        drawn = TASK.instance("val", index)
        edges = [(1 << int(a)) | (1 << b) for a in drawn.data for b in drawn.data[a]]
        covers = [mask for mask in range(1 << 7) if all(mask & edge for edge in edges)]
        assert TASK.solve_exact(drawn).value == min(mask.bit_count() for mask in covers)
        listed = [sum(1 << node for node in answer) for answer in TASK.feasible_answers(drawn)]
        assert sorted(listed) == covers
