import random

import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.hamiltonian_cycle import LEVELS, HamiltonianCycle

GRAPH = {"0": [1, 2], "1": [0, 2, 3], "2": [0, 1, 3], "3": [1, 2]}
WEIGHTED = {node: {str(other): int(other in GRAPH[node]) for other in range(4)} for node in GRAPH}
TASK = HamiltonianCycle()


def instance(data):
    return Instance("hamiltonian_cycle", "tiny", "train", 0, 0, data)


def from_edges(n, edges):
    return instance({str(a): [b for b in range(n) if (a, b) in edges or (b, a) in edges] for a in range(n)})


@pytest.mark.parametrize("data", [GRAPH, WEIGHTED], ids=["lists", "weighted"])
@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[0, 1, 3, 2, 0]", 4, ""),
        ("[3, 2, 0, 1, 3]", 4, ""),  # any vertex may come first
        ("0->1->3->2->0", 4, ""),
        ("0, 1, 3, 2, 0", 4, ""),
        ("[0, 1, 2, 0]", 3, ""),
        ("[]", None, "fewer than three vertices"),
        ("[0]", None, "fewer than three vertices"),  # 1 by the published verifier
        ("[0, 0]", None, "fewer than three vertices"),
        ("[0, 1, 0]", None, "fewer than three vertices"),  # 3 by the published verifier
        ("[0, 1, 3, 2]", None, "not closed"),
        ("[0, 1, 3, 1, 0]", None, "repeated vertex"),
        ("[0, 1, 2, 0, 1, 2, 0]", None, "repeated vertex"),
        ("[0, 0, 1, 2, 0]", None, "repeated vertex"),
        ("[0, 1, 2, 0, 0]", None, "repeated vertex"),
        ("[0, 3, 1, 0]", None, "two successive vertices are not adjacent"),
        ("[0, 1, 3, 0]", None, "two successive vertices are not adjacent"),  # the last edge
        ("[0, 1, 4, 2, 0]", None, "unknown vertex"),
        ("[-1, 0, 1, -1]", None, "unknown vertex"),
        ("[0, 1, 3, 2, 0] + [1]", None, "more than one answer"),
    ],
)
def test_answers_by_hand(data, answer, value, reason):
    verdict = TASK.verify(instance(data), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_loops_do_not_count():
    assert not TASK.verify(instance({"0": [0, 1], "1": [0, 1], "2": [2]}), "Answer: [0, 0, 1, 0]").feasible


def test_rotations_and_reversals_are_one_solution():
    keys = {TASK.key(cycle) for cycle in ([0, 1, 3, 2, 0], [3, 2, 0, 1, 3], [0, 2, 3, 1, 0], [2, 3, 1, 0, 2])}
    assert keys == {"0-1-3-2"}
    assert TASK.key([0, 1, 2, 3, 0]) == "0-1-2-3"


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance(GRAPH)) == "hamiltonian 4: 0-1, 0-2, 1-2, 1-3, 2-3"


def test_graphs_without_cycles_have_no_answer():
    tree = from_edges(4, {(0, 1), (1, 2), (1, 3)})
    with pytest.raises(ValueError, match="no cycle"):
        TASK.solve(tree)
    with pytest.raises(ValueError, match="no cycle"):
        TASK.solve_exact(tree)


def random_graph(rng, n, probability):
    return from_edges(n, {(a, b) for b in range(n) for a in range(b) if rng.random() < probability})


def test_exact_equals_enumeration_and_is_never_beaten():
    rng, checked = random.Random(0), 0
    while checked < 40:  # sparse graphs of our own: in the generated ones all vertices are on a cycle
        drawn = random_graph(rng, 7, 0.3)
        values = [len(cycle) - 1 for cycle in TASK.feasible_answers(drawn)]
        if not values:
            continue
        exact = TASK.solve_exact(drawn)
        assert (exact.value, exact.proved) == (max(values), True)
        assert TASK.solve(drawn).value <= exact.value
        assert TASK.verify(drawn, TASK.format(exact.answer)).value == exact.value
        checked += 1


@pytest.mark.parametrize("level", LEVELS)
def test_generated_graphs_are_in_range_and_have_a_hamiltonian_cycle(level):
    task = HamiltonianCycle(level)
    for index in range(6):
        drawn = task.instance("test", index)
        low, high = LEVELS[level].vertices
        assert low <= len(drawn.data) <= high
        assert all(int(node) in drawn.data[str(other)] for node in drawn.data for other in drawn.data[node])
        assert task.solve_exact(drawn).value == len(drawn.data)


def test_the_planted_cycle_does_not_follow_the_names():
    task = HamiltonianCycle("bench")
    drawn = [task.instance("train", index).data for index in range(20)]
    pairs = [int(node) + 1 in data[node] for data in drawn for node in data if int(node) + 1 < len(data)]
    assert 0.4 < sum(pairs) / len(pairs) < 0.65  # 1 without shuffling
