"""The level of a training prompt is a pure function of its index."""

from functools import partial

import pytest

from distmatch.data import rollouts
from distmatch.tasks import curriculum
from distmatch.tasks.curriculum import Curriculum
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.tsp import TSP

STARTS = {"tiny": 0, "easy": 10, "medium": 25}


def made(**settings):
    settings = {"starts": STARTS, "held_out": "hard"} | settings
    return Curriculum({"tsp": TSP, "knapsack": partial(Knapsack, seed=3)}, **settings)


def test_training_gets_harder_at_the_named_prompts():
    task = made()
    levels = [task.instance("train", index).level for index in range(40)]
    assert levels == ["tiny"] * 10 + ["easy"] * 15 + ["medium"] * 15
    assert [task.instance("train", index).task for index in range(4)] == ["tsp", "knapsack"] * 2


def test_every_run_seed_starts_at_the_easiest_level():
    assert curriculum.STREAM == rollouts.STREAM
    task = made()
    for seed in (1, 7):
        assert task.instance("train", seed * rollouts.STREAM).level == "tiny"
        assert task.instance("train", seed * rollouts.STREAM + 12).level == "easy"


def test_held_out_prompts_stay_at_one_level():
    task = made()
    assert {task.instance(split, i).level for split in ("val", "test") for i in (0, 12, 99)} == {"hard"}


def test_any_order_gives_the_same_instances_and_none_repeats():
    forwards = [made().instance("train", index).id for index in range(40)]
    other = made()
    assert [other.instance("train", index).id for index in reversed(range(40))] == forwards[::-1]
    assert len(set(forwards)) == 40


def test_instances_go_to_their_own_member():
    task = made()
    for index in (0, 1, 11, 30):
        instance = task.instance("train", index)
        problem = task.problem(instance)
        assert (problem.name, problem.level) == (instance.task, instance.level)
        solution = task.solve(instance)
        assert task.verify(instance, problem.format(solution.answer)).value == solution.value
        assert task.reference(instance).value == solution.value
        assert task.render(instance, "natural") == problem.render(instance, "natural")
    assert task.instance("train", 1).seed == 3
    with pytest.raises(ValueError, match="level 'bench' is not of this curriculum"):
        task.problem(TSP("bench").instance("test", 0))
    for refused in (task.generate, task.format):
        with pytest.raises(TypeError):
            refused(None)


def test_categories_and_weights_are_passed_on():
    task = made(categories={"tsp": "path"}, weights={"tsp": 3, "knapsack": 1})
    assert task.categories() == {"tsp": "path", "knapsack": "selection"}
    assert [task.instance("val", i).task for i in range(4)].count("tsp") == 3


@pytest.mark.parametrize(
    "starts", [{}, {"tiny": 5}, {"tiny": 0, "easy": 0}, {"tiny": 0, "easy": 9, "hard": 3}]
)
def test_starts_must_ascend_from_zero(starts):
    with pytest.raises(ValueError, match="ascending prompts, the first at 0"):
        made(starts=starts)


def test_starts_must_be_whole_numbers_and_levels_known():
    with pytest.raises(ValueError, match="whole number"):
        made(starts={"tiny": 0, "easy": 0.5})
    with pytest.raises(ValueError, match="level='huge'"):
        made(held_out="huge")
