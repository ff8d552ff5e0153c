"""Where the nodes of a drawn graph lie: pure geometry, without fonts and pixels.

Same graph, same seed, same places on every machine: only IEEE additions, products, quotients and square roots
decide (NumPy sums along the first axis, which are sequential), and the results are rounded to whole pixels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from distmatch.tasks.np.drawing import shuffled, uniform

Layout = Literal["circle", "spring", "grid"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
Pairs = Sequence[tuple[int, int]]  # edges as positions in the list of nodes

SPRING_STEPS, RELAX_STEPS = 80, 60
NUDGED_EDGES = 160  # with more, nodes cannot evade the edges: only the edges bend


@dataclass(frozen=True)
class Box:
    """The place of a disc or a text in a picture, in pixels; a disc is round, the rest are rectangles.

    Attributes:
        kind: `node` (a disc), `weight` (a label on an edge), or a text of the table: `caption`, `header`,
            `cell`, `blank` (no edge).
        owner: What it belongs to: the node's name, or the names of the edge's ends.
        left, top, right, bottom: Its edges; y grows downwards.
        round: The box holds a disc.
    """

    kind: str
    owner: str
    left: float
    top: float
    right: float
    bottom: float
    round: bool = False

    @property
    def center(self) -> tuple[float, float]:
        """Middle of the box."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


def overlap(one: Box, other: Box, gap: float = 0.0) -> bool:
    """Whether two boxes come closer than `gap`; discs count as discs, not as squares."""
    if other.round and not one.round:
        one, other = other, one
    if not one.round:
        apart = max(
            other.left - one.right, one.left - other.right, other.top - one.bottom, one.top - other.bottom
        )
        return apart < gap
    (x, y), radius = one.center, (one.right - one.left) / 2
    if other.round:
        dx, dy = x - other.center[0], y - other.center[1]
        reach = radius + (other.right - other.left) / 2
    else:
        dx = x - min(max(x, other.left), other.right)
        dy = y - min(max(y, other.top), other.bottom)
        reach = radius
    return dx * dx + dy * dy < (reach + gap) ** 2


@dataclass(frozen=True)
class Panel:
    """The square that holds the nodes.

    Attributes:
        side: Its side in pixels.
        radius: Radius of the discs.
        clear: Distance that an edge keeps from the discs of other nodes.
    """

    side: int
    radius: float
    clear: float

    @property
    def margin(self) -> float:
        """Closest that a disc's middle comes to the border."""
        return self.radius + max(6.0, 0.025 * self.side)


