"""Minimum feedback vertex set: the fewest vertices that lie on every cycle (MM-NP-Bench, Constraint)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution
from distmatch.tasks.np.graphs import Neighbours, neighbours
from distmatch.tasks.np.vertex_sets import (
    SparseLevel,
    VertexSetTask,
    cyclic_core,
    greedy,
    noisy_greedy,
    sparse_graph,
)
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording

LEVELS: Mapping[str, SparseLevel] = {
    # ---- all ours: MM-NP-Bench publishes no ranges ----
    "tiny": SparseLevel(vertices=(7, 7), density=(1.4, 1.9)),
    "easy": SparseLevel((10, 15), (1.4, 1.8)),
    "medium": SparseLevel((16, 24), (1.5, 1.9)),
    "hard": SparseLevel((25, 35), (1.5, 1.9)),
    "bench": SparseLevel((40, 50), (1.5, 1.8)),
}


class FeedbackVertexSet(VertexSetTask):
    """Minimum feedback vertex set problem, undirected.

    Instance: `{"0": [1, 2], ...}`; `{"0": {"1": 1}}` is read too. Answer: `[0, 3]`, a literal list, distinct,
    the graph without them is a forest. Value: number of vertices, to be minimised. Repeated vertices are
    refused here; the published verifier drops them. All vertices are a valid, poor answer; the empty list is
    valid for a forest only, and every instance that is drawn has a cycle.
    """

    name: ClassVar[str] = "feedback_vertex_set"
    word: ClassVar[str] = "feedback_vertex_set"
    category: ClassVar[str] = "constraint"
    sense: ClassVar = "min"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "list"
    wording: ClassVar[Wording] = Wording(
        title="Minimum Feedback Vertex Set Problem",
        description=(
            "Given is an undirected graph as a JSON object that names, for every vertex, the vertices "
            "adjacent to it. Find a feedback vertex set: a set of distinct vertices such that no cycle is "
            "left in the graph once they and their edges are removed. The fewer vertices it has, the better."
        ),
        example_question='{"0": [1, 2], "1": [0, 2, 3], "2": [0, 1, 3], "3": [1, 2]}',
        example_answer="[1]",
        submission="Give the vertices to remove as a list in square brackets, in any order, none twice.",
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A sparse connected random graph; with as many edges as vertices it has a cycle."""
        return sparse_graph(rng, LEVELS[self.level])

    def lack(self, graph: Neighbours, chosen: set[int]) -> str:
        """A vertex of every cycle."""
        return "a cycle is left" if cyclic_core(graph, chosen) else ""

    def solve(self, instance: Instance) -> Solution:
        """The paper's heuristic: remove the vertex of highest degree, then put back what is not needed."""
        graph = neighbours(instance.data)
        removed = greedy(graph, _on_cycles)
        for node in removed[:]:  # from the first removed: the later ones may do without it
            rest = [other for other in removed if other != node]
            if not cyclic_core(graph, rest):
                removed = rest
        return self.solution(instance, sorted(removed))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        from distmatch.tasks.np.exact_sets import smallest_feedback_vertex_set  # OR-Tools: a second to import

        return self.solution(instance, smallest_feedback_vertex_set(neighbours(instance.data)), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A set by noisy greedy."""
        return self.format(noisy_greedy(neighbours(instance.data), _on_cycles, rng))


def _on_cycles(graph: Neighbours, chosen: set[int]) -> dict[int, int]:
    """Vertices between or on the cycles that are left, with their degree there."""
    return {node: len(others) for node, others in cyclic_core(graph, chosen).items()}
