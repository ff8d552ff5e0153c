"""The picture of a study of the lab: reward against coverage, and the way to the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distmatch.study.lab_study import Cell, Finished

MARKERS = "osD^vP*Xph<>d8"


def draw(finished: Sequence[Finished], cell: Cell, file: Path) -> None:
    """Draw and save; one colour and marker an entry, one small point a seed, lines are means over seeds."""
    entries = list(dict.fromkeys(f.entry for f in finished))
    shades = mpl.colormaps["turbo"]
    looks = {
        entry: (shades(0.04 + 0.92 * i / max(1, len(entries) - 1)), MARKERS[i % len(MARKERS)])
        for i, entry in enumerate(entries)
    }
    figure = Figure(figsize=(12.5, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for entry, (colour, marker) in looks.items():
        mine = [f for f in finished if f.entry == entry]
        _coverage(left, mine, colour, marker, entry)
        _trajectory(right, mine, colour, marker)
    best = finished[0].figures["best_strings"]
    left.axhline(best, color="0.8", lw=1, zorder=0)
    left.set(xlabel="expected reward", ylabel=f"best strings in 64 samples (of {best:.0f})")
    left.set_title("Reward against coverage", loc="left", fontsize=10)
    beta = cell.knobs["beta"]
    right.set(xlabel="iteration", ylabel=f"KL(p*‖π) in nats, p* at β = {beta:g}", yscale="log")
    right.set_title("The way to the target, or away from it", loc="left", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    landscape = cell.task.get("landscape", "lab")
    seeds = len({f.seed for f in finished})
    title = f"Exact lab, landscape {landscape}, {seeds} seed{'s' if seeds > 1 else ''}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(file, dpi=150)


def _coverage(axes: Axes, mine: Sequence[Finished], colour: object, marker: str, entry: str) -> None:
    points = [(f.figures["reward"], f.figures["modes"]) for f in mine]
    axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, s=14, alpha=0.45, linewidths=0)
    centre = [mean(column) for column in zip(*points, strict=True)]
    axes.scatter(*centre, color=colour, marker=marker, s=64, label=entry, edgecolors="white", linewidths=0.7)


def _trajectory(axes: Axes, mine: Sequence[Finished], colour: object, marker: str) -> None:
    """One line, which ends in the entry's marker."""
    columns: dict[float, list[float]] = {}
    for f in mine:
        for row in f.history:
            columns.setdefault(row["iteration"], []).append(row["kl_target_policy"])
    steps = sorted(columns)
    heights = [max(mean(columns[step]), 1e-4) for step in steps]
    ends = {"marker": marker, "markevery": [len(steps) - 1], "markersize": 6, "markeredgecolor": "white"}
    axes.plot(steps, heights, color=colour, lw=1.3, alpha=0.9, **ends)
