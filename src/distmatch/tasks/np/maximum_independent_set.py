"""Maximum independent set: the largest set of vertices of which no two are adjacent (NP-Bench, Graph)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution, instance_rng
from distmatch.tasks.np.clique_search import (
    complement,
    noisy_clique,
    planted_independent_set,
    search_clique,
)
from distmatch.tasks.np.drawing import between
from distmatch.tasks.np.graphs import Neighbours, neighbours, relabelled
from distmatch.tasks.np.vertex_sets import VertexSetTask
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording


@dataclass(frozen=True)
class _Level:
    vertices: tuple[int, int]
    planted: tuple[int, int]
    outside: float = 0.4  # probability of an edge between two outsiders
    across: float = 0.4  # between a planted vertex and an outsider


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level(vertices=(7, 7), planted=(3, 4), outside=0.65, across=0.5),
    # ---- published (papers 2.2) ----
    "easy": _Level((12, 20), (4, 8)),
    "medium": _Level((20, 30), (8, 12)),
    "hard": _Level((30, 40), (12, 16)),
    "bench": _Level((40, 50), (16, 20)),
}


class MaximumIndependentSet(VertexSetTask):
    """Maximum independent set problem.

    Instance: `{"0": {"1": 1}, ...}`; `{"0": [1, 2]}` is read too. Answer: `[0, 3]`, non-empty, distinct, no
    two adjacent. Value: number of vertices, to be maximised. NP-Engine counts repeated vertices and takes the
    empty set with value 0; both are refused here, as for cliques, and the prompt says so.
    """

    name: ClassVar[str] = "maximum_independent_set"
    word: ClassVar[str] = "independent_set"
    category: ClassVar[str] = "graph"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "set"
    wording: ClassVar[Wording] = Wording(
        title="Maximum Independent Set Problem",
        description=(
            "Given is an undirected graph as a JSON object: for every vertex, the keys of its entry are the "
            "vertices adjacent to it. Find an independent set: a non-empty set of distinct vertices of which "
            "no two are adjacent. The more vertices it has, the better."
        ),
        example_question='{"0": {"1": 1, "2": 1}, "1": {"0": 1}, "2": {"0": 1, "3": 1}, "3": {"2": 1}}',
        example_answer="[1, 2]",
        submission=(
            "Give the vertices of the independent set as a list, in any order, none twice; an empty list is "
            "not valid."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A random graph with a planted independent set, under shuffled names."""
        level = LEVELS[self.level]
        n = between(rng, level.vertices)
        edges = planted_independent_set(rng, n, between(rng, level.planted), level.across, level.outside)
        rows: list[set[int]] = [set() for _ in range(n)]
        for a, b in relabelled(rng, n, sorted(edges)):
            rows[a].add(b)
            rows[b].add(a)
        return {str(node): {str(other): 1 for other in sorted(row)} for node, row in enumerate(rows)}

    def lack(self, graph: Neighbours, chosen: set[int]) -> str:
        """Non-empty, no two adjacent."""
        if not chosen:
            return "empty set"
        return "" if all(graph[node].isdisjoint(chosen) for node in chosen) else "two vertices are adjacent"

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: its search for cliques, on the complement."""
        rng = instance_rng("independent set solver", instance.fingerprint)
        return self.solution(instance, search_clique(complement(neighbours(instance.data)), rng))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        from distmatch.tasks.np.exact_sets import largest_independent_set  # OR-Tools: a second to import

        return self.solution(instance, largest_independent_set(neighbours(instance.data)), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """An independent set grown with noise."""
        return self.format(noisy_clique(complement(neighbours(instance.data)), rng))
