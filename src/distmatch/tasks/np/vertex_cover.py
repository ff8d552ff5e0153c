"""Minimum vertex cover: the fewest vertices that touch every edge (MM-NP-Bench, Covering)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution
from distmatch.tasks.np.graphs import Neighbours, edge_list, neighbours
from distmatch.tasks.np.vertex_sets import SparseLevel, VertexSetTask, noisy_greedy, sparse_graph
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording

LEVELS: Mapping[str, SparseLevel] = {
    # ---- all ours: MM-NP-Bench publishes no ranges ----
    "tiny": SparseLevel(vertices=(7, 7), density=(1.2, 1.7)),
    "easy": SparseLevel((10, 15), (1.4, 1.8)),
    "medium": SparseLevel((16, 24), (1.5, 1.9)),
    "hard": SparseLevel((25, 35), (1.6, 2.0)),
    "bench": SparseLevel((40, 50), (1.6, 2.0)),
}


class VertexCover(VertexSetTask):
    """Minimum vertex cover problem.

    Instance: `{"0": [1, 2], ...}`; `{"0": {"1": 1}}` is read too. Answer: `[0, 3]`, a literal list, distinct,
    at least one end of every edge. Value: number of vertices, to be minimised. Repeated vertices are refused
    here; the published verifier drops them. All vertices are a valid, poor answer; the empty list is valid
    without edges only, and instances are drawn with more edges than a star has.
    """

    name: ClassVar[str] = "vertex_cover"
    word: ClassVar[str] = "vertex_cover"
    category: ClassVar[str] = "covering"
    sense: ClassVar = "min"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "list"
    wording: ClassVar[Wording] = Wording(
        title="Minimum Vertex Cover Problem",
        description=(
            "Given is an undirected graph as a JSON object that names, for every vertex, the vertices "
            "adjacent to it. Find a vertex cover: a set of distinct vertices such that every edge has at "
            "least one of its two ends in the set. The fewer vertices it has, the better."
        ),
        example_question='{"0": [1, 2], "1": [0, 2, 3], "2": [0, 1], "3": [1]}',
        example_answer="[0, 1]",
        submission="Give the vertices of the cover as a list in square brackets, in any order, none twice.",
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A sparse connected random graph."""
        return sparse_graph(rng, LEVELS[self.level])

    def lack(self, graph: Neighbours, chosen: set[int]) -> str:
        """An end of every edge."""
        covered = all(node in chosen or others <= chosen for node, others in graph.items())
        return "" if covered else "an edge is not covered"

    def solve(self, instance: Instance) -> Solution:
        """The paper's 2-approximation: both ends of every edge of a maximal matching.

        Up to twice the optimum, so answers often beat this reference: use `reference=exact` where a quality
        ratio of at most 1 is wanted.
        """
        graph = neighbours(instance.data)
        cover: set[int] = set()
        for a, b in edge_list(graph):
            if a not in cover and b not in cover:
                cover |= {a, b}
        return self.solution(instance, sorted(cover))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        from distmatch.tasks.np.exact_sets import smallest_vertex_cover  # OR-Tools: a second to import

        return self.solution(instance, smallest_vertex_cover(neighbours(instance.data)), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A cover by noisy greedy."""
        return self.format(noisy_greedy(neighbours(instance.data), _uncovered, rng))


def _uncovered(graph: Neighbours, chosen: set[int]) -> dict[int, int]:
    """Vertices with edges that are not covered yet, and how many."""
    left = {node: len(others - chosen) for node, others in graph.items() if node not in chosen}
    return {node: count for node, count in left.items() if count}
