"""Every text task's solutions can be drawn, at every level, from the verdict's key."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from distmatch.tasks.base import Instance, Task
from distmatch.tasks.lab import Lab
from distmatch.tasks.np.dominating_set import DominatingSet
from distmatch.tasks.np.feedback_vertex_set import FeedbackVertexSet
from distmatch.tasks.np.graph_coloring import GraphColoring
from distmatch.tasks.np.hamiltonian_cycle import HamiltonianCycle
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.maximum_clique import MaximumClique
from distmatch.tasks.np.maximum_independent_set import MaximumIndependentSet
from distmatch.tasks.np.tsp import TSP
from distmatch.tasks.np.vertex_cover import VertexCover
from distmatch.tasks.render.solved import (
    ACCENT,
    PAINTERS,
    answer_of_key,
    draw_side_by_side,
    draw_solution,
    to_pixels,
)

TASKS = (
    *(TSP, Knapsack, GraphColoring, MaximumClique, HamiltonianCycle),
    *(MaximumIndependentSet, VertexCover, DominatingSet, FeedbackVertexSet),
)
CLOSED = (TSP, HamiltonianCycle)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("level", ["tiny", "easy"])
def test_reference_solutions_are_drawn(kind: type[Task], level: str) -> None:
    task = kind(level=level)
    instance = task.instance("train", 0)
    answer = task.reference(instance).answer
    figure = draw_solution(instance, answer, "reference: 12")
    pixels = to_pixels(figure)
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
    assert min(pixels.shape[:2]) > 200
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10
    assert figure.axes[0].get_title() == "reference: 12"
    assert np.array_equal(pixels, to_pixels(draw_solution(instance, answer, "reference: 12")))


@pytest.mark.parametrize("kind", TASKS)
def test_a_key_draws_what_the_answer_draws(kind: type[Task]) -> None:
    """Keys are canonical, so equal solutions have equal pictures."""
    task = kind()
    instance = task.instance("train", 1)
    answer = task.reference(instance).answer
    key = task.verify(instance, task.format(answer)).key
    again = task.format([*answer_of_key(key), *([answer_of_key(key)[0]] if kind in CLOSED else [])])
    assert task.verify(instance, again).key == key
    pairs = [(answer_of_key(key), "best"), (answer, "reference")]
    left, right = draw_side_by_side(instance, pairs).axes
    if kind not in CLOSED:  # a tour is closed in the answer and open in the key, and may run the other way
        assert len(left.texts) == len(right.texts)


def test_an_edge_of_the_tour_shows_its_length() -> None:
    data = {"0": {"1": 3, "2": 5}, "1": {"0": 3, "2": 4}, "2": {"0": 5, "1": 4}}
    figure = draw_solution(Instance("tsp", "tiny", "val", 0, 0, data), [0, 1, 2, 0], "tour")
    assert {text.get_text() for text in figure.axes[0].texts} >= {"3", "4", "5", "0", "1", "2"}


def test_packed_items_lie_along_the_capacity() -> None:
    items = {"0": {"weight": 4, "value": 9}, "1": {"weight": 5, "value": 2}, "2": {"weight": 3, "value": 3}}
    instance = Instance("knapsack", "tiny", "val", 0, 0, {"capacity": 8, "items": items})
    panel = draw_solution(instance, [2, 0], "packed").axes[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in panel.patches]
    assert bars == [(0, 4), (4, 3), (0, 5)]  # best value for weight first, then what was left out
    assert "packed: value 12, weight 7" in {text.get_text() for text in panel.texts}


def test_equal_partitions_have_equal_colours() -> None:
    instance = Instance("graph_coloring", "tiny", "val", 0, 0, {"0": [1], "1": [0, 2], "2": [1]})
    one, other = (draw_solution(instance, answer, "") for answer in ([1, 2, 1], [7, 3, 7]))
    assert np.array_equal(to_pixels(one), to_pixels(other))


def test_both_published_graph_forms_and_a_clique_of_one() -> None:
    lists = Instance("maximum_clique", "tiny", "val", 0, 0, {"0": [1], "1": [0], "2": []})
    weights = Instance("maximum_clique", "tiny", "val", 0, 0, {"0": {"1": 1}, "1": {"0": 1}, "2": {}})
    assert np.array_equal(*(to_pixels(draw_solution(i, [0, 1], "")) for i in (lists, weights)))
    assert draw_solution(lists, [2], "") is not None


def test_other_tasks_have_no_pictures() -> None:
    lab = Lab()
    assert draw_solution(lab.instance("val", 0), [1], "") is None
    assert [answer_of_key(key) for key in (None, "", "abacb", "1,2,x", "3-1-2", "4")] == [
        *(None, None, None, None),
        *([3, 1, 2], [4]),
    ]


def test_nothing_global_is_touched() -> None:
    instance = TSP().instance("train", 0)
    draw_solution(instance, TSP().reference(instance).answer, "")
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    assert ACCENT.startswith("#")
    assert set(PAINTERS) == {kind.name for kind in TASKS}
