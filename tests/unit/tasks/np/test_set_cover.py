import pytest

from distmatch.rewards import NPGated, NPPaper, score
from distmatch.tasks.base import Instance
from distmatch.tasks.np.set_cover import LEVELS, SetCover

DATA = {
    "U": [0, 1, 2, 3, 4, 5],
    "S": {"0": [0, 1, 2], "1": [2, 3], "2": [0, 4], "3": [3, 4, 5], "4": [1, 2, 5]},
}
GAP = {"U": [0, 1, 2], "S": {"0": [0], "1": [1]}}
TASK = SetCover()


def instance(data=DATA):
    return Instance("set_cover", "tiny", "train", 0, 0, data)


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ("[0, 3]", 2, ""),
        ("[3, 0]", 2, ""),
        ("{0, 3}", 2, ""),
        ("(0, 3)", 2, ""),
        ("0->3", 2, ""),
        ("[0, 3]\nBoth are needed.", 2, ""),
        ("[0, 1, 2, 3, 4]", 5, ""),
        ("[0, 3, 3]", None, "repeated id"),  # 3 by the published verifier
        ("[0, 1]", None, "an element is not covered"),
        ("[]", None, "an element is not covered"),
        ("[0, 5]", None, "unknown id"),
        ("[0, 3, -1]", None, "unknown id"),
        ("0, 3", None, "no answer in an accepted form"),
        ("[0, 3] or [3, 0]", None, "more than one answer"),
        ("Impossible", None, "a cover exists"),
    ],
)
def test_answers_by_hand(answer, value, reason):
    verdict = TASK.verify(instance(), f"Answer: {answer}")
    assert (verdict.value, verdict.reason) == (value, reason)


@pytest.mark.parametrize(
    "word",
    ["Impossible", " Impossible.", "**Impossible**", "\\boxed{Impossible}", "Impossible\nNothing has 2."],
)
def test_impossible_is_the_answer_where_it_is_true(word):
    verdict = TASK.verify(instance(GAP), f"Answer: {word}")
    assert (verdict.feasible, verdict.value, verdict.key, verdict.formatted) == (True, 0, "Impossible", True)
    assert score(TASK, instance(GAP), f"Answer: {word}", NPPaper()).quality == 1


@pytest.mark.parametrize(
    "word", ["impossible", "Impossible?", "It is Impossible", "Impossible [0]", "[Impossible]"]
)
def test_other_words_are_no_answer(word):
    assert not TASK.verify(instance(GAP), f"Answer: {word}").parsed


@pytest.mark.parametrize("answer", ["[0, 1]", "[]", "[0]"])
def test_no_list_is_valid_where_it_is_impossible(answer):
    assert not TASK.verify(instance(GAP), f"Answer: {answer}").feasible


def test_impossible_does_not_pay_where_a_cover_exists():
    outcome = score(TASK, instance(), "Answer: Impossible", NPGated())
    assert (outcome.success, outcome.quality, outcome.reward) == (False, 0, 0)
    assert score(TASK, instance(), "Answer: Impossible", NPPaper()).reward == 0.1


def test_solvers_say_impossible():
    for solution in (TASK.solve(instance(GAP)), TASK.solve_exact(instance(GAP))):
        assert (solution.answer, solution.value, solution.proved) == ("Impossible", 0, True)
        assert TASK.verify(instance(GAP), TASK.format(solution.answer)).feasible


def test_an_empty_universe_is_covered_by_nothing():
    assert TASK.verify(instance({"U": [], "S": {"0": [1]}}), "Answer: []").value == 0
    assert TASK.solve(instance({"U": [], "S": {"0": [1]}})).answer == []


def test_the_order_of_subsets_is_no_difference():
    assert TASK.key([3, 0]) == TASK.key([0, 3]) == "0,3"


def test_the_compact_prompt_by_hand():
    assert TASK.compact(instance()) == "set_cover 6: 0 a b c, 1 c d, 2 a e, 3 d e f, 4 b c f"


def test_exact_equals_enumeration_and_is_never_beaten():
    for index in range(40):
        drawn = TASK.instance("val", index)
        exact = TASK.solve_exact(drawn)
        assert exact.proved
        assert exact.value == min(map(len, TASK.feasible_answers(drawn))) <= TASK.solve(drawn).value


@pytest.mark.parametrize("level", LEVELS)
def test_generated_instances_are_in_range_and_coverable(level):
    task, ranges = SetCover(level), LEVELS[level]
    for index in range(10):
        data = task.instance("test", index).data
        assert ranges.universe[0] <= len(data["U"]) <= ranges.universe[1]
        assert ranges.subsets[0] <= len(data["S"]) <= ranges.subsets[1]
        assert set(data["U"]) == set().union(*data["S"].values())
        assert all(subset == sorted(set(subset)) for subset in data["S"].values())
        assert (
            task.solve(task.instance("test", index)).value
            <= 1.2 * task.solve_exact(task.instance("test", index)).value
        )
