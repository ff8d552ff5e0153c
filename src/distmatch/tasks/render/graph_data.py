"""What a picture must show of an instance: nodes, edges and weights, read from the published JSON forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

UNWEIGHTED = (
    *("hamiltonian_cycle", "vertex_cover", "dominating_set", "maximum_clique", "maximum_independent_set"),
    *("graph_coloring", "feedback_vertex_set"),
)
WEIGHTED = ("tsp", "minimum_bisection", "maximum_cut")
PICTURED = (*UNWEIGHTED, *WEIGHTED)
ADJACENT = "1: row and column are adjacent (· not adjacent)"
CAPTIONS = {
    "tsp": "Distance between row and column",
    "minimum_bisection": "Weight of the edge between row and column (· none)",
    "maximum_cut": "Weight of the edge between row and column (· none)",
}


@dataclass(frozen=True)
class Graph:
    """A graph to be drawn.

    Attributes:
        names: Names of the nodes, in ascending order.
        pairs: Edges as positions in `names`, smaller first, sorted.
        weights: Text of every edge's weight, in the order of `pairs`; None if the problem has none.
        caption: What a table of the edges shows.
    """

    names: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    weights: Mapping[tuple[int, int], str] | None
    caption: str = ""

    @property
    def edge_names(self) -> list[str]:
        """`0-3` for every edge."""
        return [f"{self.names[a]}-{self.names[b]}" for a, b in self.pairs]


def read_graph(task: str, data: Mapping[str, Any]) -> Graph:
    """Read `{"0": [1]}`, `{"0": {"1": weight}}` or `{"num_vertices": n, "edges": {"0-1": weight}}`.

    As in the verifiers, 0 stands for no edge, except between cities and for edges listed one by one.

    Raises:
        ValueError: A task without pictures, or data that no picture can show: unknown nodes, two weights for
            one edge, weights that are no finite numbers.
    """
    if task not in PICTURED:
        raise ValueError(f"task {task} has no pictures; those with pictures are {', '.join(PICTURED)}")
    listed = "edges" in data
    ids = range(int(data["num_vertices"])) if listed else sorted(int(node) for node in data)
    place = {node: position for position, node in enumerate(ids)}
    found: dict[tuple[int, int], str] = {}
    for a, b, weight in _listed(data) if listed else _adjacent(data):
        if a not in place or b not in place:
            raise ValueError(f"edge {a}-{b} has an end that is no node of the graph")
        if a == b or (not listed and task != "tsp" and not weight):
            continue
        ends = (min(place[a], place[b]), max(place[a], place[b]))
        text = _text(weight) if task in WEIGHTED else ""
        if found.setdefault(ends, text) != text:
            raise ValueError(f"edge {a}-{b} has two weights: {found[ends]} and {text}")
    pairs = tuple(sorted(found))
    weights = {ends: found[ends] for ends in pairs} if task in WEIGHTED else None
    return Graph(tuple(map(str, ids)), pairs, weights, CAPTIONS.get(task, ADJACENT))


def _listed(data: Mapping[str, Any]) -> Iterator[tuple[int, int, object]]:
    seen: set[frozenset[int]] = set()
    for name, weight in data["edges"].items():
        a, b = (int(end) for end in name.split("-"))
        if frozenset((a, b)) in seen:
            raise ValueError(f"edge {name} is listed twice")
        seen.add(frozenset((a, b)))
        yield a, b, weight


def _adjacent(data: Mapping[str, Any]) -> Iterator[tuple[int, int, object]]:
    for node, others in data.items():
        pairs = others.items() if isinstance(others, Mapping) else ((other, 1) for other in others)
        for other, weight in pairs:
            yield int(node), int(other), weight


def _text(weight: object) -> str:
    """A weight without loss: integers plainly, others as Python writes them."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ValueError(f"weight {weight!r} is no finite number")
    return str(int(weight)) if weight == int(weight) else repr(weight)
