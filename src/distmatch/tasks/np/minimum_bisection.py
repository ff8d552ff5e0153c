"""Minimum bisection: two sides of equal size with least weight between them (NP-Bench, Partition)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution, instance_rng
from distmatch.tasks.np.cuts import (
    Weights,
    cut_weight,
    edge_words,
    matrix,
    matrix_weights,
    sides_fault,
    sides_key,
    two_sides,
)
from distmatch.tasks.np.drawing import between, gumbel, shuffled
from distmatch.tasks.np.nested_answers import NestedAnswerTask, Row
from distmatch.tasks.prompts import Wording

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class _Plain:
    """Independent random edges."""

    vertices: tuple[int, int]
    edge_probability: float
    weight: tuple[int, int]


@dataclass(frozen=True)
class _Communities:
    """NP-Engine's "hell mode": three communities, of which a bisection has to split one."""

    vertices: int
    noise: float  # probability of a noise edge where there is none yet


LEVELS: Mapping[str, _Plain | _Communities] = {
    # ---- ours, for the tiny model ----
    "tiny": _Plain((8, 8), 0.5, (1, 9)),
    # ---- ours, small enough for a picture with its weights on the lines ----
    "small": _Plain((10, 14), 0.4, (1, 9)),
    # ---- published (papers 2.2) ----
    "easy": _Communities(42, 0.1),
    "medium": _Communities(45, 0.1),
    "hard": _Communities(45, 0.02),
    "bench": _Communities(50, 0.02),
}
INSIDE, INSIDE_WEIGHT = 0.9, (8, 10)
WEAK, WEAK_WEIGHT = 0.03, (1, 2)  # A-B and A-C; the probability is ours, read off published instances
BRIDGE_SHARE, BRIDGE_WEIGHT = 1.2, (3, 5)  # B-C outweighs the weak links by this factor
TRAITORS, TRAITOR_LINKS, TRAITOR_WEIGHT = 3, 3, (9, 10)  # links to each of B and C; counts are ours, as above
TRAITOR_INSIDE, TRAITOR_INSIDE_WEIGHT = 0.2, (1, 3)  # ours, as above
NOISE_WEIGHT = (1, 6)
STARTS = 8
ENUMERATION_LIMIT = 12  # vertices; faster than CP-SAT up to here
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
TEMPERATURE = 4.0  # 0 adds the vertex that is tied most to the side, large at random
SLIP = 0.12  # chance that one vertex is on the wrong side, which unbalances them


