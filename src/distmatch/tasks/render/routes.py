"""How the edges of a drawn graph run: straight, or bent so that no edge passes under another node's disc."""

from __future__ import annotations

import random

import numpy as np

from distmatch.tasks.np.drawing import shuffled
from distmatch.tasks.render.layout import Layout, Pairs, Panel, circle, positions

POINTS = 33  # of a bent edge
ATTEMPTS = 4  # layouts to try before giving way to a circle
# Height of the arc over the chord as a share of its length; tried in this order, towards the middle first.
BOWS = (0.05, -0.05, 0.1, -0.1, 0.15, -0.15, 0.2, -0.2, 0.26, -0.26, 0.33, -0.33, 0.42, -0.42)
LEANS = (0.5, 0.3, 0.7)  # where along the chord the arc is pulled

Path = np.ndarray  # (points, 2)


def arranged(
    layout: Layout, nodes: int, pairs: Pairs, panel: Panel, rng: random.Random, strict: bool
) -> tuple[np.ndarray, list[Path]]:
    """Places of the nodes and paths of the edges.

    With `strict`, no path touches another node's disc: a picture whose edges could be misread is not made.
    Where a layout cannot give that (dense graphs), a circle in a random order takes its place, in which arcs
    towards the middle always pass. Without `strict`, as beside a table, edges of `spring` and `grid` are
    straight.
    """
    if layout == "circle":
        places = circle(range(nodes), panel)
        return places, _chords(places, list(range(nodes)), pairs, panel)
    for _ in range(ATTEMPTS if strict else 1):
        places = positions(layout, nodes, pairs, panel, rng)
        paths = _paths(places, pairs, panel) if strict else [places[[a, b]] for a, b in pairs]
        if paths is not None:
            return places, paths
    order = shuffled(rng, range(nodes))
    places = circle(order, panel)
    return places, _chords(places, order, pairs, panel)


def _paths(places: np.ndarray, pairs: Pairs, panel: Panel) -> list[Path] | None:
    """The straightest free path of every edge; None if one has none."""
    paths: list[Path] = []
    for a, b in pairs:
        others = np.delete(places, [a, b], axis=0)
        path = next(
            (path for path in _curves(places[a], places[b], panel) if _free(path, others, panel)), None
        )
        if path is None:
            return None
        paths.append(path)
    return paths


def _curves(start: np.ndarray, end: np.ndarray, panel: Panel) -> list[Path]:
    straight = np.stack([start, end])
    inward = _inward(start, end, panel)
    bent = [_arc(start, end, bow * inward, lean) for bow in BOWS for lean in LEANS]
    return [straight, *bent]


def _inward(start: np.ndarray, end: np.ndarray, panel: Panel) -> float:
    """Sign of the bow that bends towards the middle of the panel."""
    (x, y), (dx, dy) = start + (end - start) / 2, end - start
    return 1.0 if (panel.side / 2 - x) * -dy + (panel.side / 2 - y) * dx >= 0 else -1.0


def _arc(start: np.ndarray, end: np.ndarray, bow: float, lean: float = 0.5) -> Path:
    """A quadratic curve that leaves the chord by about `bow` times its length, to the left if positive."""
    along = end - start
    control = start + lean * along + 2 * bow * np.array([-along[1], along[0]])
    t = (np.arange(POINTS) / (POINTS - 1))[:, None]
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end


def _free(path: Path, others: np.ndarray, panel: Panel) -> bool:
    """Whether a path keeps away from all other discs and inside the panel."""
    if not len(others):
        return True
    if len(path) > 2 and (path.min() < 4 or path.max() > panel.side - 4):
        return False
    return bool((squared_distances(path, others) >= (panel.radius + panel.clear) ** 2).all())


def squared_distances(path: Path, points: np.ndarray) -> np.ndarray:
    """Of each point to each piece of a path, (pieces, points)."""
    start, along = path[:-1], path[1:] - path[:-1]
    square = np.maximum(along[:, 0] ** 2 + along[:, 1] ** 2, 1e-9)
    offset = points[None, :, :] - start[:, None, :]
    share = (offset[..., 0] * along[:, None, 0] + offset[..., 1] * along[:, None, 1]) / square[:, None]
    away = offset - np.clip(share, 0.0, 1.0)[..., None] * along[:, None, :]
    return away[..., 0] ** 2 + away[..., 1] ** 2


def _chords(places: np.ndarray, order: list[int], pairs: Pairs, panel: Panel) -> list[Path]:
    """Paths on a circle: chords, bent inwards just enough to pass the nodes between their ends."""
    place = {node: step for step, node in enumerate(order)}
    bows = [_bow(gap, places, order, panel) for gap in range(len(order) // 2 + 1)]
    paths = []
    for a, b in pairs:
        gap = abs(place[a] - place[b])
        bow = bows[min(gap, len(order) - gap)] * _inward(places[a], places[b], panel)
        paths.append(_arc(places[a], places[b], bow) if bow else places[[a, b]])
    return paths


def _bow(gap: int, places: np.ndarray, order: list[int], panel: Panel) -> float:
    """The smallest bow with which all chords over `gap` places are free."""
    if gap < 2:
        return 0.0
    count = len(order)
    # Places are rounded, so chords of one gap differ a little: look at several.
    starts = range(0, count, max(1, count // 8))
    for bow in (step / 50 for step in range(26)):
        if all(_passes(order[s], order[(s + gap) % count], bow, places, panel) for s in starts):
            return bow + 0.01 if bow else 0.0
    return 0.5


def _passes(a: int, b: int, bow: float, places: np.ndarray, panel: Panel) -> bool:
    path = _arc(places[a], places[b], bow * _inward(places[a], places[b], panel)) if bow else places[[a, b]]
    return _free(path, np.delete(places, [a, b], axis=0), panel)
