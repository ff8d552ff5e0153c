"""Ladders against enumeration, intervals against plain loops and known variances."""

from __future__ import annotations

import itertools
import random
from statistics import mean, pstdev

import numpy as np
import pytest

from distmatch.metrics.benchmark import BenchmarkMetrics
from distmatch.metrics.group_score import GroupScore
from distmatch.study.comparison.statistics import (
    Bootstrap,
    best_ladder,
    contributions,
    crossing,
    distinct_ladder,
    estimate,
    figure_names,
    pass_table,
)


def score(rng: random.Random, n: int, task: str = "t", category: str = "c") -> GroupScore:
    feasible = [rng.random() < 0.6 for _ in range(n)]
    qualities = [rng.choice([0.25, 0.5, 0.5, 1.0, 1.25]) if f else 0.0 for f in feasible]
    keys = [rng.choice("abcd") if f else None for f in feasible]
    return GroupScore(task, category, feasible, qualities, keys)


def over_subsets(items, k, figure):
    return mean(figure(chosen) for chosen in itertools.combinations(items, k))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("seed", range(4))
def test_ladders_are_means_over_all_subsets(n, seed):
    group = score(random.Random(seed), n)
    answers = list(zip(group.successes, group.qualities, group.keys, strict=True))
    for k in range(1, n + 1):
        best = over_subsets(answers, k, lambda some: max(quality for _, quality, _ in some))
        distinct = over_subsets(answers, k, lambda some: len({key for ok, _, key in some if ok}))
        passed = over_subsets(answers, k, lambda some: float(any(ok for ok, _, _ in some)))
        assert best_ladder(group.qualities, n)[k - 1] == pytest.approx(best)
        assert distinct_ladder(group.solutions, n)[k - 1] == pytest.approx(distinct)
        assert pass_table(n)[group.feasible, k - 1] == pytest.approx(passed)


def test_ladders_at_their_ends():
    assert distinct_ladder([], 4).tolist() == [0, 0, 0, 0]
    assert distinct_ladder(["a"] * 64, 64) == pytest.approx(np.ones(64))
    assert distinct_ladder(list(map(str, range(64))), 64) == pytest.approx(np.arange(1, 65))
    assert best_ladder([0.0] * 64, 64) == pytest.approx(np.zeros(64))


def some_scores(seed: int, m: int, n: int = 6) -> list[GroupScore]:
    rng = random.Random(seed)
    places = [("tsp", "path"), ("clique", "graph"), ("colouring", "graph")]
    return [score(rng, n, *places[i % 3]) for i in range(m)]


def test_point_figures_are_those_of_the_held_out_metrics():
    scores = some_scores(0, 20)
    metric = BenchmarkMetrics({"tsp": "path", "clique": "graph", "colouring": "graph"}, 6, resamples=0)
    metric.update(*scores)
    expected = metric.compute()
    found = dict(
        zip(figure_names(6), Bootstrap(scores, [0], 100).replicates(contributions(scores))[0], strict=True)
    )
    shared = {name: name for name in expected if name in found and "/" not in name}
    shared |= {"distinct_solutions": "distinct@6", "effective_solutions": "effective_solutions@6"}
    assert {"success_rate", "quality_ratio", "quality_feasible", "pass@4", "best@6"} <= shared.keys()
    for theirs, ours in shared.items():
        assert found[ours] == pytest.approx(float(expected[theirs]), rel=1e-5), theirs


def test_a_resample_is_the_mean_over_the_drawn_prompts_and_seeds():
    seeds = [0, 1, 2]
    tables = {seed: some_scores(seed, 12) for seed in seeds}
    bootstrap = Bootstrap(tables[0], seeds, 100)
    found = bootstrap.replicates({seed: contributions(scores) for seed, scores in tables.items()})
    for row in (1, 57):
        drawn_seeds = [
            s for s, times in zip(seeds, bootstrap._draws[row], strict=True) for _ in range(int(times))
        ]
        assert len(drawn_seeds) == 3
        by_category: dict[str, list[tuple[float, float]]] = {}
        for category, places, counts in bootstrap._tasks:
            drawn = [p for p, times in zip(places, counts[row], strict=True) for _ in range(int(times))]
            assert len(drawn) == len(places) == 4
            pairs = [tables[s][p] for s in drawn_seeds for p in drawn]
            rate = mean(pair.feasible / pair.n for pair in pairs)
            qualities = [
                q for pair in pairs for q, ok in zip(pair.qualities, pair.successes, strict=True) if ok
            ]
            by_category.setdefault(category, []).append((rate, mean(qualities)))
        for place, name in enumerate(("success_rate", "quality_feasible")):
            expected = mean(mean(figures[place] for figures in tasks) for tasks in by_category.values())
            assert found[row, figure_names(6).index(name)] == pytest.approx(expected)


