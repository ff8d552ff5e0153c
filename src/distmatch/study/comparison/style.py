"""How the pictures of a comparison look: one colour an arm in all of them, quiet axes, one legend each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, QUIET, GRID = "#222222", "#6b6b6b", "#e6e6e6"
START = "#7a7a7a"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a4fbf", "#8c6d31")
"""Okabe and Ito's colours without yellow and black, and two more: most eyes can tell them apart."""
SETTINGS: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
}


def colours(labels: Sequence[str]) -> dict[str, Any]:
    """A colour for each arm; more arms than the palette has run through a scale, in their order."""
    if is_few(labels):
        return dict(zip(labels, PALETTE, strict=False))
    scale = mpl.colormaps["viridis"]
    return {label: scale(0.95 * i / (len(labels) - 1)) for i, label in enumerate(labels)}


def save(figure: Figure, file: Path) -> None:
    """Write a PNG and move it into place."""
    scratch = file.with_suffix(".tmp.png")
    FigureCanvasAgg(figure).print_png(scratch)
    scratch.replace(file)


def head(figure: Figure, title: str, how: str) -> None:
    """A title and a line that says how to read the picture, above all panels."""
    figure.suptitle(" \n \n", fontsize=11)  # keeps the room
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    height = figure.get_figheight()
    for text, inches, size, weight, colour in (
        (title, 0.1, 11, "bold", INK),
        (how, 0.34, 8.5, "normal", QUIET),
    ):
        figure.text(0.01, 1 - inches / height, text, size=size, weight=weight, color=colour, va="top")


def is_few(labels: Sequence[str]) -> bool:
    """Whether each arm has a colour that can be told from all others."""
    return len(labels) <= len(PALETTE)


def legend_below(figure: Figure, axes: Axes) -> None:
    """One legend under all panels, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    rows = math.ceil(sum(len(label) + 6 for label in labels) / 130)
    columns = math.ceil(len(labels) / rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=1.8, fontsize=9)
