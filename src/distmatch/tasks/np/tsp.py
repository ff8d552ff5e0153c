"""Travelling salesman: the shortest closed tour, distances symmetric and not metric (NP-Bench, Planning)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from distmatch.tasks.base import Instance, Solution, instance_rng
from distmatch.tasks.np.drawing import between, gumbel, shuffled
from distmatch.tasks.np.integer_answers import IntegerAnswerTask
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording

Matrix = list[list[float]]


@dataclass(frozen=True)
class _Level:
    cities: tuple[int, int]
    distance: tuple[int, int] = (10, 100)


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level(cities=(6, 6), distance=(1, 9)),
    # ---- published (papers 2.2) ----
    "easy": _Level((10, 20)),
    "medium": _Level((20, 30)),
    "hard": _Level((35, 45)),
    "bench": _Level((45, 55)),
}
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
TEMPERATURE = 1.5  # 0 is nearest neighbour, large is a random tour
SLIP = 0.2  # chance that one city takes the place of another
HELD_KARP_LIMIT = 12  # dynamic programming is faster up to here, CP-SAT beyond


class TSP(IntegerAnswerTask):
    """Travelling salesman problem.

    Instance: `{"0": {"1": distance, ...}, ...}`. Answer: `[0, 2, 1, 0]`, closed, each city once; any city may
    come first. Value: length, to be minimised.
    """

    name: ClassVar[str] = "tsp"
    category: ClassVar[str] = "planning"
    sense: ClassVar = "min"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "sequence"
    wording: ClassVar[Wording] = Wording(
        title="Travelling Salesman Problem",
        description=(
            "Given are cities, named by integers, and the distance between any two of them as a JSON "
            "object: `question[i][j]` is the distance from city i to city j, the same in both directions. "
            "Find a tour that starts at a city, visits every other city exactly once and returns to where "
            "it started. The shorter the tour, the better."
        ),
        example_question='{"0": {"1": 4, "2": 1, "3": 9}, "1": {"0": 4, "2": 6, "3": 2}, '
        '"2": {"0": 1, "1": 6, "3": 3}, "3": {"0": 9, "1": 2, "2": 3}}',
        example_answer="[0, 2, 3, 1, 0]",
        submission=(
            "Give the cities in the order of the tour as a list; the first city stands again at the end."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Independent uniform integer distances."""
        level = LEVELS[self.level]
        n = between(rng, level.cities)
        rows: list[dict[str, int]] = [{} for _ in range(n)]
        for a, b in itertools.combinations(range(n), 2):
            rows[a][str(b)] = rows[b][str(a)] = between(rng, level.distance)
        return {str(a): row for a, row in enumerate(rows)}

    def compact(self, instance: Instance) -> str:
        """The distance of each pair: `tsp: 0-1=7, 0-2=3, 1-2=5`."""
        cities, distances = _matrix(instance.data)
        pairs = itertools.combinations(range(len(cities)), 2)
        return "tsp: " + ", ".join(f"{cities[i]}-{cities[j]}={distances[i][j]}" for i, j in pairs)

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Closed, of length n + 1, each city once."""
        cities = {int(city) for city in instance.data}
        if len(numbers) != len(cities) + 1:
            return "wrong length"
        if numbers[0] != numbers[-1]:
            return "not closed"
        if not cities.issuperset(numbers):
            return "unknown city"
        return "" if len(set(numbers)) == len(cities) else "repeated city"

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Length of the tour."""
        rows = instance.data
        return float(sum(rows[str(a)][str(b)] for a, b in itertools.pairwise(numbers)))

    def key(self, numbers: Sequence[int]) -> str:
        """The tour from its smallest city, in the direction whose second city is smaller."""
        tour = list(numbers[:-1])
        start = tour.index(min(tour))
        tour = tour[start:] + tour[:start]
        if len(tour) > 2 and tour[-1] < tour[1]:
            tour[1:] = tour[:0:-1]
        return "-".join(map(str, tour))

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: best nearest neighbour, annealing by 2-opt, then best-improvement 2-opt."""
        cities, distances = _matrix(instance.data)
        starts = [_nearest_neighbour(distances, start) for start in range(len(cities))]
        tour = min(starts, key=lambda tour: _length(tour, distances))
        tour = _anneal(tour, distances, instance_rng("tsp solver", instance.fingerprint))
        return self._closed(instance, cities, _two_opt(tour, distances))

    def solve_exact(self, instance: Instance) -> Solution:
        """Held-Karp up to 12 cities, CP-SAT beyond.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        cities, distances = _matrix(instance.data)
        if len(cities) <= HELD_KARP_LIMIT:
            return self._closed(instance, cities, _held_karp(distances), proved=True)
        from distmatch.tasks.np.exact import shortest_tour  # OR-Tools takes a second to import

        return self._closed(instance, cities, shortest_tour(distances), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A tour by noisy nearest neighbour."""
        cities, distances = _matrix(instance.data)
        tour = [cities[position] for position in _noisy_neighbour(distances, rng)]
        return self.format([*tour, tour[0]])

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All (n - 1)! / 2 tours, from the smallest city and in one direction."""
        first, *others = sorted(int(city) for city in instance.data)
        for order in itertools.permutations(others):
            if order[0] <= order[-1]:
                yield [first, *order, first]

    def _closed(
        self, instance: Instance, cities: list[int], tour: list[int], proved: bool = False
    ) -> Solution:
        start = tour.index(0)
        order = [cities[position] for position in tour[start:] + tour[:start]]
        return self.solution(instance, [*order, order[0]], proved)


def _matrix(data: Mapping[str, Any]) -> tuple[list[int], Matrix]:
    """City names in order and their distances by position."""
    cities = sorted(int(city) for city in data)
    return cities, [[0 if a == b else data[str(a)][str(b)] for b in cities] for a in cities]


def _length(tour: Sequence[int], distances: Matrix) -> float:
    return sum(distances[tour[i - 1]][tour[i]] for i in range(len(tour)))


def _nearest_neighbour(distances: Matrix, start: int) -> list[int]:
    tour, left = [start], set(range(len(distances))) - {start}
    while left:
        row = distances[tour[-1]]
        tour.append(min(left, key=lambda city: (row[city], city)))
        left.remove(tour[-1])
    return tour


def _noisy_neighbour(distances: Matrix, rng: random.Random) -> list[int]:
    """The demonstration policy: nearest neighbour from city 0 with Gumbel noise, sometimes a city twice."""
    tour, left = [0], list(range(1, len(distances)))
    while left:
        row = distances[tour[-1]]
        tour.append(max(left, key=lambda city: gumbel(rng) - row[city] / TEMPERATURE))
        left.remove(tour[-1])
    if rng.random() < SLIP:
        place, other = shuffled(rng, range(1, len(tour)))[:2]
        tour[place] = tour[other]
    return tour


def _anneal(tour: list[int], distances: Matrix, rng: random.Random) -> list[int]:
    """Simulated annealing by reversals from T = length / 10 down to T / e^2, returning the best tour seen.

    NP-Engine runs at most 20,000 steps of cooling by 0.9999; small instances get fewer steps over the same
    range.
    """
    n = len(tour)
    steps = min(20_000, n**4)
    temperature = _length(tour, distances) / 10
    cooling = math.exp(-2 / steps)
    excess, lowest, best = 0.0, 0.0, tour
    tour = list(tour)
    for _ in range(steps):
        i, j = sorted((rng.randrange(n), rng.randrange(n)))
        change = _reversal_change(tour, distances, i, j)
        if change <= 0 or rng.random() < math.exp(-change / temperature):
            tour[i : j + 1] = tour[i : j + 1][::-1]
            excess += change
            if excess < lowest:
                lowest, best = excess, list(tour)
        temperature *= cooling
    return best


def _reversal_change(tour: list[int], distances: Matrix, i: int, j: int) -> float:
    """Change in length when positions i..j, i <= j, are reversed."""
    before, first, last, after = tour[i - 1], tour[i], tour[j], tour[(j + 1) % len(tour)]
    if before == last:  # the whole tour turns around
        return 0.0
    old = distances[before][first] + distances[last][after]
    return distances[before][last] + distances[first][after] - old


def _two_opt(tour: list[int], distances: Matrix) -> list[int]:
    """Apply the best reversal until none shortens the tour."""
    tour = list(tour)
    moves = list(itertools.combinations(range(len(tour)), 2))
    while moves:
        change, i, j = min((_reversal_change(tour, distances, i, j), i, j) for i, j in moves)
        if change > -1e-9:  # real distances: rounding must not loop for ever
            break
        tour[i : j + 1] = tour[i : j + 1][::-1]
    return tour


def _held_karp(distances: Matrix) -> list[int]:
    """An optimal tour by dynamic programming over (visited set without city 0, last city)."""
    n = len(distances)
    best: dict[tuple[int, int], tuple[float, int]] = {(1 << c, c): (distances[0][c], 0) for c in range(1, n)}
    for visited in range(2, 1 << n, 2):
        members = [c for c in range(1, n) if visited >> c & 1]
        if len(members) < 2:
            continue
        for last in members:
            rest = visited & ~(1 << last)
            best[visited, last] = min(
                (best[rest, c][0] + distances[c][last], c) for c in members if c != last
            )
    full = (1 << n) - 2
    last = min(range(1, n), key=lambda c: best[full, c][0] + distances[c][0])
    tour, visited = [], full
    while last:
        tour.append(last)
        visited, last = visited & ~(1 << last), best[visited, last][1]
    return [0, *tour]