class MinimumBisection(NestedAnswerTask):
    """Balanced minimum bisection problem, which NP-Bench calls minimum cut.

    Instance: `{"0": {"0": 0, "1": weight, ...}, ...}`, weight 0 or no entry for no edge. Answer:
    `[[0, 1], [2, 3]]`, two sides that hold every vertex once and whose sizes are equal, or differ by one if
    the number of vertices is odd. Value: weight between the sides, to be minimised.
    """

    name: ClassVar[str] = "minimum_bisection"
    category: ClassVar[str] = "partition"
    sense: ClassVar = "min"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    wording: ClassVar[Wording] = Wording(
        title="Balanced Minimum Bisection Problem",
        description=(
            "Given is an undirected graph with weighted edges as a JSON object: `question[i][j]` is the "
            "weight of the edge between vertices i and j, the same in both directions; 0, or no entry, "
            "means that there is no edge. Divide the vertices into two sides of equal size; if the number "
            "of vertices is odd, the sizes differ by one. The smaller the sum of the weights of the edges "
            "between the two sides, the better."
        ),
        example_question='{"0": {"1": 3, "2": 1}, "1": {"0": 3, "2": 2, "3": 2}, '
        '"2": {"0": 1, "1": 2, "3": 3}, "3": {"1": 2, "2": 3}}',
        example_answer="[[0, 1], [2, 3]]",
        submission=(
            "Give both sides as a list of two lists in square brackets, in any order; every vertex is in "
            "exactly one of them."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Independent edges or three communities, under shuffled names, as a dense matrix."""
        level = LEVELS[self.level]
        if isinstance(level, _Plain):
            n = between(rng, level.vertices)
            weights = _plain(rng, n, level)
        else:
            n = level.vertices
            weights = _communities(rng, n, level)
        names = shuffled(rng, range(n))
        rows = matrix(names, weights)
        return {str(a): {str(b): rows[a][b] for b in range(n)} for a in range(n)}

    def compact(self, instance: Instance) -> str:
        """Number of vertices, then the weight of each edge: `bisection 4: 0-3=2, 1-2=7`."""
        return f"bisection {len(instance.data)}: " + edge_words(matrix_weights(instance.data))

    def fault(self, instance: Instance, numbers: Sequence[Row]) -> str:
        """Two sides, every vertex once, sizes as equal as can be."""
        fault = sides_fault(numbers, _vertices(instance))
        if fault:
            return fault
        return "" if abs(len(numbers[0]) - len(numbers[1])) <= 1 else "unequal sides"

    def value(self, instance: Instance, numbers: Sequence[Row]) -> float:
        """Weight between the sides."""
        return cut_weight(matrix_weights(instance.data), numbers)

    def key(self, numbers: Sequence[Row]) -> str:
        """Both sides as sets, in one order."""
        return sides_key(numbers)

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: simulated annealing over swaps with the best partner."""
        vertices = _vertices(instance)
        rows = matrix(vertices, matrix_weights(instance.data))
        side = _anneal(rows, instance_rng("bisection solver", instance.fingerprint))
        return self.solution(instance, two_sides(vertices, {vertices[position] for position in side}))

    def solve_exact(self, instance: Instance) -> Solution:
        """Enumeration up to 12 vertices, CP-SAT beyond, which proves sparse graphs and small dense ones.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        vertices = _vertices(instance)
        if len(vertices) <= ENUMERATION_LIMIT:
            weights = matrix_weights(instance.data)
            best = min(self.feasible_answers(instance), key=lambda sides: cut_weight(weights, sides))
            return self.solution(instance, best, proved=True)
        from distmatch.tasks.np.exact_structures import lightest_bisection  # OR-Tools is slow to import

        hint = min(self.solve(instance).answer, key=len)  # type: ignore[arg-type]  # two sides
        side = lightest_bisection(vertices, matrix_weights(instance.data), hint)
        return self.solution(instance, two_sides(vertices, side), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A bisection by noisy greedy growth of one side."""
        vertices = _vertices(instance)
        side = _grown(matrix(vertices, matrix_weights(instance.data)), rng)
        sides = two_sides(vertices, {vertices[position] for position in side})
        if rng.random() < SLIP and len(sides[1]) > 1:
            sides[0].append(sides[1].pop(rng.randrange(len(sides[1]))))
        return self.format(sides)

    def feasible_answers(self, instance: Instance) -> Iterator[list[list[int]]]:
        """All bisections, the side of the smallest vertex first."""
        vertices = _vertices(instance)
        n = len(vertices)
        for size in {max(1, n // 2), n - n // 2}:
            for chosen in itertools.combinations(vertices[1:], size - 1):
                yield two_sides(vertices, {vertices[0], *chosen})


def _vertices(instance: Instance) -> list[int]:
    return sorted(map(int, instance.data))


def _plain(rng: random.Random, n: int, level: _Plain) -> Weights:
    weights: Weights = {}
    while not weights:
        pairs = itertools.combinations(range(n), 2)
        kept = [pair for pair in pairs if rng.random() < level.edge_probability]
        weights = {pair: between(rng, level.weight) for pair in kept}
    return weights


def _communities(rng: random.Random, n: int, level: _Communities) -> Weights:
    """Communities A, B and C, with a decoy bridge B-C, traitors in A and noise everywhere."""
    third = n // 3
    a, b, c = range(third), range(third, 2 * third), range(2 * third, n)
    weights: Weights = {}
    for community in (a, b, c):
        for u, v in itertools.combinations(community, 2):
            if rng.random() < (TRAITOR_INSIDE if u < TRAITORS else INSIDE):  # traitors are the first of A
                weights[u, v] = between(rng, TRAITOR_INSIDE_WEIGHT if u < TRAITORS else INSIDE_WEIGHT)
    weights |= _weak_links_and_bridge(rng, a, b, c)
    for traitor, side in itertools.product(range(TRAITORS), (b, c)):
        for other in shuffled(rng, side)[:TRAITOR_LINKS]:
            weights[traitor, other] = between(rng, TRAITOR_WEIGHT)
    for pair in itertools.combinations(range(n), 2):
        if rng.random() < level.noise and pair not in weights:
            weights[pair] = between(rng, NOISE_WEIGHT)
    return weights


def _weak_links_and_bridge(rng: random.Random, a: range, b: range, c: range) -> Weights:
    """Light edges A-B and A-C, and heavier ones B-C until these outweigh them by the given factor."""
    pairs = itertools.product(a, [*b, *c])
    weights: Weights = {pair: between(rng, WEAK_WEIGHT) for pair in pairs if rng.random() < WEAK}
    missing = BRIDGE_SHARE * sum(weights.values())
    for pair in shuffled(rng, list(itertools.product(b, c))):
        if missing < 0:
            break
        weights[pair] = between(rng, BRIDGE_WEIGHT)
        missing -= weights[pair]
    return weights


def _anneal(rows: Matrix, rng: random.Random) -> list[int]:
    """One side by annealing from T = cut / 10 down to T / e^3, from several starts; the best seen.

    A move swaps a random vertex with the one of the other side that makes the cut lightest. NP-Engine cools
    by 0.9995 until its time is up. From one start that stays with the community that it splits first, hence
    the restarts, as many as NP-Engine gives the Kernighan-Lin method.
    """
    n = len(rows)
    if n < 2:
        return []
    runs = []
    for _ in range(STARTS):
        order = shuffled(rng, range(n))
        runs.append(_annealed(rows, [order[: n // 2], order[n // 2 :]], rng))
    return min(runs)[1]


def _annealed(rows: Matrix, sides: list[list[int]], rng: random.Random) -> tuple[float, list[int]]:
    """Weight and one side of the best bisection of one run; `sides` change in place."""
    # tied[v]: weight from v to the other side minus weight to its own; a swap wins both, less twice the edge.
    tied = [0.0] * len(rows)
    for own, other in (sides, sides[::-1]):
        for v in own:
            tied[v] = sum(rows[v][u] for u in other) - sum(rows[v][u] for u in own)
    steps = min(1_000, len(rows) ** 2 // 2)
    cooling = math.exp(-3 / steps)
    weight = sum(rows[u][v] for u in sides[0] for v in sides[1])
    temperature = max(1e-9, weight / 10)
    lowest, best = weight, list(sides[0])
    for _ in range(steps):
        i = rng.randrange(len(sides[0]))
        u = sides[0][i]
        row = rows[u]
        gain, j = max((tied[v] - 2 * row[v], j) for j, v in enumerate(sides[1]))
        change = -(tied[u] + gain)
        if change <= 0 or rng.random() < math.exp(-change / temperature):
            _swap(rows, sides, tied, i, j)
            weight += change
            if weight < lowest:
                lowest, best = weight, list(sides[0])
        temperature *= cooling
    return lowest, best


def _swap(rows: Matrix, sides: list[list[int]], tied: list[float], i: int, j: int) -> None:
    """Exchange the i-th vertex of one side with the j-th of the other, in place."""
    u, v = sides[0][i], sides[1][j]
    for x in sides[0]:
        tied[x] += 2 * (rows[x][u] - rows[x][v])
    for y in sides[1]:
        tied[y] += 2 * (rows[y][v] - rows[y][u])
    tied[u], tied[v] = -tied[u], -tied[v]  # minus twice the edge above, plus twice the edge: still cut
    sides[0][i], sides[1][j] = v, u


def _grown(rows: Matrix, rng: random.Random) -> list[int]:
    """The demonstration policy: grow one side from a random vertex, by weight to it, with Gumbel noise."""
    n = len(rows)
    side = [rng.randrange(n)]
    while len(side) < n // 2:
        left = [v for v in range(n) if v not in side]
        side.append(max(left, key=lambda v: sum(rows[v][u] for u in side) / TEMPERATURE + gumbel(rng)))
    return side
