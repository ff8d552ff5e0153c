"""What a comparison prints when it is done: a short table, and where the rest lies."""

from __future__ import annotations

import rich
from rich import box
from rich.table import Table

from distmatch.study.comparison.report import interval, main_figures, number
from distmatch.study.comparison.results import Results


def show(results: Results) -> None:
    """Print the main figures with intervals, and the folder."""
    console = rich.get_console()
    shown = {
        f: heading
        for f, heading in main_figures(results.n).items()
        if not f.startswith(("effective", "quality_f"))
    }
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", title_justify="left")
    table.add_column("")
    for heading in shown.values():
        table.add_column(heading, justify="right", overflow="fold")
    for arm in (*results.starts, *results.arms):
        cells = [number(results.figure(arm, f).value, 2 if "distinct" in f else 3) for f in shown]
        table.add_row(arm.label, *cells)
    console.print()
    console.print(table)
    for arm in results.arms:
        gap = results.difference(arm, "quality_ratio")
        if gap is not None:
            console.print(
                f"quality ratio, {arm.label} minus {results.plan.baseline}: {interval(gap, signed=True)}",
                highlight=False,
                soft_wrap=True,
            )
    console.print(f"\nreport: {results.plan.folder / 'comparison.md'}", highlight=False, soft_wrap=True)
