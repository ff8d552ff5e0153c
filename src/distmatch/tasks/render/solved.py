"""Pictures of solved instances: tours and cycles, packed knapsacks, coloured graphs, cliques and vertex sets.

An answer is a list of integers, as the tasks' verifiers read it: a tour closed or not, ids of items or
vertices, or a colour for every vertex. Figures are made without pyplot: nothing is global, no display needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from distmatch.tasks.base import Instance
from distmatch.tasks.np.graphs import edge_list, neighbours

Answer = Sequence[int]
Data = Mapping[str, object]
Points = Mapping[int, tuple[float, float]]

INK, SOFT, FAINT, PAPER, ACCENT = "#27303f", "#7b8494", "#dfe3e9", "#ffffff", "#2f6fb2"
GREY = "#b4bbc6"
COLORS = (
    *("#5b8fc7", "#e8a15a", "#74b087", "#d17d7d", "#9a86c4", "#d3bf62", "#64b5b8", "#c98bb0", "#98a1ad"),
    *("#3d6ea5", "#c57f37", "#518f66", "#b05a5a", "#7863a6", "#ad9a40", "#45979a", "#a9688f", "#727b87"),
)
PANEL = 3.7  # inches
DPI = 110


def draw_solution(instance: Instance, answer: Answer, title: str) -> Figure | None:
    """One feasible answer as a picture; None for a task that has no pictures."""
    return draw_side_by_side(instance, [(answer, title)])


def draw_side_by_side(instance: Instance, answers: Sequence[tuple[Answer, str]]) -> Figure | None:
    """Feasible answers to one instance next to each other, in one layout, for comparison.

    Args:
        instance: The problem.
        answers: Answers with their titles. Tours are laid out along the last one, so put the reference there:
            a tour crosses itself where it differs.

    Returns:
        The figure, or None for a task that has no pictures.
    """
    draw = PAINTERS.get(instance.task)
    if draw is None:
        return None
    wide = instance.task == "knapsack"
    rows, columns = (len(answers), 1) if wide else (1, len(answers))
    size = (1.75 * PANEL, 0.62 * PANEL * rows) if wide else (PANEL * columns, 1.1 * PANEL)
    figure = Figure(figsize=size, dpi=DPI, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for panel, (answer, title) in zip(panels, answers, strict=True):
        panel.set_axis_off()
        draw(panel, instance.data, answer, [other for other, _ in answers])
        panel.set_title(title, color=INK, fontsize=9.5, pad=6)
    return figure


def answer_of_key(key: str | None) -> list[int] | None:
    """The answer that a verdict's canonical key stands for; None for keys that are no list of integers."""
    parts = (key or "").replace("-", ",").split(",")
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else None


