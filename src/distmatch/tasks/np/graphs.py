"""Graphs in the published JSON forms, as neighbour sets."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from distmatch.tasks.np.drawing import shuffled

Neighbours = dict[int, set[int]]


def neighbours(data: Mapping[str, Any]) -> Neighbours:
    """Read `{"0": [1, 2]}` or `{"0": {"1": 1}}` as an undirected graph without loops.

    Weight 0 stands for no edge, as in the dense published form. An edge listed at one end only is an edge.
    """
    graph: Neighbours = {int(node): set() for node in data}
    for node, listed in data.items():
        if isinstance(listed, Mapping):
            listed = [other for other, weight in listed.items() if weight]
        for other in listed:
            if int(other) != int(node):
                graph[int(node)].add(int(other))
                graph[int(other)].add(int(node))
    return graph


def adjacency_lists(nodes: int, edges: Iterable[tuple[int, int]]) -> dict[str, object]:
    """The published form `{"0": [1, 2]}` with sorted neighbours."""
    lists: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in edges:
        lists[a].append(b)
        lists[b].append(a)
    return {str(node): sorted(others) for node, others in enumerate(lists)}


def relabelled(rng: random.Random, nodes: int, edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same graph under random names, so that no position tells what was planted."""
    names = shuffled(rng, range(nodes))
    return [(names[a], names[b]) for a, b in edges]


def edge_list(graph: Neighbours) -> list[tuple[int, int]]:
    """Each edge once, smaller end first, sorted."""
    return sorted((a, b) for a, others in graph.items() for b in others if a < b)
