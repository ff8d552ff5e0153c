"""The pictures of a comparison: figures with differences, ladders, training curves, and a map of two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from distmatch.metrics.benchmark import ladder as rungs
from distmatch.study.comparison.report import main_figures, number
from distmatch.study.comparison.results import CURVES, ArmResult, Results
from distmatch.study.comparison.statistics import LADDERS, Array, Estimate
from distmatch.study.comparison.style import (
    INK,
    QUIET,
    SETTINGS,
    START,
    colours,
    head,
    is_few,
    legend_below,
    save,
)

TITLES = {
    "pass": ("pass@k", "a feasible answer among k"),
    "best": ("best@k", "expected best quality of k"),
    "distinct": ("distinct@k", "different solutions among k"),
}


def draw_all(results: Results) -> list[str]:
    """Draw every picture into the comparison's folder; returns their names."""
    drawn = {
        "comparison.png": draw_figures,
        "comparison-ladders.png": draw_ladders,
        "comparison-curves.png": draw_curves,
    }
    if grid_axes(results):
        drawn["comparison-grid.png"] = draw_grid
    with mpl.rc_context(SETTINGS):
        for name, draw in drawn.items():
            save(draw(results), results.plan.folder / name)
    return list(drawn)


def draw_figures(results: Results) -> Figure:
    """Main figures with intervals, and below them the paired differences to the baseline."""
    shown = [f for f in main_figures(results.n) if not f.startswith(("effective", "pass"))]
    arms = results.arms
    others = [arm for arm in arms if results.difference(arm, shown[0]) is not None]
    heights = [len(arms) + 1.2, *([len(others) + 1.2] if others else [])]
    figure = Figure(
        figsize=(12.5, 1.0 + 0.32 * sum(heights) + 0.55 * len(heights)), dpi=150, layout="constrained"
    )
    grid = figure.subplots(len(heights), len(shown), squeeze=False, height_ratios=heights)
    palette = colours([arm.label for arm in arms])
    for column, name in enumerate(shown):
        top = grid[0, column]
        top.set_title(main_figures(results.n)[name])
        for start in results.starts:
            found = results.figure(start, name)
            top.axvspan(found.low, found.high, color=START, alpha=0.15, lw=0)
            top.axvline(found.value, color=START, ls="--", lw=1.2)
        _forest(top, [arm.label for arm in arms], [results.figure(arm, name) for arm in arms], palette)
        if others:
            low = grid[1, column]
            gaps = [results.difference(arm, name) for arm in others]
            low.axvline(0, color=palette.get(results.plan.baseline, QUIET), lw=1.2)
            _forest(low, [arm.label for arm in others], gaps, palette)
            if column == 0:
                low.set_title(f"minus {results.plan.baseline}, paired", loc="left")
        for panel in grid[:, column]:
            panel.tick_params(axis="y", length=0, labelleft=column == 0)
    _head(figure, results, "dots: means, bars: 95 % intervals, dashed: before training")
    return figure


def _forest(
    panel: Axes, labels: Sequence[str], found: Sequence[Estimate | None], palette: dict[str, Any]
) -> None:
    for place, (label, item) in enumerate(zip(labels, found, strict=True)):
        if item is not None and not np.isnan(item.value):
            panel.plot(
                [item.low, item.high], [place, place], color=palette[label], lw=2.2, solid_capstyle="round"
            )
            panel.plot(item.value, place, "o", color=palette[label], ms=5.5)
    panel.set_yticks(range(len(labels)), labels, color=INK)
    panel.set_ylim(len(labels) - 0.4, -0.6)
    panel.grid(axis="y", visible=False)
    panel.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    panel.spines["left"].set_visible(False)


