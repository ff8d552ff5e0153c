import itertools
import json

import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.maximum_independent_set import LEVELS, MaximumIndependentSet

# Edges 0-1, 0-2, 1-2, 2-3, 3-4: the largest independent sets are {0, 3}, {0, 4}, {1, 3}, {1, 4}, {2, 4}.
LISTS = {"0": [1, 2], "1": [0, 2], "2": [0, 1, 3], "3": [2, 4], "4": [3]}
PUBLISHED = {node: {str(other): 1 for other in others} for node, others in LISTS.items()}
DENSE = {node: {str(other): int(other in LISTS[node]) for other in range(5)} for node in LISTS}
TASK = MaximumIndependentSet()


def instance(data):
    return Instance("maximum_independent_set", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize("data", [LISTS, PUBLISHED, DENSE], ids=["lists", "published", "dense"])
@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[0, 3]", 2, ""),
        ("[4, 1] is independent", 2, ""),
        ("{0, 3}", 2, ""),
        ("0->3", 2, ""),
        ("[2]", 1, ""),
        ("[]", None, "empty set"),
        ("[0, 3, 0, 3]", None, "repeated id"),  # NP-Engine counts 4
        ("[2, 2]", None, "repeated id"),
        ("[0, 1]", None, "two vertices are adjacent"),
        ("[3, 0, 4]", None, "two vertices are adjacent"),
        ("[0, 5]", None, "unknown id"),
        ("[-1]", None, "unknown id"),
        ("[0]*5", None, "more than one answer"),
        ("[0.0, 3.0]", None, "not a list of integers"),
        ("0, 3", None, "no answer in an accepted form"),
    ],
)
def test_answers_by_hand(data, answer, value, reason):
    verdict = TASK.verify(instance(data), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_an_edge_listed_at_one_end_is_an_edge():
    verdict = TASK.verify(instance({"0": {}, "1": {"0": 1}}), "Answer: [0, 1]")
    assert verdict.reason == "two vertices are adjacent"


def test_order_does_not_make_another_solution():
    keys = {
        TASK.verify(instance(LISTS), f"Answer: {answer}").key for answer in ("[0, 3]", "[3, 0]", "{3, 0}")
    }
    assert keys == {"0,3"}


def test_the_example_of_the_prompt_is_valid_and_the_rule_is_stated():
    example = instance(json.loads(TASK.wording.example_question))
    assert TASK.verify(example, f"Answer: {TASK.wording.example_answer}").feasible
    assert "empty list is not valid" in TASK.render(example, "natural").text


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance(LISTS)) == "independent_set 5: 0-1, 0-2, 1-2, 2-3, 3-4"


@pytest.mark.parametrize("level", LEVELS)
def test_planted_sets_are_found_and_in_range(level):
    task = MaximumIndependentSet(level)
    low, high = LEVELS[level].vertices
    for index in range(10):
        drawn = task.instance("test", index)
        assert low <= len(drawn.data) <= high
        assert all(drawn.data[other][node] == 1 for node, row in drawn.data.items() for other in row)
        heuristic, exact = task.solve(drawn), task.solve_exact(drawn)
        assert exact.proved
        assert LEVELS[level].planted[0] <= heuristic.value <= exact.value
        assert task.solve(drawn) == heuristic  # pure


def test_exact_equals_brute_force():
    for index in range(60):
        drawn = TASK.instance("val", index)
        sets = (chosen for k in range(8) for chosen in itertools.combinations(range(7), k))
        free = [s for s in sets if not any(str(b) in drawn.data[str(a)] for a in s for b in s)]
        assert TASK.solve_exact(drawn).value == max(map(len, free))
        assert sorted(map(list, free)) == sorted([[], *TASK.feasible_answers(drawn)])


def test_planted_vertices_do_not_sit_in_front():
    task = MaximumIndependentSet("bench")
    positions = []
    for index in range(20):
        drawn = task.instance("train", index)
        positions += [node / (len(drawn.data) - 1) for node in task.solve(drawn).answer]
    assert abs(sum(positions) / len(positions) - 0.5) < 0.05
