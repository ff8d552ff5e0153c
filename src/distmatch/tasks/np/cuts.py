"""What the cut problems share: weighted edges, and answers that are two sides of all vertices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from distmatch.tasks.np.integer_answers import set_key
from distmatch.tasks.np.nested_answers import Row

Weights = dict[tuple[int, int], float]  # of each edge, smaller end first
NO_VERTEX = 10**18  # larger than any id: an empty side comes last


def matrix_weights(data: Mapping[str, Any]) -> Weights:
    """Read `{"0": {"1": 3}}` as undirected weighted edges; loops and weights 0 are no edges.

    The row of the smaller end decides; where it does not name the edge, the other row does.
    """
    weights: Weights = {}
    for name, row in data.items():
        node = int(name)
        for other_name, weight in row.items():
            other = int(other_name)
            if other > node:
                weights[node, other] = weight
            elif other < node:
                weights.setdefault((other, node), weight)
    return {edge: weight for edge, weight in weights.items() if weight}


def matrix(vertices: Sequence[int], weights: Mapping[tuple[int, int], float]) -> list[list[float]]:
    """The weights by position, 0 where there is no edge."""
    place = {vertex: position for position, vertex in enumerate(vertices)}
    rows: list[list[float]] = [[0] * len(place) for _ in place]
    for (a, b), weight in weights.items():
        if a in place and b in place:
            rows[place[a]][place[b]] = rows[place[b]][place[a]] = weight
    return rows


def cut_weight(weights: Mapping[tuple[int, int], float], sides: Sequence[Row]) -> float:
    """Sum of the weights of the edges between the two sides."""
    first, second = set(sides[0]), set(sides[1])
    return float(
        sum(
            weight
            for (a, b), weight in weights.items()
            if (a in first and b in second) or (a in second and b in first)
        )
    )


def sides_fault(sides: Sequence[Row], vertices: Collection[int]) -> str:
    """The rule that all cuts share: two sides that hold every vertex exactly once."""
    if len(sides) != 2:
        return "not two sides"
    placed = [*sides[0], *sides[1]]
    if not set(vertices).issuperset(placed):
        return "unknown vertex"
    if len(set(placed)) != len(placed):
        return "repeated vertex"
    return "" if len(placed) == len(vertices) else "missing vertex"


def sides_key(sides: Sequence[Row]) -> str:
    """Both sides in ascending order, first the one that holds the smallest vertex."""
    return "|".join(set_key(side) for side in sorted(sides, key=_smallest))


def two_sides(vertices: Iterable[int], chosen: Collection[int]) -> list[list[int]]:
    """The answer whose one side is `chosen`, in canonical order."""
    order = sorted(vertices)
    sides = [[v for v in order if v in chosen], [v for v in order if v not in chosen]]
    return sorted(sides, key=_smallest)


def edge_words(weights: Mapping[tuple[int, int], float]) -> str:
    """The edges of a compact prompt: `0-1=7, 0-2=3`."""
    return ", ".join(f"{a}-{b}={weight}" for (a, b), weight in sorted(weights.items()))


def _smallest(side: Row) -> int:
    return min(side, default=NO_VERTEX)