def draw_ladders(results: Results) -> Figure:
    """pass@k, best@k and distinct@k of every arm beside the start's."""
    figure = Figure(figsize=(12.5, 4.6 + 0.16 * (len(results.arms) // 5)), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(LADDERS))
    palette = colours([arm.label for arm in results.arms])
    few = is_few(list(palette))
    k = np.arange(1, results.n + 1)
    for panel, ladder in zip(panels, LADDERS, strict=True):
        for start in results.starts:
            _ladder(panel, k, start.replicates[:, results.ladder(ladder)], START, "--", _start_label(start))
        for place, arm in enumerate(results.arms):
            values = arm.replicates[:, results.ladder(ladder)]
            _ladder(panel, k, values, palette[arm.label], "-", arm.label, band=few)
            first = arm.crossings[ladder].first
            if few and first and first > 1:
                over = sum(other.crossings[ladder].first == first for other in results.arms[place + 1 :])
                ring = {"ms": 7 + 4 * over, "mfc": "white", "mec": palette[arm.label], "mew": 1.6}
                panel.plot(first, values[0, first - 1], "o", zorder=5, **ring)
        title, meaning = TITLES[ladder]
        panel.set_title(title)
        panel.set_ylabel(meaning)
        panel.set_xscale("log", base=2)
        panel.set_xticks(rungs(results.n), [str(rung) for rung in rungs(results.n)])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("k")
    legend_below(figure, panels[0])
    how = "bands: 95 % intervals, circles: the first k at which the start is better" if few else "means"
    _head(figure, results, how)
    return figure


def _ladder(
    panel: Axes, k: Array, replicates: Array, colour: Any, style: str, label: str, band: bool = True
) -> None:
    if band:
        low, high = np.percentile(replicates[1:], [2.5, 97.5], axis=0)
        panel.fill_between(k, low, high, color=colour, alpha=0.15, lw=0)
    panel.plot(k, replicates[0], style, color=colour, label=label, lw=1.7 if band else 1.0)


def _start_label(start: ArmResult) -> str:
    return "before training" if start.label == "start" else start.label


def draw_curves(results: Results) -> Figure:
    """What each iteration measured, and entropy against distinct solutions."""
    figure = Figure(figsize=(12.5, 7.4 + 0.16 * (len(results.arms) // 5)), dpi=150, layout="constrained")
    panels = figure.subplots(2, 3).ravel()
    palette = colours([arm.label for arm in results.arms])
    few = is_few(list(palette))
    shown = [column for column in CURVES if column != "rollout/distinct_solutions"]
    window = max(1, max(arm.curves[shown[0]].shape[1] for arm in results.arms) // 25)
    for panel, column in zip(panels, shown, strict=False):
        for arm in results.arms:
            _band(panel, smooth(arm.curves[column], window), palette[arm.label], arm.label, few)
        panel.set_title(CURVES[column])
        panel.set_xlabel("iteration")
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    last = panels[-1]
    for arm in results.arms:
        _path(last, arm, window, palette[arm.label])
    last.set_title("entropy against distinct solutions")
    last.set_xlabel(CURVES["train/entropy"])
    last.set_ylabel("distinct solutions of a group")
    legend_below(figure, panels[0])
    average = f", running mean over {window} iterations" if window > 1 else ""
    bands = "; bands: smallest to largest" if few else ""
    _head(figure, results, f"lines: means over seeds{average}{bands}; dots: the end")
    return figure


def smooth(values: Array, window: int) -> Array:
    """Centred running mean along the last axis, shorter at the ends; nan is left out."""
    known = ~np.isnan(values)
    kernel = np.ones(window)
    sums = np.array([np.convolve(row, kernel, "full") for row in np.where(known, values, 0.0)])
    counts = np.array([np.convolve(row, kernel, "full") for row in known.astype(float)])
    first = (window - 1) // 2
    inside = slice(first, first + values.shape[1])
    return np.where(counts[:, inside] > 0, sums[:, inside] / np.maximum(counts[:, inside], 1), np.nan)


def _over_seeds(values: Array) -> tuple[Array, Array, Array, Array]:
    """Iterations that some seed has, and mean, smallest and largest over the seeds that have them."""
    there = np.flatnonzero((~np.isnan(values)).any(axis=0))
    part = values[:, there]
    if not len(there):
        return there, there, there, there
    return there, np.nanmean(part, axis=0), np.nanmin(part, axis=0), np.nanmax(part, axis=0)


def _band(panel: Axes, values: Array, colour: Any, label: str, few: bool) -> None:
    x, middle, low, high = _over_seeds(values)
    if few:
        panel.fill_between(x + 1, low, high, color=colour, alpha=0.15, lw=0)
    panel.plot(x + 1, middle, color=colour, label=label, lw=1.7 if few else 1.0)


def _path(panel: Axes, arm: ArmResult, window: int, colour: Any) -> None:
    x, across, *_ = _over_seeds(smooth(arm.curves["train/entropy"], window))
    y, up, *_ = _over_seeds(smooth(arm.curves["rollout/distinct_solutions"], window))
    both = np.intersect1d(x, y)
    if len(both):
        across, up = across[np.isin(x, both)], up[np.isin(y, both)]
        panel.plot(across, up, color=colour, lw=1.2, alpha=0.8)
        panel.plot(across[-1], up[-1], "o", color=colour, ms=6)


def grid_axes(results: Results) -> tuple[str, str] | None:
    """The two axes, if the arms are points of two and each has two values or more."""
    keys = list(results.plan.arms[0].values)
    if len(keys) != 2 or any(list(arm.values) != keys for arm in results.plan.arms):
        return None
    sizes = [len({str(arm.values[key]) for arm in results.plan.arms}) for key in keys]
    return (keys[0], keys[1]) if min(sizes) > 1 else None


def draw_grid(results: Results) -> Figure:
    """Four main figures over two axes; points without a finished cell stay empty."""
    shown = ["success_rate", "quality_ratio", f"best@{results.n}", f"distinct@{results.n}"]
    keys = grid_axes(results) or ("", "")
    values = [list(dict.fromkeys(arm.values[key] for arm in results.plan.arms)) for key in keys]
    points = {arm.label: tuple(arm.values[key] for key in keys) for arm in results.plan.arms}
    rows, columns = map(len, values)
    figure = Figure(figsize=(2 + 1.5 * columns, 1.6 + 1.15 * rows), dpi=150, layout="constrained")
    for panel, name in zip(figure.subplots(2, 2).ravel(), shown, strict=True):
        table = np.full((rows, columns), np.nan)
        for arm in results.arms:
            row, column = (options.index(v) for options, v in zip(values, points[arm.label], strict=True))
            table[row, column] = results.figure(arm, name).value
        picture = panel.imshow(table, cmap="viridis", aspect="auto")
        for (row, column), value in np.ndenumerate(table):
            if not np.isnan(value):
                ink = "white" if picture.norm(value) < 0.6 else "black"
                text = number(value, 2 if name.startswith("distinct") else 3)
                panel.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
        base = points[results.plan.baseline]
        corner = values[1].index(base[1]) - 0.5, values[0].index(base[0]) - 0.5
        panel.add_patch(mpl.patches.Rectangle(corner, 1, 1, fill=False, ec="#d55e00", lw=2, clip_on=False))
        for axis, options, key in ((panel.yaxis, values[0], keys[0]), (panel.xaxis, values[1], keys[1])):
            axis.set_ticks(range(len(options)), [_short(option) for option in options])
            axis.set_label_text(key)
        panel.set_title(main_figures(results.n)[name])
        panel.grid(visible=False)
        panel.tick_params(length=0)
    _head(figure, results, "frame: the baseline")
    return figure


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _head(figure: Figure, results: Results, how: str) -> None:
    seeds = len({seed for arm in results.arms for seed in arm.seeds})
    size = f"{seeds} seed{'s' if seeds > 1 else ''}, {results.prompts} prompts × {results.n} answers"
    head(figure, f"{results.plan.name}: {size}", how)
