"""Maximum cut: the two sides with most weight between them (MM-NP-Bench, Partition)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution
from distmatch.tasks.np.cuts import Weights, cut_weight, edge_words, matrix, sides_fault, sides_key, two_sides
from distmatch.tasks.np.drawing import between, gumbel
from distmatch.tasks.np.nested_answers import NestedAnswerTask, Row
from distmatch.tasks.prompts import Wording


@dataclass(frozen=True)
class _Level:
    vertices: tuple[int, int]
    edge_probability: float
    weight: tuple[int, int] = (1, 10)


LEVELS: Mapping[str, _Level] = {
    # ---- ours, all of them: the papers state no ranges for the picture tasks ----
    "tiny": _Level((7, 7), 0.6, weight=(1, 9)),
    "easy": _Level((6, 10), 0.5),
    "medium": _Level((10, 15), 0.4),
    "hard": _Level((15, 20), 0.35),
    "bench": _Level((20, 25), 0.3),
}
ENUMERATION_LIMIT = 10  # vertices; faster than CP-SAT up to here
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
TEMPERATURE = 4.0  # 0 puts each vertex where it cuts more weight, large at random
SLIP = 0.12  # chance that one vertex is forgotten


class MaximumCut(NestedAnswerTask):
    """Maximum cut problem.

    Instance: `{"num_vertices": n, "edges": {"0-1": weight, ...}}`, vertices 0 to n - 1. Answer:
    `[[0, 2], [1]]`, two sides that hold every vertex once; a side may be empty. Value: weight between the
    sides, to be maximised.
    """

    name: ClassVar[str] = "maximum_cut"
    category: ClassVar[str] = "partition"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    wording: ClassVar[Wording] = Wording(
        title="Maximum Cut Problem",
        description=(
            "Given is an undirected graph: its number of vertices n, which are named 0 to n - 1, and the "
            "weight of every edge as a JSON object in which `u-v` names the edge between u and v. Divide "
            "the vertices into two sides. The larger the sum of the weights of the edges between the two "
            "sides, the better."
        ),
        example_question='{"num_vertices": 4, "edges": {"0-1": 3, "0-2": 1, "1-2": 2, "2-3": 5}}',
        example_answer="[[0, 2], [1, 3]]",
        submission=(
            "Give both sides as a list of two lists in square brackets, in any order; every vertex is in "
            "exactly one of them."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A random weighted graph with at least one edge."""
        level = LEVELS[self.level]
        n = between(rng, level.vertices)
        edges: dict[str, int] = {}
        while not edges:
            pairs = itertools.combinations(range(n), 2)
            kept = [pair for pair in pairs if rng.random() < level.edge_probability]
            edges = {f"{a}-{b}": between(rng, level.weight) for a, b in kept}
        return {"num_vertices": n, "edges": edges}

    def compact(self, instance: Instance) -> str:
        """Number of vertices, then the weight of each edge: `maximum_cut 5: 0-3=2, 1-2=7`."""
        return f"maximum_cut {instance.data['num_vertices']}: " + edge_words(_weights(instance))

    def fault(self, instance: Instance, numbers: Sequence[Row]) -> str:
        """Two sides, every vertex once."""
        return sides_fault(numbers, range(instance.data["num_vertices"]))

    def value(self, instance: Instance, numbers: Sequence[Row]) -> float:
        """Weight between the sides."""
        return cut_weight(_weights(instance), numbers)

    def key(self, numbers: Sequence[Row]) -> str:
        """Both sides as sets, in one order."""
        return sides_key(numbers)

    def solve(self, instance: Instance) -> Solution:
        """The paper's heuristic: greedy placement, then the best change of side as long as one helps."""
        vertices = range(instance.data["num_vertices"])
        rows = matrix(vertices, _weights(instance))
        return self.solution(instance, two_sides(vertices, _local_search(rows, _greedy(rows))))

    def solve_exact(self, instance: Instance) -> Solution:
        """Enumeration up to 10 vertices, CP-SAT beyond.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        vertices = range(instance.data["num_vertices"])
        if len(vertices) <= ENUMERATION_LIMIT:
            best = max(self.feasible_answers(instance), key=lambda sides: self.value(instance, sides))
            return self.solution(instance, best, proved=True)
        from distmatch.tasks.np.exact_structures import heaviest_cut  # OR-Tools takes a second to import

        hint = self.solve(instance).answer[0]  # type: ignore[index]  # two sides
        side = heaviest_cut(vertices, _weights(instance), hint)
        return self.solution(instance, two_sides(vertices, side), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A cut by noisy greedy."""
        vertices = range(instance.data["num_vertices"])
        sides = two_sides(vertices, _noisy_greedy(matrix(vertices, _weights(instance)), rng))
        longer = max(sides, key=len)
        if len(longer) > 1 and rng.random() < SLIP:
            longer.pop(rng.randrange(len(longer)))
        return self.format(sides)

    def feasible_answers(self, instance: Instance) -> Iterator[list[list[int]]]:
        """All 2^(n - 1) ways to divide the vertices."""
        vertices = range(instance.data["num_vertices"])
        for size in range(len(vertices)):
            for chosen in itertools.combinations(vertices[1:], size):
                yield two_sides(vertices, set(chosen))


def _weights(instance: Instance) -> Weights:
    listed: Mapping[str, float] = instance.data["edges"]
    weights: Weights = {}
    for name, weight in listed.items():
        a, _, b = name.partition("-")
        weights[min(int(a), int(b)), max(int(a), int(b))] = weight
    return weights


def _greedy(rows: Sequence[Sequence[float]]) -> set[int]:
    """One side: each vertex in turn goes where it cuts more weight."""
    return _placed(rows, lambda gain: gain > 0)


def _noisy_greedy(rows: Sequence[Sequence[float]], rng: random.Random) -> set[int]:
    """The demonstration policy: as greedy, with noise."""
    return _placed(rows, lambda gain: gain / TEMPERATURE + gumbel(rng) - gumbel(rng) > 0)


def _placed(rows: Sequence[Sequence[float]], joins: Callable[[float], bool]) -> set[int]:
    """The vertices that join the second side, asked in turn with what that gains."""
    side: set[int] = set()
    for vertex, row in enumerate(rows):
        gain = sum(-row[other] if other in side else row[other] for other in range(vertex))
        if joins(gain):
            side.add(vertex)
    return side


def _local_search(rows: Sequence[Sequence[float]], side: set[int]) -> set[int]:
    """Let the vertex that gains most change sides until none gains."""
    side = set(side)
    while True:
        gains = [
            sum(w if (other in side) == (vertex in side) else -w for other, w in enumerate(row))
            for vertex, row in enumerate(rows)
        ]
        best = max(range(len(rows)), key=lambda vertex: gains[vertex])
        if gains[best] <= 1e-9:  # real weights: rounding must not loop for ever
            return side
        side ^= {best}
