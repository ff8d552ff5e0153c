"""What every NP problem keeps at its tiny level, beside the contract of all tasks in tests/contracts."""

import json
import random
import re

import pytest

from distmatch.modules.tiny import vocabulary
from distmatch.tasks.base import Instance
from distmatch.tasks.records import Problems

NAMES = (
    "dominating_set",
    "feedback_vertex_set",
    "graph_coloring",
    "hamiltonian_cycle",
    "knapsack",
    "maximum_clique",
    "maximum_cut",
    "maximum_independent_set",
    "meeting_scheduling",
    "minimum_bisection",
    "set_cover",
    "subset_sum",
    "tsp",
    "vertex_cover",
)


@pytest.fixture(params=NAMES)
def task(request):
    return Problems().get(request.param)


def test_the_example_of_the_prompt_is_valid(task):
    example = Instance(task.name, "tiny", "train", 0, 0, json.loads(task.wording.example_question))
    assert task.verify(example, f"Answer: {task.wording.example_answer}").feasible


def test_compact_prompts_are_short_and_use_known_words(task):
    words = set(vocabulary())
    for index in range(60):
        prompt = re.sub(r"[,:\[\]]", " ", task.compact(task.instance("train", index))).split()
        assert words.issuperset(prompt) and len(prompt) <= 60


def test_demonstrations_leave_something_to_learn(task):
    rng = random.Random(0)
    drawn = [task.instance("train", index) for index in range(100)]
    verdicts = [task.verify(one, task.demonstrate(one, rng)) for one in drawn]
    assert 70 < sum(verdict.feasible for verdict in verdicts) < 100
    best = [
        verdict.value == task.solve_exact(one).value for one, verdict in zip(drawn, verdicts, strict=True)
    ]
    assert 5 < sum(best) < 90
