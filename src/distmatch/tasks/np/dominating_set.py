"""Minimum dominating set: the fewest vertices that have all others next to them (MM-NP-Bench, Covering)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution
from distmatch.tasks.np.graphs import Neighbours, neighbours
from distmatch.tasks.np.vertex_sets import SparseLevel, VertexSetTask, greedy, noisy_greedy, sparse_graph
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording

LEVELS: Mapping[str, SparseLevel] = {
    # ---- all ours: MM-NP-Bench publishes no ranges ----
    "tiny": SparseLevel(vertices=(7, 7), density=(1.1, 1.5)),
    "easy": SparseLevel((10, 15), (1.2, 1.6)),
    "medium": SparseLevel((16, 24), (1.3, 1.7)),
    "hard": SparseLevel((25, 35), (1.4, 1.8)),
    "bench": SparseLevel((40, 50), (1.4, 1.8)),
}


class DominatingSet(VertexSetTask):
    """Minimum dominating set problem.

    Instance: `{"0": [1, 2], ...}`; `{"0": {"1": 1}}` is read too. Answer: `[0, 3]`, a literal list, distinct,
    every vertex in the set or adjacent to it. Value: number of vertices, to be minimised. Repeated vertices
    are refused here; the published verifier drops them. All vertices are a valid, poor answer; no instance
    that is drawn has a vertex which dominates alone.
    """

    name: ClassVar[str] = "dominating_set"
    word: ClassVar[str] = "dominating_set"
    category: ClassVar[str] = "covering"
    sense: ClassVar = "min"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "list"
    wording: ClassVar[Wording] = Wording(
        title="Minimum Dominating Set Problem",
        description=(
            "Given is an undirected graph as a JSON object that names, for every vertex, the vertices "
            "adjacent to it. Find a dominating set: a set of distinct vertices such that every vertex of the "
            "graph is in the set or adjacent to a vertex of the set. The fewer vertices it has, the better."
        ),
        example_question='{"0": [1], "1": [0, 2, 4], "2": [1, 3], "3": [2], "4": [1]}',
        example_answer="[1, 3]",
        submission=(
            "Give the vertices of the dominating set as a list in square brackets, in any order, none twice."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A sparse connected random graph without a vertex that is adjacent to all others."""
        while True:
            data = sparse_graph(rng, LEVELS[self.level])
            if max(len(others) for others in neighbours(data).values()) < len(data) - 1:
                return data

    def lack(self, graph: Neighbours, chosen: set[int]) -> str:
        """Every vertex in the set or next to it."""
        reached = all(node in chosen or not others.isdisjoint(chosen) for node, others in graph.items())
        return "" if reached else "a vertex is not dominated"

    def solve(self, instance: Instance) -> Solution:
        """The paper's heuristic, greedy set cover: the vertex that dominates most that were not yet."""
        return self.solution(instance, sorted(greedy(neighbours(instance.data), _undominated)))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        from distmatch.tasks.np.exact_sets import smallest_dominating_set  # OR-Tools: a second to import

        return self.solution(instance, smallest_dominating_set(neighbours(instance.data)), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A dominating set by noisy greedy."""
        return self.format(noisy_greedy(neighbours(instance.data), _undominated, rng))


def _undominated(graph: Neighbours, chosen: set[int]) -> dict[int, int]:
    """Vertices that would dominate some that are not dominated yet, and how many, themselves included."""
    open_ = {node for node, others in graph.items() if node not in chosen and others.isdisjoint(chosen)}
    gains = {node: len(others & open_) + (node in open_) for node, others in graph.items()}
    return {node: gain for node, gain in gains.items() if gain}
