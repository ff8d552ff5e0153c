"""Maximum clique: the largest set of vertices that are all adjacent to each other (NP-Bench, Graph)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution, instance_rng
from distmatch.tasks.np.clique_search import noisy_clique, planted_independent_set, search_clique
from distmatch.tasks.np.drawing import between
from distmatch.tasks.np.graphs import adjacency_lists, edge_list, neighbours, relabelled
from distmatch.tasks.np.integer_answers import IntegerAnswerTask, set_fault, set_key
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording


@dataclass(frozen=True)
class _Level:
    vertices: tuple[int, int]
    planted: tuple[int, int]
    # Probabilities of NON-edges: the generator draws the complement, with a planted independent set.
    apart_outside: float = 0.6  # between two outsiders
    apart_across: float = 0.3  # between a planted vertex and an outsider


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level(vertices=(7, 7), planted=(3, 4), apart_outside=0.65, apart_across=0.65),
    # ---- published (papers 2.2) ----
    "easy": _Level((4, 8), (2, 4)),
    "medium": _Level((8, 12), (2, 4)),
    "hard": _Level((12, 16), (2, 6)),
    "bench": _Level((16, 20), (4, 8)),
}


class MaximumClique(IntegerAnswerTask):
    """Maximum clique problem.

    Instance: `{"0": [1, 2], ...}`; `{"0": {"1": 1}}` is read too. Answer: `[0, 1, 2]`, a literal list,
    non-empty, distinct, pairwise adjacent. Value: number of vertices, to be maximised.
    """

    name: ClassVar[str] = "maximum_clique"
    category: ClassVar[str] = "graph"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "list"
    wording: ClassVar[Wording] = Wording(
        title="Maximum Clique Problem",
        description=(
            "Given is an undirected graph as a JSON object that names, for every vertex, the vertices "
            "adjacent to it. Find a clique: a non-empty set of distinct vertices of which any two are "
            "adjacent. The more vertices it has, the better."
        ),
        example_question='{"0": [1, 2], "1": [0, 2, 3], "2": [0, 1], "3": [1]}',
        example_answer="[0, 1, 2]",
        submission="Give the vertices of the clique as a list in square brackets, in any order, none twice.",
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """The complement of a random graph with a planted independent set, under shuffled names."""
        level = LEVELS[self.level]
        n = between(rng, level.vertices)
        planted = min(n, between(rng, level.planted))
        apart = planted_independent_set(rng, n, planted, level.apart_across, level.apart_outside)
        edges = [edge for edge in itertools.combinations(range(n), 2) if edge not in apart]
        return adjacency_lists(n, relabelled(rng, n, edges))

    def compact(self, instance: Instance) -> str:
        """Number of vertices, then the edges: `clique 5: 0-3, 1-2`."""
        graph = neighbours(instance.data)
        return f"clique {len(graph)}: " + ", ".join(f"{a}-{b}" for a, b in edge_list(graph))

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Non-empty, known, distinct, pairwise adjacent."""
        graph = neighbours(instance.data)
        fault = set_fault(numbers, set(graph))
        if fault:
            return fault
        adjacent = all(b in graph[a] for a, b in itertools.combinations(numbers, 2))
        return "" if adjacent else "two vertices are not adjacent"

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Number of vertices."""
        return float(len(numbers))

    def key(self, numbers: Sequence[int]) -> str:
        """The vertices in ascending order."""
        return set_key(numbers)

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: greedy by remaining candidates from each vertex, swaps and extensions."""
        rng = instance_rng("clique solver", instance.fingerprint)
        return self.solution(instance, search_clique(neighbours(instance.data), rng))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        from distmatch.tasks.np.exact import largest_clique  # OR-Tools takes a second to import

        return self.solution(instance, largest_clique(neighbours(instance.data)), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A clique grown with noise."""
        return self.format(noisy_clique(neighbours(instance.data), rng))

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All non-empty cliques."""
        vertices = sorted(neighbours(instance.data))
        for size in range(1, len(vertices) + 1):
            for chosen in itertools.combinations(vertices, size):
                if not self.fault(instance, chosen):
                    yield list(chosen)