def to_pixels(figure: Figure) -> np.ndarray:
    """The figure as an image, (height, width, 3) uint8."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


# ---- one function a task -----------------------------------------------------------------------------------


def _tour(panel: Axes, data: Data, answer: Answer, shown: Sequence[Answer]) -> None:
    """Cities on a circle in the order of the last tour, with the length of each leg."""
    stops = list(answer[:-1]) if len(answer) > 1 and answer[0] == answer[-1] else list(answer)
    points = _circle(list(dict.fromkeys(shown[-1])))
    legs = list(zip(stops, [*stops[1:], *stops[:1]], strict=True))
    if len(points) <= 24:  # beyond, the complete graph is a grey disc and the lengths are unreadable
        _edges(panel, points, [(a, b) for a in points for b in points if a < b], FAINT, 0.5)
        _lengths(panel, data, points, legs)
    _edges(panel, points, legs, ACCENT, 2.0)
    _nodes(panel, points, dict.fromkeys(points, INK))


def _lengths(panel: Axes, data: Data, points: Points, legs: Sequence[tuple[int, int]]) -> None:
    box = {"boxstyle": "round,pad=0.16", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.92}
    order = list(points)
    for number, (a, b) in enumerate(legs):
        apart = abs(order.index(a) - order.index(b))
        # Off the middle of a chord, to alternating sides: chords cross there, and labels would collide.
        share = 0.5 if apart in (1, len(order) - 1) else (0.62, 0.42)[number % 2]
        x, y = (share * p + (1 - share) * q for p, q in zip(points[a], points[b], strict=True))
        text = f"{data[str(a)][str(b)]:g}"  # type: ignore[index]  # data is JSON, typed as object
        size = 8 if len(order) <= 12 else 6
        panel.text(x, y, text, color=ACCENT, fontsize=size, ha="center", va="center", bbox=box, zorder=3)


def _knapsack(panel: Axes, data: Data, answer: Answer, shown: Sequence[Answer]) -> None:
    """Packed items along the capacity, the others below; darker is more value for the weight."""
    items: Mapping[str, Mapping[str, float]] = data["items"]  # type: ignore[assignment]
    capacity = float(data["capacity"])  # type: ignore[arg-type]
    worth = {i: item["value"] / max(item["weight"], 1e-9) for i, item in items.items()}
    order = sorted(items, key=lambda i: (-worth[i], int(i)))
    packed = [i for i in order if int(i) in set(answer)]
    left = [i for i in order if i not in packed]
    # One scale for all panels: the longest row of left-out items fits.
    lightest = min(sum(items[str(i)]["weight"] for i in other) for other in shown)
    total = max(capacity, sum(item["weight"] for item in items.values()) - lightest)
    for ids, height, inside in ((packed, 1.0, True), (left, 0.0, False)):
        row = [(i, items[i]["weight"], items[i]["value"], worth[i]) for i in ids]
        _stack(panel, row, height, inside, total)
    weight, value = (sum(items[i][name] for i in packed) for name in ("weight", "value"))
    panel.plot([0, 0, capacity, capacity], [1.5, 0.68, 0.68, 1.5], color=INK, linewidth=1.3)
    panel.text(capacity, 1.56, f"capacity {capacity:g}", ha="right", va="bottom", color=INK, fontsize=8)
    panel.text(0, 1.56, f"packed: value {value:g}, weight {weight:g}", va="bottom", color=ACCENT, fontsize=8)
    panel.text(0, -0.48, "left out" if left else "nothing left out", va="top", color=SOFT, fontsize=8)
    panel.text(total, -0.48, "width is weight, number is value", va="top", ha="right", color=SOFT, fontsize=7)
    panel.set_xlim(-0.01 * total, 1.01 * total)
    panel.set_ylim(-0.85, 1.95)


def _stack(
    panel: Axes, items: Sequence[tuple[str, float, float, float]], height: float, inside: bool, total: float
) -> None:
    """Items (id, weight, value, worth) in a row from the left."""
    position = 0.0
    for name, weight, value, worth in items:
        strength = min(1.0, worth / 2.5)
        color = _mix(ACCENT, 0.35 + 0.65 * strength) if inside else _mix(SOFT, 0.12 + 0.3 * strength)
        panel.barh(height, weight, left=position, height=0.62, color=color, edgecolor=PAPER, linewidth=1.5)
        text = PAPER if inside and strength > 0.3 else INK
        if weight / total > 0.035:
            at = {"x": position + weight / 2, "ha": "center", "va": "center", "color": text}
            panel.text(y=height + 0.09, s=f"{value:g}", fontsize=8.5, **at)
            panel.text(y=height - 0.17, s=f"#{name}", fontsize=6, alpha=0.85, **at)
        position += weight


def _coloring(panel: Axes, data: Data, answer: Answer, shown: Sequence[Answer]) -> None:
    """Vertices on a circle; colours go by first appearance, so that equal partitions look alike."""
    graph = neighbours(data)
    points = _circle(sorted(graph))
    names = list(dict.fromkeys(answer))
    fills = {
        node: COLORS[names.index(color) % len(COLORS)] for node, color in zip(points, answer, strict=True)
    }
    _edges(panel, points, edge_list(graph), "#c3c9d2", 1.0 if len(graph) <= 16 else 0.5)
    _nodes(panel, points, fills)


def _clique(panel: Axes, data: Data, answer: Answer, shown: Sequence[Answer]) -> None:
    """Vertices on a circle, the clique and its edges in colour."""
    graph = neighbours(data)
    points, chosen = _circle(sorted(graph)), set(answer)
    pairs = edge_list(graph)
    others = [pair for pair in pairs if not chosen.issuperset(pair)]
    _edges(panel, points, others, FAINT, 1.0 if len(graph) <= 16 else 0.6)
    _edges(panel, points, [pair for pair in pairs if chosen.issuperset(pair)], ACCENT, 2.0)
    _nodes(panel, points, {node: ACCENT if node in chosen else GREY for node in graph})


def _cycle(panel: Axes, data: Data, answer: Answer, shown: Sequence[Answer]) -> None:
    """Vertices on a circle in the order of the last cycle; the cycle in colour, vertices off it grey."""
    graph = neighbours(data)
    points = _circle([*dict.fromkeys(shown[-1]), *(node for node in sorted(graph) if node not in shown[-1])])
    stops = list(dict.fromkeys(answer))
    _edges(panel, points, edge_list(graph), FAINT, 1.0 if len(graph) <= 16 else 0.6)
    _edges(panel, points, list(zip(stops, [*stops[1:], stops[0]], strict=True)), ACCENT, 2.0)
    _nodes(panel, points, {node: ACCENT if node in stops else GREY for node in graph})


def _vertex_set(panel: Axes, data: Data, answer: Answer, shown: Sequence[Answer]) -> None:
    """Vertices on a circle, chosen ones in colour; edges that no chosen vertex touches are dark."""
    graph = neighbours(data)
    points, chosen = _circle(sorted(graph)), set(answer)
    pairs = edge_list(graph)
    touched = [pair for pair in pairs if chosen.intersection(pair)]
    _edges(panel, points, touched, FAINT, 1.0 if len(graph) <= 16 else 0.6)
    _edges(panel, points, [pair for pair in pairs if pair not in set(touched)], SOFT, 1.4)
    _nodes(panel, points, {node: ACCENT if node in chosen else GREY for node in graph})


PAINTERS: Mapping[str, Callable[[Axes, Data, Answer, Sequence[Answer]], None]] = {
    "tsp": _tour,
    "knapsack": _knapsack,
    "graph_coloring": _coloring,
    "maximum_clique": _clique,
    "hamiltonian_cycle": _cycle,
    "maximum_independent_set": _vertex_set,
    "vertex_cover": _vertex_set,
    "dominating_set": _vertex_set,
    "feedback_vertex_set": _vertex_set,
}


# ---- pieces ------------------------------------------------------------------------------------------------


def _circle(order: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Positions on the unit circle, clockwise from the top."""
    angles = [math.pi / 2 - 2 * math.pi * k / len(order) for k in range(len(order))]
    return {node: (math.cos(angle), math.sin(angle)) for node, angle in zip(order, angles, strict=True)}


