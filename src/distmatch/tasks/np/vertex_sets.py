"""What the problems share whose answer is a set of vertices of an unweighted graph."""

from __future__ import annotations

import itertools
import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance
from distmatch.tasks.np.drawing import between, gumbel, uniform
from distmatch.tasks.np.graphs import Neighbours, adjacency_lists, edge_list, neighbours, relabelled
from distmatch.tasks.np.integer_answers import IntegerAnswerTask, set_fault, set_key

Gains = Callable[[Neighbours, set[int]], dict[int, int]]
"""Vertices that would mend what a set still lacks, each with how much; empty once the set is valid."""

# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
TEMPERATURE = 1.0  # 0 is greedy by gain, large takes any vertex that helps
SLIP = 0.15  # chance that one vertex is forgotten


class VertexSetTask(IntegerAnswerTask):
    """A problem whose answers are sets of distinct vertices; subclasses say what a set lacks."""

    word: ClassVar[str]

    @abstractmethod
    def lack(self, graph: Neighbours, chosen: set[int]) -> str:
        """Why a set of known vertices is not valid, in a few words; empty if it is."""

    def compact(self, instance: Instance) -> str:
        """The problem's word, number of vertices, edges: `vertex_cover 5: 0-3, 1-2`."""
        graph = neighbours(instance.data)
        return f"{self.word} {len(graph)}: " + ", ".join(f"{a}-{b}" for a, b in edge_list(graph))

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Known and distinct vertices that lack nothing; an empty list is judged like any other."""
        graph = neighbours(instance.data)
        fault = set_fault(numbers, set(graph)) if numbers else ""
        return fault or self.lack(graph, set(numbers))

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Number of vertices."""
        return float(len(numbers))

    def key(self, numbers: Sequence[int]) -> str:
        """The vertices in ascending order."""
        return set_key(numbers)

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All valid sets, smaller ones first."""
        graph = neighbours(instance.data)
        for size in range(len(graph) + 1):
            for chosen in itertools.combinations(sorted(graph), size):
                if not self.lack(graph, set(chosen)):
                    yield list(chosen)


@dataclass(frozen=True)
class SparseLevel:
    """Ranges of a connected random graph that can still be read as a picture.

    Attributes:
        vertices: Fewest and most vertices.
        density: Fewest and most edges per vertex, from 1.
    """

    vertices: tuple[int, int]
    density: tuple[float, float]


def sparse_graph(rng: random.Random, level: SparseLevel) -> Mapping[str, object]:
    """A random tree plus random edges under shuffled names: connected, at least as many edges as vertices."""
    n = between(rng, level.vertices)
    count = min(int(n * uniform(rng, level.density)), n * (n - 1) // 2)
    edges = [(rng.randrange(node), node) for node in range(1, n)]
    known = set(edges)
    while len(edges) < count:
        a, b = rng.randrange(n), rng.randrange(n)
        if a < b and (a, b) not in known:
            known.add((a, b))
            edges.append((a, b))
    return adjacency_lists(n, relabelled(rng, n, edges))


def greedy(graph: Neighbours, gains: Gains) -> list[int]:
    """Take the vertex of greatest gain, ties by the smaller name, until the set lacks nothing."""
    chosen: list[int] = []
    while gain := gains(graph, set(chosen)):
        chosen.append(max(gain, key=lambda node, gain=gain: (gain[node], -node)))
    return chosen


def noisy_greedy(graph: Neighbours, gains: Gains, rng: random.Random) -> list[int]:
    """The demonstration policy: gain / TEMPERATURE plus Gumbel noise, and now and then one is forgotten."""
    chosen: list[int] = []
    while gain := gains(graph, set(chosen)):
        score = {node: gain[node] / TEMPERATURE + gumbel(rng) for node in sorted(gain)}
        chosen.append(max(score, key=lambda node, score=score: score[node]))
    if len(chosen) > 1 and rng.random() < SLIP:
        chosen.pop(rng.randrange(len(chosen)))
    return chosen


def cyclic_core(graph: Neighbours, removed: Collection[int] = ()) -> Neighbours:
    """What is left when ends of paths are taken off again and again: empty for a forest, else all cycles.

    Args:
        graph: Vertices and neighbours.
        removed: Vertices to leave out from the start.
    """
    core = {node: others.difference(removed) for node, others in graph.items() if node not in removed}
    ends = [node for node, others in core.items() if len(others) <= 1]
    while ends:
        node = ends.pop()
        for other in core.pop(node):
            core[other].remove(node)
            if len(core[other]) == 1:
                ends.append(other)
    return core