def plain(qualities) -> list[GroupScore]:
    return [GroupScore("t", "c", [True], [float(q)], ["a"]) for q in qualities]


def test_intervals_are_as_wide_as_prompts_and_seeds_make_them():
    rng = np.random.default_rng(0)
    m, column = 400, figure_names(1).index("quality_ratio")
    prompts = 0.5 + 0.1 * rng.standard_normal(m)
    one = Bootstrap(plain(prompts), [0], 4000).replicates({0: contributions(plain(prompts))})
    found = estimate(one[:, column])
    assert found.value == pytest.approx(prompts.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * prompts.std() / m**0.5, rel=0.1)
    effects = [0.3, 0.4, 0.5, 0.6, 0.7, 0.45, 0.55, 0.35]  # seeds that differ, prompts that do not
    tables = {seed: contributions(plain([e] * 50)) for seed, e in enumerate(effects)}
    seeds = Bootstrap(plain([0.5] * 50), range(8), 4000).replicates(tables)[:, column]
    assert seeds[1:].std() == pytest.approx(pstdev(effects) / 8**0.5, rel=0.05)


def test_differences_are_paired_by_prompt_and_seed():
    rng = np.random.default_rng(1)
    column = figure_names(1).index("quality_ratio")
    tables = {seed: rng.uniform(0.2, 0.8, 60) for seed in (3, 5)}
    bootstrap = Bootstrap(plain(tables[3]), [3, 5], 500)
    one, other = (
        bootstrap.replicates({seed: contributions(plain(q + shift)) for seed, q in tables.items()})
        for shift in (0.1, 0.0)
    )
    gap = estimate((one - other)[:, column])
    assert [gap.value, gap.low, gap.high] == pytest.approx([0.1] * 3)
    alone = estimate(one[:, column])
    assert alone.high - alone.low > 0.05


def test_a_seed_that_failed_leaves_the_rest():
    tables = {seed: contributions(plain([seed / 10] * 5)) for seed in (1, 2)}
    bootstrap = Bootstrap(plain([0.5] * 5), [1, 2, 3], 300)
    column = bootstrap.replicates(tables)[:, figure_names(1).index("quality_ratio")]
    assert column[0] == pytest.approx(0.15)
    assert np.isnan(column).any()  # resamples that hold only the seed that is not there
    found = estimate(column)
    assert (found.low, found.high) == pytest.approx((0.1, 0.2))


def test_where_nothing_is_feasible_its_quality_does_not_exist():
    nothing = [GroupScore("t", "c", [False] * 2, [0.0] * 2, [None] * 2)] * 3
    found = Bootstrap(nothing, [0], 100).replicates(contributions(nothing))
    assert np.isnan(estimate(found[:, figure_names(2).index("quality_feasible")]).value)
    assert estimate(found[:, figure_names(2).index("best@2")]).value == 0


def test_the_crossing_is_the_first_k_at_which_the_start_is_better():
    start = np.tile([0.2, 0.4, 0.6, 0.8], (101, 1))
    arm = np.tile([0.3, 0.4, 0.5, 0.6], (101, 1))
    assert (crossing(arm, start).first, crossing(arm, start).clear) == (3, 3)
    arm[1:51, 2] = 0.65  # half of the resamples say otherwise at k = 3
    assert (crossing(arm, start).first, crossing(arm, start).clear) == (3, 4)
    assert (crossing(start, arm).first, crossing(start, start).first) == (1, None)
