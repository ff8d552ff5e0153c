import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.dominating_set import LEVELS, DominatingSet

# The path 0-1-2-3-4: two vertices dominate it.
PATH = {"0": [1], "1": [0, 2], "2": [1, 3], "3": [2, 4], "4": [3]}
WEIGHTED = {node: {str(other): int(other in PATH[node]) for other in range(5)} for node in PATH}
TASK = DominatingSet()


def instance(data):
    return Instance("dominating_set", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize("data", [PATH, WEIGHTED], ids=["lists", "weighted"])
@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[1, 3]", 2, ""),
        ("[3, 0] dominates", 2, ""),
        ("[0, 1, 2, 3, 4]", 5, ""),  # all vertices: valid and poor
        ("[]", None, "a vertex is not dominated"),
        ("[2]", None, "a vertex is not dominated"),
        ("[1, 2]", None, "a vertex is not dominated"),
        ("[1, 3, 3]", None, "repeated id"),  # the published verifier drops the second 3
        ("[1, 3, 5]", None, "unknown id"),
        ("[1, 3, -1]", None, "unknown id"),
        ("(1, 3)", None, "not in [ ]"),
        ("1->3", None, "no answer in an accepted form"),
        ("['1', '3']", None, "not a list of integers"),
        ("[1, 3] or [0, 3]", None, "more than one answer"),
    ],
)
def test_answers_by_hand(data, answer, value, reason):
    verdict = TASK.verify(instance(data), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_an_isolated_vertex_must_dominate_itself():
    lonely = instance({"0": [1], "1": [0], "2": []})
    assert not TASK.verify(lonely, "Answer: [0]").feasible
    assert TASK.verify(lonely, "Answer: [0, 2]").feasible
    assert TASK.solve(lonely).value == TASK.solve_exact(lonely).value == 2


def test_greedy_takes_the_vertex_that_dominates_most():
    assert TASK.solve(instance(PATH)).answer == [1, 3]


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance(PATH)) == "dominating_set 5: 0-1, 1-2, 2-3, 3-4"


@pytest.mark.parametrize("level", LEVELS)
def test_exact_is_never_beaten_and_no_vertex_dominates_alone(level):
    task = DominatingSet(level)
    low, high = LEVELS[level].vertices
    for index in range(6):
        drawn = task.instance("test", index)
        assert low <= len(drawn.data) <= high
        heuristic, exact = task.solve(drawn), task.solve_exact(drawn)
        assert exact.proved
        assert 2 <= exact.value <= heuristic.value <= 1.5 * exact.value


def test_exact_equals_brute_force():
    for index in range(60):
        drawn = TASK.instance("val", index)
        reach = [(1 << int(a)) | sum(1 << b for b in others) for a, others in drawn.data.items()]
        valid = [mask for mask in range(1 << 7) if all(mask & around for around in reach)]
        assert TASK.solve_exact(drawn).value == min(mask.bit_count() for mask in valid)
        listed = [sum(1 << node for node in answer) for answer in TASK.feasible_answers(drawn)]
        assert sorted(listed) == valid
