import random

import networkx as nx
import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.feedback_vertex_set import LEVELS, FeedbackVertexSet
from distmatch.tasks.np.graphs import neighbours
from distmatch.tasks.np.vertex_sets import cyclic_core

# Triangles 0-1-2 and 3-4-5, joined by the edge 2-3: one vertex of each must go.
TRIANGLES = {"0": [1, 2], "1": [0, 2], "2": [0, 1, 3], "3": [2, 4, 5], "4": [3, 5], "5": [3, 4]}
WEIGHTED = {node: {str(other): int(other in TRIANGLES[node]) for other in range(6)} for node in TRIANGLES}
TASK = FeedbackVertexSet()


def instance(data):
    return Instance("feedback_vertex_set", "tiny", "train", 0, 0, data)


def of_graph(graph):
    return instance({str(node): sorted(graph[node]) for node in sorted(graph)})


@pytest.mark.parametrize("data", [TRIANGLES, WEIGHTED], ids=["lists", "weighted"])
@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[2, 3]", 2, ""),
        ("[5, 0] breaks both", 2, ""),
        ("[0, 1, 2, 3, 4, 5]", 6, ""),  # all vertices: valid and poor
        ("[]", None, "a cycle is left"),
        ("[2]", None, "a cycle is left"),
        ("[0, 1, 2]", None, "a cycle is left"),
        ("[2, 3, 3]", None, "repeated id"),  # the published verifier drops the second 3
        ("[2, 3, 6]", None, "unknown id"),
        ("[2, 3, -1]", None, "unknown id"),
        ("{2, 3}", None, "not in [ ]"),
        ("2->3", None, "no answer in an accepted form"),
        ("[[2, 3]]", None, "not a list of integers"),
        ("[2, 3,]", None, "not a list of integers"),
    ],
)
def test_answers_by_hand(data, answer, value, reason):
    verdict = TASK.verify(instance(data), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_the_empty_list_is_valid_for_a_forest_only():
    forest = instance({"0": [1], "1": [0, 2], "2": [1], "3": []})
    assert TASK.verify(forest, "Answer: []").value == 0
    assert TASK.solve(forest).value == TASK.solve_exact(forest).value == 0


def test_an_edge_named_at_both_ends_is_no_cycle():
    assert TASK.verify(instance({"0": [1, 1], "1": [0]}), "Answer: []").feasible


def test_the_core_keeps_what_lies_between_cycles():
    assert sorted(cyclic_core(neighbours(TRIANGLES))) == [0, 1, 2, 3, 4, 5]
    assert sorted(cyclic_core(neighbours(TRIANGLES), [4])) == [0, 1, 2]
    assert cyclic_core(neighbours(TRIANGLES), [1, 4]) == {}


def test_the_core_is_empty_for_forests_only():
    rng = random.Random(0)
    for _ in range(300):
        n = 1 + rng.randrange(9)
        graph = nx.gnm_random_graph(n, rng.randrange(n + 2), seed=rng.randrange(10**6))
        core = cyclic_core({node: set(graph[node]) for node in graph})
        assert (not core) == nx.is_forest(graph)
        assert set(core) == set(nx.k_core(graph, 2))


@pytest.mark.parametrize(
    ("graph", "optimum"),
    [
        (nx.petersen_graph(), 3),
        (nx.complete_graph(7), 5),
        (nx.complete_bipartite_graph(3, 5), 2),
        (nx.cycle_graph(9), 1),
        (nx.convert_node_labels_to_integers(nx.hypercube_graph(3)), 3),
        (nx.convert_node_labels_to_integers(nx.hypercube_graph(4)), 6),
        (nx.dodecahedral_graph(), 6),
    ],
)
def test_known_decycling_numbers(graph, optimum):
    drawn = of_graph(graph)
    exact = TASK.solve_exact(drawn)
    assert exact.value == optimum <= TASK.solve(drawn).value
    assert TASK.verify(drawn, TASK.format(exact.answer)).feasible


def test_the_heuristic_removes_nothing_in_vain():
    task = FeedbackVertexSet("medium")
    for index in range(20):
        drawn = task.instance("train", index)
        answer = task.solve(drawn).answer
        for node in answer:
            assert task.fault(drawn, [other for other in answer if other != node])


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance(TRIANGLES)) == ("feedback_vertex_set 6: 0-1, 0-2, 1-2, 2-3, 3-4, 3-5, 4-5")


@pytest.mark.parametrize("level", LEVELS)
def test_exact_is_never_beaten_and_every_instance_has_a_cycle(level):
    task = FeedbackVertexSet(level)
    low, high = LEVELS[level].vertices
    for index in range(6):
        drawn = task.instance("test", index)
        assert low <= len(drawn.data) <= high
        heuristic, exact = task.solve(drawn), task.solve_exact(drawn)
        assert exact.proved
        assert 1 <= exact.value <= heuristic.value <= exact.value + 3


def test_exact_equals_brute_force():
    for index in range(60):
        drawn = TASK.instance("val", index)
        graph = nx.Graph([(int(a), b) for a, others in drawn.data.items() for b in others])
        valid = []
        for mask in range(1 << 7):
            left = graph.subgraph([node for node in graph if not mask >> node & 1])
            if not len(left) or nx.is_forest(left):
                valid.append(mask)
        assert TASK.solve_exact(drawn).value == min(mask.bit_count() for mask in valid)
        listed = [sum(1 << node for node in answer) for answer in TASK.feasible_answers(drawn)]
        assert sorted(listed) == valid
