"""Cliques grown, improved and hidden: shared by maximum clique and, on the complement, independent set."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from distmatch.tasks.np.drawing import gumbel, pick
from distmatch.tasks.np.graphs import Neighbours

# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
TEMPERATURE = 1.0  # 0 grows by the vertex with most candidates left, large at random
STOP = 0.2  # chance to stop growing after each vertex
SLIP = 0.12  # chance that one vertex too many is named
SWAPS = 3  # swaps of the local search per vertex and start


def complement(graph: Neighbours) -> Neighbours:
    """Vertices are adjacent where they were not: its cliques are the independent sets of `graph`."""
    return {node: set(graph) - others - {node} for node, others in graph.items()}


def planted_independent_set(
    rng: random.Random, n: int, planted: int, across: float, outside: float
) -> set[tuple[int, int]]:
    """Edges of NP-Engine's random graph: none inside the planted vertices, one or more from each other.

    Args:
        rng: Source of randomness.
        n: Number of vertices.
        planted: The vertices 0..planted-1 are independent.
        across: Probability of an edge between a planted vertex and an outsider.
        outside: Probability of an edge between two outsiders.
    """
    edges: set[tuple[int, int]] = set()
    for a, b in itertools.combinations(range(n), 2):
        probability = 0.0 if b < planted else across if a < planted else outside
        if rng.random() < probability:
            edges.add((a, b))
    for outsider in range(planted, n):
        if not any((a, outsider) in edges for a in range(planted)):
            edges.add((rng.randrange(planted), outsider))
    return edges


def search_clique(graph: Neighbours, rng: random.Random) -> list[int]:
    """NP-Engine's heuristic: greedy by remaining candidates from each vertex, swaps and extensions."""
    best: list[int] = []
    for start in graph:
        clique = _local_search(graph, _greedy(graph, start), rng)
        if len(clique) > len(best):
            best = clique
    return sorted(best)


def noisy_clique(graph: Neighbours, rng: random.Random) -> list[int]:
    """The demonstration policy: noisy greedy growth that may stop early or add a vertex too many."""

    def choose(nodes: set[int], degree: Callable[[int], float]) -> int:
        return max(sorted(nodes), key=lambda node: degree(node) / TEMPERATURE + gumbel(rng))

    clique = [choose(set(graph), lambda node: len(graph[node]) / 2)]
    candidates = set(graph[clique[0]])
    while candidates and rng.random() > STOP:
        clique.append(choose(candidates, lambda node, left=candidates: len(graph[node] & left)))
        candidates = candidates & graph[clique[-1]]
    misfits = sorted(node for node in graph if node not in clique and not graph[node].issuperset(clique))
    if misfits and rng.random() < SLIP:
        clique.insert(rng.randrange(len(clique) + 1), pick(rng, misfits))
    return clique


def _greedy(graph: Neighbours, start: int) -> set[int]:
    """Add the candidate that keeps most candidates, until none is left."""
    clique, candidates = {start}, set(graph[start])
    while candidates:
        best = max(candidates, key=lambda node: (len(graph[node] & candidates), -node))
        clique.add(best)
        candidates &= graph[best]
    return clique


def _local_search(graph: Neighbours, clique: set[int], rng: random.Random) -> set[int]:
    """Extend where possible, otherwise swap a vertex for one that misses only it; returns the best seen."""
    best = set(clique)
    for _ in range(SWAPS * len(graph)):
        missing = {node: clique - graph[node] for node in sorted(graph) if node not in clique}
        free = [node for node, lacks in missing.items() if not lacks]
        swaps = [node for node, lacks in missing.items() if len(lacks) == 1]
        if not free and not swaps:
            break
        node = pick(rng, free or swaps)
        clique = (clique - missing[node]) | {node}
        if len(clique) > len(best):
            best = set(clique)
    return best
