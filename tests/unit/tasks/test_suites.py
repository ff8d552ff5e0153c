"""The benchmark suites: which tasks, in which categories, in which order."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from distmatch.callbacks.rollout import Rollouts, group_scores
from distmatch.data.rollouts import Query
from distmatch.metrics.benchmark import BenchmarkMetrics
from distmatch.rewards import NPPaper, score
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.hamiltonian_cycle import HamiltonianCycle
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.tsp import TSP
from distmatch.tasks.render.suite import PictureSuite

TASKS = Path(__file__).parents[3] / "configs" / "task"
TEXT = {
    "graph": {"maximum_clique", "maximum_independent_set", "graph_coloring"},
    "schedule": {"meeting_scheduling"},
    "partition": {"minimum_bisection"},
    "selection": {"set_cover", "subset_sum", "knapsack"},
    "planning": {"tsp", "hamiltonian_cycle"},
}
PICTURES = {
    "path": {"tsp", "hamiltonian_cycle"},
    "covering": {"vertex_cover", "dominating_set"},
    "partition": {"minimum_bisection", "maximum_cut"},
    "substructure": {"maximum_clique", "maximum_independent_set"},
    "constraint": {"graph_coloring", "feedback_vertex_set"},
}


def suite(name):
    return instantiate(OmegaConf.load(TASKS / f"{name}.yaml"))


@pytest.mark.parametrize(
    ("name", "categories"), [("np_bench", TEXT), ("mm_np_bench", PICTURES), ("curriculum", TEXT)]
)
def test_tasks_and_categories_are_the_papers(name, categories):
    found = {}
    for task, category in suite(name).categories().items():
        found.setdefault(category, set()).add(task)
    assert found == categories


@pytest.mark.parametrize("name", ["np_bench", "mm_np_bench"])
def test_a_thousand_prompts_are_a_hundred_of_each(name):
    task = suite(name)
    places = [task._assignment(index) for index in range(1000)]
    assert Counter(member.name for member, _ in places) == dict.fromkeys(task.categories(), 100)
    assert {own for _, own in places} == set(range(100))


def test_text_is_asked_at_the_bench_level_and_the_curriculum_ends_there():
    assert {member.level for member in suite("np_bench").tasks.values()} == {"bench"}
    stages = suite("curriculum").stages
    assert list(stages) == ["easy", "medium", "hard", "bench"]


def test_categories_of_a_suite_take_the_place_of_the_tasks_own():
    tasks = {"tour": TSP(), "knapsack": Knapsack()}
    assert Mixture(tasks).categories() == {"tsp": "planning", "knapsack": "selection"}
    mixed = Mixture(tasks, categories={"tour": "path"})
    assert mixed.categories() == {"tsp": "path", "knapsack": "selection"}
    with pytest.raises(ValueError, match="categories name tsp; members are tour, knapsack"):
        Mixture(tasks, categories={"tsp": "path"})
    with pytest.raises(ValueError, match="category None of 'tour' must be a name"):
        Mixture(tasks, categories={"tour": None})


def test_scores_are_counted_under_the_categories_of_the_suite():
    task = Mixture({"tsp": TSP(), "hc": HamiltonianCycle()}, categories={"tsp": "path", "hc": "path"})
    instances = [task.instance("test", index) for index in range(4)]
    texts = [task.problem(i).format(task.solve(i).answer) for i in instances]
    outcomes = [score(task, i, text, NPPaper()) for i, text in zip(instances, texts, strict=True)]
    queries = [Query(instance, (1,), place) for place, instance in enumerate(instances)]
    rollouts = Rollouts(0, queries, texts, outcomes, [1] * 4, [False] * 4, group_size=1)

    class Data:
        pass

    data = Data()
    data.task = task
    metrics = BenchmarkMetrics(task.categories(), 1, resamples=0)
    metrics.update(*group_scores(rollouts, data))
    values = metrics.compute()
    assert values["category_path/success_rate"] == 1
    assert not any(key.startswith("category_planning") for key in values)


def test_the_picture_suite_shows_the_instance_that_its_text_spells():
    pictures, words = suite("mm_np_bench"), suite_in_words()
    for index in range(10):
        instance = pictures.instance("test", index)
        shown, told = pictures.render(instance, "natural"), words.render(instance, "natural")
        assert len(shown.images) == 1
        assert not told.images
        assert json.dumps(instance.data) in told.text
        assert json.dumps(instance.data) not in shown.text


def suite_in_words():
    return instantiate(OmegaConf.load(TASKS / "mm_np_bench.yaml"), form="text")


def test_what_cannot_be_drawn_is_no_picture_suite():
    with pytest.raises(ValueError, match="knapsack cannot be drawn"):
        PictureSuite({"knapsack": Knapsack()})
    with pytest.raises(ValueError, match="form='film' is unknown"):
        PictureSuite({"tsp": TSP()}, form="film")


def test_a_text_model_says_that_it_cannot_see(small_policy):
    task = suite("mm_np_bench")
    with pytest.raises(ValueError, match=r"reads text only.*task.form=text"):
        small_policy.encode(task.render(task.instance("test", 0), "natural"))
