import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.subset_sum import LEVELS, SubsetSum

TASK = SubsetSum()


def instance(numbers=(2, 3, 7, 8, 5), target=10):
    listed = {str(i): number for i, number in enumerate(numbers)}
    return Instance("subset_sum", "tiny", "train", 0, 0, {"target": target, "numbers": listed})


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[0, 1, 4]", 3, ""),
        ("[4, 1, 0]", 3, ""),
        ("{0, 3}", 2, ""),
        ("1->2", 2, ""),
        ("[0, 0, 0, 0, 0]", None, "repeated id"),  # 5 by the published verifier
        ("[1, 1, 0, 0]", None, "repeated id"),
        ("[1, 2, 4]", None, "wrong sum"),
        ("[0, 1]", None, "wrong sum"),
        ("[]", None, "empty set"),
        ("[2, 3, 5]", None, "unknown id"),  # the numbers, not their indices
        ("[-1, 0]", None, "unknown id"),
        ("[0, 1, 4.0]", None, "not a list of integers"),
        ("[0, 1, 4] or [0, 3]", None, "more than one answer"),
    ],
)
def test_answers_by_hand(answer, value, reason):
    verdict = TASK.verify(instance(), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


def test_sums_are_exact_however_large():
    large = instance((10**17, 10**17 + 1, 1), 2 * 10**17 + 1)
    assert TASK.verify(large, "Answer: [0, 1]").feasible
    assert not TASK.verify(large, "Answer: [0, 1, 2]").feasible


def test_the_optimum_by_hand():
    solution = TASK.solve(instance())
    assert (solution.answer, solution.value, solution.proved) == ([0, 1, 4], 3, True)


def test_zeros_are_taken_and_equal_numbers_are_kept_apart():
    assert TASK.solve(instance((0, 4, 0, 4, 9), 8)).answer == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("numbers", "target", "message"),
    [
        ((2, 4), 5, "no numbers add up"),
        ((2, 4), 0, "no numbers add up"),
        ((1.5, 2), 2, "integer"),
        ((-1, 2), 1, "integer"),
        (tuple(2**i for i in range(40)), 2**40 - 1, "exceed"),
    ],
)
def test_the_solver_refuses_what_it_cannot_prove(numbers, target, message):
    with pytest.raises(ValueError, match=message):
        TASK.solve_exact(instance(numbers, target))


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance()) == "subset_sum 10: 0 2, 1 3, 2 7, 3 8, 4 5"


@pytest.mark.parametrize("level", LEVELS)
def test_exact_equals_enumeration_and_instances_are_in_range(level):
    task, ranges = SubsetSum(level), LEVELS[level]
    for index in range({"tiny": 40, "hard": 2, "bench": 0}.get(level, 10)):
        drawn = task.instance("test", index)
        exact = task.solve_exact(drawn)
        assert exact.proved
        assert exact.value == max(map(len, task.feasible_answers(drawn)))
    for index in range(20):
        data = task.instance("val", index).data
        assert ranges.numbers[0] <= len(data["numbers"]) <= ranges.numbers[1]
        assert all(ranges.value[0] <= number <= ranges.value[1] for number in data["numbers"].values())
        assert task.solve(task.instance("val", index)).value >= min(ranges.planted[0], len(data["numbers"]))