def _edges(panel: Axes, points: Points, pairs: Sequence[tuple[int, int]], color: str, width: float) -> None:
    lines = [[points[a], points[b]] for a, b in pairs]
    order = 1 + width / 10  # thick above thin, all below the nodes
    panel.add_collection(
        LineCollection(lines, colors=color, linewidths=width, capstyle="round", zorder=order)
    )


def _nodes(panel: Axes, points: Points, fills: Mapping[int, str]) -> None:
    """Discs with their ids inside, smaller when there are many."""
    count = len(points)
    size = max(60.0, min(330.0, 4600.0 / count))
    places = np.array([points[node] for node in points])
    colors = [fills[node] for node in points]
    panel.scatter(places[:, 0], places[:, 1], s=size, c=colors, edgecolors=PAPER, linewidths=1.6, zorder=4)
    for node, (x, y) in points.items():
        style = {"fontsize": 0.5 * math.sqrt(size), "ha": "center", "va": "center_baseline", "zorder": 5}
        panel.text(x, y, str(node), color=PAPER, **style)
    panel.set_aspect("equal")
    panel.set_xlim(-1.18, 1.18)
    panel.set_ylim(-1.18, 1.18)


def _mix(color: str, share: float) -> tuple[float, ...]:
    """A colour thinned with white."""
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return tuple(share * c + (1 - share) for c in channels)