def positions(layout: Layout, nodes: int, pairs: Pairs, panel: Panel, rng: random.Random) -> np.ndarray:
    """Middles of the discs, (nodes, 2) whole pixels, top left is (0, 0).

    `circle` goes clockwise from the top in the order of the nodes, `spring` keeps neighbours close by
    stress majorisation, `grid` puts neighbours into close cells and shakes them a little.

    Raises:
        ValueError: Unknown layout.
    """
    if layout == "circle":
        return circle(range(nodes), panel)
    if layout == "spring":
        places = _fit(_stress(nodes, pairs, rng), panel)
    elif layout == "grid":
        places = _grid(nodes, pairs, panel, rng)
    else:
        raise ValueError(f"layout={layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    return np.round(_relax(places, pairs, panel))


def circle(order: Sequence[int], panel: Panel) -> np.ndarray:
    """Places clockwise from the top: `order` names the node of each."""
    middle, reach = panel.side / 2, panel.side / 2 - panel.margin
    places = np.zeros((len(order), 2))
    for step, node in enumerate(order):
        angle = 2 * math.pi * step / len(order)
        places[node] = round(middle + reach * math.sin(angle)), round(middle - reach * math.cos(angle))
    return places


# ---- springs -----------------------------------------------------------------------------------------------


def _stress(nodes: int, pairs: Pairs, rng: random.Random) -> np.ndarray:
    """Places whose distances follow the numbers of hops, by majorisation from a random start."""
    hops = _hops(nodes, pairs)
    np.fill_diagonal(hops, 1.0)
    weight = 1.0 / (hops * hops)
    np.fill_diagonal(weight, 0.0)
    total = np.maximum(weight.sum(axis=0), 1e-9)[:, None]
    places = np.array([[uniform(rng, (0, 2)), uniform(rng, (0, 2))] for _ in range(nodes)]).reshape(-1, 2)
    for _ in range(SPRING_STEPS):
        # differences[j, i] points from j to i, so that sums run along the first axis.
        differences = places[None, :, :] - places[:, None, :]
        scale = weight * hops / np.maximum(_lengths(differences), 1e-9)
        target = weight[:, :, None] * places[:, None, :] + scale[:, :, None] * differences
        places = target.sum(axis=0) / total
    return places


def _hops(nodes: int, pairs: Pairs) -> np.ndarray:
    """Numbers of edges on shortest paths; parts that do not hang together lie one more apart."""
    near: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in pairs:
        near[a].append(b)
        near[b].append(a)
    hops = np.full((nodes, nodes), -1.0)
    for start in range(nodes):
        row, queue = hops[start], [start]
        row[start] = 0
        for node in queue:
            for other in near[node]:
                if row[other] < 0:
                    row[other] = row[node] + 1
                    queue.append(other)
    hops[hops < 0] = max(1.0, hops.max(initial=0.0)) + 1
    return hops


def _fit(places: np.ndarray, panel: Panel) -> np.ndarray:
    """Moved and stretched to fill the panel, at most by half as much again in one direction."""
    low, high = places.min(axis=0), places.max(axis=0)
    spread = np.maximum(high - low, 1e-9)
    scale = (panel.side - 2 * panel.margin) / spread
    scale = np.minimum(scale, 1.5 * scale.min())
    return panel.side / 2 + (places - (low + high) / 2) * scale


# ---- a shaken grid -----------------------------------------------------------------------------------------


def _grid(nodes: int, pairs: Pairs, panel: Panel, rng: random.Random) -> np.ndarray:
    columns = math.isqrt(max(nodes - 1, 0)) + 1
    rows = -(-nodes // columns)
    cells = shuffled(rng, [(column, row) for column in range(columns) for row in range(rows)])
    cells = _nearer(cells, nodes, pairs, rng)
    room = panel.side - 2 * panel.margin
    step = room / max(columns - 1, 1), room / max(rows - 1, 1)
    shake = [(uniform(rng, (-0.2, 0.2)), uniform(rng, (-0.2, 0.2))) for _ in range(nodes)]
    places = [
        [panel.margin + (cells[node][axis] + shake[node][axis]) * step[axis] for axis in (0, 1)]
        for node in range(nodes)
    ]
    return np.array(places)


def _nearer(
    cells: list[tuple[int, int]], nodes: int, pairs: Pairs, rng: random.Random
) -> list[tuple[int, int]]:
    """Swap cells, filled or empty, as long as the edges get shorter."""
    near: list[list[int]] = [[] for _ in cells]
    for a, b in pairs:
        near[a].append(b)
        near[b].append(a)

    def length(node: int) -> int:
        x, y = cells[node]
        return sum((x - cells[other][0]) ** 2 + (y - cells[other][1]) ** 2 for other in near[node])

    for _ in range(20 * nodes):
        a, b = rng.randrange(nodes), rng.randrange(len(cells))
        before = length(a) + length(b)
        cells[a], cells[b] = cells[b], cells[a]
        if length(a) + length(b) > before:
            cells[a], cells[b] = cells[b], cells[a]
    return cells


# ---- apart -------------------------------------------------------------------------------------------------


def _relax(places: np.ndarray, pairs: Pairs, panel: Panel) -> np.ndarray:
    """Push nodes away from each other and, in graphs of few edges, from the edges of others."""
    nodes = len(places)
    apart = min(6 * panel.radius, max(2.5 * panel.radius, 0.7 * panel.side / math.sqrt(max(nodes, 1))))
    ends = np.array(pairs, dtype=int).reshape(-1, 2) if len(pairs) <= NUDGED_EDGES else np.zeros((0, 2), int)
    low, high = panel.margin, panel.side - panel.margin
    places = np.clip(places, low, high)
    for step in range(RELAX_STEPS):
        move = _from_nodes(places, apart)
        if len(ends) and step < RELAX_STEPS - 15:  # the last steps only part the discs
            move = move + _from_edges(places, ends, 1.25 * (panel.radius + panel.clear))
        if not move.any():
            break
        places = np.clip(places + move, low, high)
    return places


def _from_nodes(places: np.ndarray, apart: float) -> np.ndarray:
    differences = places[None, :, :] - places[:, None, :]
    lengths = _lengths(differences)
    lack = np.maximum(apart - lengths, 0.0)
    np.fill_diagonal(lack, 0.0)
    lack[lack < 0.05] = 0.0
    return (differences * (0.55 * lack / np.maximum(lengths, 1e-6))[:, :, None]).sum(axis=0)


def _from_edges(places: np.ndarray, ends: np.ndarray, reach: float) -> np.ndarray:
    """Each node off the edges that touch its disc, their ends a little the other way."""
    start, along = places[ends[:, 0]], places[ends[:, 1]] - places[ends[:, 0]]
    square = np.maximum(along[:, 0] ** 2 + along[:, 1] ** 2, 1e-9)
    offset = places[None, :, :] - start[:, None, :]  # (edges, nodes, 2)
    share = offset[:, :, 0] * along[:, None, 0] + offset[:, :, 1] * along[:, None, 1]
    share = np.clip(share / square[:, None], 0.0, 1.0)
    away = offset - share[:, :, None] * along[:, None, :]
    lengths = _lengths(away)
    lack = np.maximum(reach - lengths, 0.0)
    rows = np.arange(len(ends))
    lack[rows, ends[:, 0]] = lack[rows, ends[:, 1]] = 0.0
    push = away * (0.4 * lack / np.maximum(lengths, 1e-6))[:, :, None]
    move = push.sum(axis=0)
    back = push[:, 0] * 0.0
    for node in range(len(places)):  # sequential, as sums along the second axis would not be
        back = back + push[:, node]
    for column in (0, 1):
        np.subtract.at(move, ends[:, column], 0.3 * back)
    return move


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt(vectors[..., 0] ** 2 + vectors[..., 1] ** 2)
