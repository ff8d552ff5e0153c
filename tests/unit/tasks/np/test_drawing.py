import math
import random
from collections import Counter

from distmatch.tasks.np.drawing import between, gumbel, pick, shuffled, uniform
from distmatch.tasks.np.graphs import adjacency_lists, edge_list, neighbours, relabelled


def test_between_reaches_both_bounds_evenly():
    rng = random.Random(0)
    counts = Counter(between(rng, (3, 5)) for _ in range(3000))
    assert set(counts) == {3, 4, 5}
    assert min(counts.values()) > 900


def test_every_order_is_equally_likely():
    rng = random.Random(0)
    counts = Counter(tuple(shuffled(rng, range(3))) for _ in range(6000))
    assert len(counts) == 6
    assert min(counts.values()) > 850


def test_gumbel_has_the_right_mean_and_chooses_by_softmax():
    rng = random.Random(0)
    draws = [gumbel(rng) for _ in range(20_000)]
    assert abs(sum(draws) / len(draws) - 0.5772) < 0.03
    wins = sum(math.log(3) + gumbel(rng) > gumbel(rng) for _ in range(20_000))
    assert abs(wins / 20_000 - 0.75) < 0.01


def test_uniform_and_pick_stay_inside():
    rng = random.Random(0)
    assert all(1.5 <= uniform(rng, (1.5, 2.0)) < 2.0 for _ in range(100))
    assert {pick(rng, "abc") for _ in range(100)} == set("abc")


def test_graph_forms_agree():
    edges = [(0, 1), (2, 1)]
    data = adjacency_lists(4, edges)
    assert data == {"0": [1], "1": [0, 2], "2": [1], "3": []}
    assert edge_list(neighbours(data)) == [(0, 1), (1, 2)]
    assert neighbours({"0": {"0": 5, "1": 1, "2": 0}, "1": {}, "2": []}) == {0: {1}, 1: {0}, 2: set()}
    assert len(relabelled(random.Random(0), 4, edges)) == 2
