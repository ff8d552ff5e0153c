import pytest

from distmatch.tasks.base import Instance
from distmatch.tasks.np.knapsack import Knapsack

DATA = {
    "capacity": 20,
    "items": {
        "0": {"weight": 3, "value": 4},
        "1": {"weight": 4, "value": 5},
        "2": {"weight": 7, "value": 10},
        "3": {"weight": 8, "value": 11},
    },
}
INSTANCE = Instance("knapsack", "tiny", "train", 0, 0, DATA)
TASK = Knapsack()


@pytest.mark.parametrize(
    ("answer", "value"),
    [("[0, 2, 3]", 25), ("[3, 0, 2]", 25), ("{1}", 5), ("(0, 1)", 9), ("[1, 2, 3]", 26), ("[0]", 4)],
)
def test_values_by_hand(answer, value):
    verdict = TASK.verify(INSTANCE, f"Answer: {answer}")
    assert (verdict.feasible, verdict.value) == (True, value)


def test_the_optimum_by_hand():
    assert (TASK.solve(INSTANCE).answer, TASK.solve(INSTANCE).value) == ([1, 2, 3], 26)  # weight 19 of 20


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("[]", "empty set"),
        ("[0, 0, 2, 3]", "repeated id"),
        ("[9]", "unknown id"),
        ("[-1]", "unknown id"),
        ("[0, 1, 2, 3]", "too heavy"),
    ],
)
def test_invalid_sets(answer, reason):
    verdict = TASK.verify(INSTANCE, f"Answer: {answer}")
    assert (verdict.feasible, verdict.reason) == (False, reason)


def test_the_order_of_items_is_no_difference():
    assert TASK.key([3, 0, 2]) == TASK.key([0, 2, 3]) == "0,2,3"


def test_bare_lists_are_not_read():
    assert not TASK.verify(INSTANCE, "Answer: 0, 2, 3").parsed


def test_the_exact_solver_handles_odd_items():
    rows = [(0, 3), (50, 99), (20, 1)]
    items = {str(i): {"weight": weight, "value": value} for i, (weight, value) in enumerate(rows)}
    solution = TASK.solve_exact(Instance("knapsack", "tiny", "train", 0, 0, {"capacity": 20, "items": items}))
    assert (sorted(solution.answer), solution.value, solution.proved) == ([0, 2], 4.0, True)


@pytest.mark.parametrize(
    ("capacity", "weight", "message"), [(10, 1.5, "integer"), (10**9, 1, "exceed"), (10, -1, "integer")]
)
def test_the_exact_solver_refuses_what_it_cannot_prove(capacity, weight, message):
    data = {"capacity": capacity, "items": {"0": {"weight": weight, "value": 3}}}
    with pytest.raises(ValueError, match=message):
        TASK.solve_exact(Instance("knapsack", "tiny", "train", 0, 0, data))


def test_planted_items_do_not_sit_in_front():
    task = Knapsack("easy")
    first, second = 0.0, 0.0
    for index in range(100):
        data = task.instance("train", index).data
        ratios = [item["value"] / item["weight"] for item in data["items"].values()]
        half = len(ratios) // 2
        first += sum(ratios[:half]) / half
        second += sum(ratios[-half:]) / half
    assert abs(first - second) < 0.1 * (first + second)
