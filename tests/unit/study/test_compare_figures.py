"""The pictures: a map of two axes, arms that are missing, one arm alone; and the running mean."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from PIL import Image

from distmatch.metrics.group_score import GroupScore
from distmatch.study.comparison import statistics
from distmatch.study.comparison.figures import draw_all, draw_grid, grid_axes, smooth
from distmatch.study.comparison.plan import Plan, make_arms
from distmatch.study.comparison.request import Request
from distmatch.study.comparison.results import CURVES, ArmResult, Results
from distmatch.study.comparison.style import PALETTE, colours

N = 4


def replicates(seed: int) -> statistics.Array:
    rng = random.Random(seed)
    scores = []
    for _ in range(5):
        feasible = [rng.random() < 0.7 for _ in range(N)]
        keys = [rng.choice("abc") if ok else None for ok in feasible]
        scores.append(GroupScore("t", "c", feasible, [0.5 * ok for ok in feasible], keys))
    return statistics.Bootstrap(scores, [0], 100).replicates(statistics.contributions(scores))


def results(folder: Path, axes: dict[str, list[object]], missing: int = 0) -> Results:
    arms = tuple(make_arms(axes))
    request = Request(axes, {}, [], [], [0], None, [], None, folder, 1, N, None, 0, 100)
    plan = Plan(request, "a name", folder, arms, (), arms[-1].label)
    start = ArmResult("start", (), replicates(99), {}, None, {}, {}, {}, "start")
    base = replicates(len(arms))
    found = []
    for place, arm in list(enumerate(arms, start=1))[missing:]:
        own = replicates(place)
        crossings = dict.fromkeys(statistics.LADDERS, statistics.Crossing(2, None))
        curves = {column: np.linspace(place, 0, 3)[None] for column in CURVES}
        curves["train/entropy"] = np.full((1, 3), np.nan)  # a loss that does not ask for it
        gap = None if arm.label == plan.baseline else own - base
        found.append(ArmResult(arm.label, (0,), own, {0: own[0]}, gap, crossings, curves, {}, "start"))
    return Results(plan, (start,), tuple(found), N, 5, ())


def test_two_axes_make_a_map_with_every_value_in_its_place(tmp_path):
    found = results(tmp_path, {"algo.weight": [1, 2], "algo.temperature": [0.5, 0.25]}, missing=1)
    assert grid_axes(found) == ("algo.weight", "algo.temperature")
    panel = draw_grid(found).axes[0]
    written = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in panel.texts}
    places = {
        found.plan.arms[1].label: (0, 1),
        found.plan.arms[2].label: (1, 0),
        found.plan.arms[3].label: (1, 1),
    }
    assert written == {
        places[arm.label]: f"{found.figure(arm, 'success_rate').value:.3f}" for arm in found.arms
    }
    assert draw_all(found) == [
        "comparison.png",
        "comparison-ladders.png",
        "comparison-curves.png",
        "comparison-grid.png",
    ]
    assert all(Image.open(file).size[0] > 500 for file in tmp_path.glob("*.png"))


def test_one_arm_and_many_arms_can_be_drawn(tmp_path):
    assert len(draw_all(results(tmp_path, {"algo": ["dmpo"]}))) == 3
    many = results(tmp_path, {"algo.weight": list(range(len(PALETTE) + 1))})
    assert grid_axes(many) is None and len(draw_all(many)) == 3


def test_arms_have_different_colours():
    for count in (1, len(PALETTE), 35):
        assert len({str(colour) for colour in colours(list(map(str, range(count)))).values()}) == count


@pytest.mark.parametrize("window", [1, 2, 3, 6, 9])
def test_the_running_mean_is_over_the_neighbours_that_exist(window):
    values = [1.0, 2.0, float("nan"), 4.0, 8.0, 16.0]
    before, after = window - 1 - (window - 1) // 2, (window - 1) // 2
    for place, found in enumerate(smooth(np.array([values]), window)[0]):
        near = [v for v in values[max(0, place - before) : place + after + 1] if v == v]
        assert (found == pytest.approx(mean(near))) if near else np.isnan(found)
