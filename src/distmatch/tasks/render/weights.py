"""Where the weights of a drawn graph stand: on the edges, or in a table beside the picture."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distmatch.tasks.render.layout import Box, Panel, overlap
from distmatch.tasks.render.lettering import text_size
from distmatch.tasks.render.routes import Path

BLANK = "·"  # in the table, for a pair without an edge
SMALLEST = 10  # pixels of the smallest font
SHARES = tuple(0.5 + side * step * 0.03 for step in range(13) for side in (1, -1) if step or side == 1)
OFFSETS = (0.0, -0.3, 0.3)  # across the edge, in heights of the label: it still lies on its edge
COVERED = 0.07  # share of the panel under labels; with more, the picture is full of them
GAP = 1.5  # pixels between a label and anything else
# Pixels that labels keep from foreign edges, if possible; at worst these reach under the rim of the label.
KEEPS = (12.0, 4.0, 1.0, -2.0)


@dataclass(frozen=True)
class Label:
    """The weight of an edge as it stands on it."""

    text: str
    box: Box
    size: int


@dataclass(frozen=True)
class Cell:
    """A text of the table; its box holds the ink."""

    text: str
    box: Box
    bold: bool


@dataclass(frozen=True)
class Table:
    """The weights as a matrix.

    Attributes:
        cells: Column and row headers, weights, blanks and the caption.
        left, top: Corner of the first weight's field.
        right, bottom: Ends of the whole, headers included.
        step: Width and height of a field.
        count: Rows, as many as columns.
        size: Font size in pixels.
    """

    cells: tuple[Cell, ...]
    left: int
    top: int
    right: int
    bottom: int
    step: tuple[int, int]
    count: int
    size: int


# ---- on the edges ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ink:
    """Everything that a label must respect: dense points of all edges, edge after edge, and the discs."""

    points: np.ndarray  # (points, 2)
    starts: np.ndarray  # of each edge's points
    discs: np.ndarray  # (nodes, 3): middle and radius
    side: int


def place_labels(
    names: Sequence[str], texts: Sequence[str], paths: Sequence[Path], discs: Sequence[Box], panel: Panel
) -> list[Label] | None:
    """Labels that touch neither each other nor a disc, as large as possible; None if some do not fit.

    They lie on their edges, away from other edges if possible, at worst with one passing under them.

    Args:
        names: Names of the edges' ends, `0-3`.
        texts: Their weights.
        paths: How they run.
        discs: All nodes.
        panel: The square that holds everything.
    """
    dense = [_dense(path) for path in paths]
    rounds = np.array([[*disc.center, (disc.right - disc.left) / 2] for disc in discs]).reshape(-1, 3)
    starts = np.concatenate([[0], np.cumsum([len(points) for points in dense])[:-1]]).astype(int)
    ink = _Ink(np.concatenate(dense) if dense else np.zeros((0, 2)), starts, rounds, panel.side)
    for size, keep, crossed in _compromises(panel):
        areas = [(wide + 4) * (high + 4) for wide, high in (text_size(text, size) for text in texts)]
        if sum(areas) > COVERED * panel.side**2:
            continue
        options = [
            _options(index, names[index], text, size, paths[index], ink, keep, crossed)
            for index, text in enumerate(texts)
        ]
        chosen = _choose(options) if all(options) else None
        if chosen is not None:
            return [Label(text, box, size) for text, box in zip(texts, chosen, strict=True)]
    return None


def _compromises(panel: Panel) -> list[tuple[int, float, int]]:
    """Font size, pixels to foreign edges, foreign edges that may come nearer: best first."""
    smallest = max(SMALLEST, round(0.016 * panel.side))
    largest = max(smallest, round(0.026 * panel.side))
    sizes = [smallest + (largest - smallest) * step // 3 for step in (3, 2, 1, 0)]
    order = [(size, keep, 0) for part in (sizes[:2], sizes[2:]) for keep in KEEPS for size in part]
    return list(dict.fromkeys([*order, *((size, KEEPS[-1], 1) for size in sizes)]))


def _dense(path: Path) -> np.ndarray:
    """Points of a path, at most 4 pixels apart."""
    pieces = []
    for start, end in itertools.pairwise(path):
        steps = int(np.abs(end - start).max() / 4) + 3
        pieces.append(start + (np.arange(steps) / (steps - 1))[:, None] * (end - start))
    return np.concatenate(pieces)


def _options(
    index: int, name: str, text: str, size: int, path: Path, ink: _Ink, keep: float, crossed: int
) -> list[Box]:
    """Boxes that an edge's label may take, best first."""
    wide, high = text_size(text, size)
    width, height = wide + max(4, size // 3), high + max(4, size // 3)
    low = np.round(_middles(path, height) - np.array([width, height]) / 2)
    high_end = low + np.array([width, height])
    fits = (low >= 1).all(axis=1) & (high_end <= ink.side - 1).all(axis=1)
    centers = ink.discs[None, :, :2]
    away = centers - np.clip(centers, low[:, None], high_end[:, None])
    fits &= (away[..., 0] ** 2 + away[..., 1] ** 2 >= (ink.discs[None, :, 2] + GAP) ** 2).all(axis=1)
    low, high_end = low[fits], high_end[fits]
    if not len(low):
        return []
    reach = np.array([width, height]) / 2 + keep
    middles = (low + high_end) / 2
    inside = np.abs(ink.points[None, :, 0] - middles[:, :1]) < reach[0]
    inside &= np.abs(ink.points[None, :, 1] - middles[:, 1:]) < reach[1]
    touched = np.logical_or.reduceat(inside, ink.starts, axis=1)
    touched[:, index] = False
    under = touched.sum(axis=1)
    order = sorted((int(count), rank) for rank, count in enumerate(under) if count <= crossed)
    return [Box("weight", name, *low[rank].tolist(), *high_end[rank].tolist()) for _, rank in order]


def _middles(path: Path, height: int) -> np.ndarray:
    """Places on the path, its middle first, then a little beside it."""
    lengths = np.sqrt(((path[1:] - path[:-1]) ** 2)[:, 0] + ((path[1:] - path[:-1]) ** 2)[:, 1])
    until = np.concatenate([[0.0], np.cumsum(lengths)])
    middles = []
    for offset in OFFSETS:
        for share in SHARES:
            piece = min(int(np.searchsorted(until, share * until[-1], side="right")) - 1, len(lengths) - 1)
            along = (path[piece + 1] - path[piece]) / max(lengths[piece], 1e-9)
            point = path[piece] + (share * until[-1] - until[piece]) * along
            middles.append(point + offset * height * np.array([-along[1], along[0]]))
    return np.array(middles)


def _choose(options: Sequence[Sequence[Box]]) -> list[Box] | None:
    """One option each without overlaps: fewest options first; who finds none pushes the fewest others out."""
    chosen: dict[int, Box] = {}
    tried = [0] * len(options)
    queue = sorted(range(len(options)), key=lambda index: (len(options[index]), index))
    for _ in range(12 * len(options)):
        if not queue:
            return [chosen[index] for index in range(len(options))]
        index = queue.pop(0)
        blockers = [
            [other for other, placed in chosen.items() if overlap(box, placed, GAP)] for box in options[index]
        ]
        # Who was pushed out often is expensive to push again, so that two do not push each other for ever.
        best = min(range(len(blockers)), key=lambda k: (sum(1 + tried[other] for other in blockers[k]), k))
        for other in blockers[best]:
            del chosen[other]
            tried[other] += 1
            queue.append(other)
        chosen[index] = options[index][best]
    return [chosen[index] for index in range(len(options))] if not queue else None


# ---- in a table --------------------------------------------------------------------------------------------


def weight_table(
    names: Sequence[str], weights: Mapping[tuple[int, int], str], left: int, side: int, caption: str
) -> Table:
    """A symmetric matrix beside a picture of height `side`, from `left`.

    The font is the largest at which the table is not higher than the picture, within readable bounds.

    Args:
        names: Names of the nodes in order.
        weights: Text of every edge, by the positions of its ends, smaller first.
        left: Where the table starts.
        side: Height of the picture.
        caption: Stands above.
    """
    longest = max([*weights.values(), *names], key=lambda text: (text_size(text, 20, True)[0], text))
    largest = max(SMALLEST, round(0.028 * side))
    size = next((s for s in range(largest, SMALLEST, -1) if _height(len(names), s) <= side), SMALLEST)
    step = text_size(longest, size, True)[0] + max(5, round(0.55 * size)), _row(size)
    border = max(8, side // 48)
    head = text_size(max(names, key=len), size, True)[0] + 2 * max(4, size // 3)
    total = _height(len(names), size)
    corner = left + head, max(border, (side - total) // 2) + 3 * step[1]
    cells = [_cell("caption", "", caption, size, False, _caption_middle(left, corner, step, caption, size))]
    for place, name in enumerate(names):
        across, down = corner[0] + (place + 0.5) * step[0], corner[1] + (place + 0.5) * step[1]
        above, below = corner[1] - 0.5 * step[1], corner[1] + (len(names) + 0.5) * step[1]
        before, behind = left + head / 2, corner[0] + len(names) * step[0] + head / 2
        for middle in ((across, above), (across, below), (before, down), (behind, down)):
            cells.append(_cell("header", name, name, size, True, middle))
    for row, column in itertools.permutations(range(len(names)), 2):
        text = weights.get((min(row, column), max(row, column)))
        kind, shown = ("blank", BLANK) if text is None else ("cell", text)
        middle = corner[0] + (column + 0.5) * step[0], corner[1] + (row + 0.5) * step[1]
        cells.append(_cell(kind, f"{names[row]}-{names[column]}", shown, size, False, middle))
    right = max(corner[0] + len(names) * step[0] + head, round(cells[0].box.right) + 2)
    bottom = corner[1] + (len(names) + 1) * step[1]
    return Table(tuple(cells), *corner, right, bottom, step, len(names), size)


def _row(size: int) -> int:
    return text_size("0", size)[1] + max(5, round(0.5 * size))


def _height(count: int, size: int) -> int:
    """Caption, headers, rows and a border."""
    return (count + 4) * _row(size) + 8


def _caption_middle(
    left: int, corner: tuple[int, int], step: tuple[int, int], caption: str, size: int
) -> tuple[float, float]:
    return left + text_size(caption, size)[0] / 2 + 2, corner[1] - 2.2 * step[1]


def _cell(kind: str, owner: str, text: str, size: int, bold: bool, middle: tuple[float, float]) -> Cell:
    wide, high = text_size(text, size, bold)
    left, top = round(middle[0] - wide / 2), round(middle[1] - high / 2)
    high += size // 3 if kind == "caption" else 0  # letters below the line
    return Cell(text, Box(kind, owner, left, top, left + wide, top + high), bold)
