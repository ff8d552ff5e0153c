"""What a study of the lab leaves behind: comparison.csv, comparison.md and comparison.png."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from distmatch.study.lab_study import Cell, Finished

COLUMNS: Mapping[str, tuple[str, str]] = {
    "reward": ("E[r]", ".3f"),
    "modes": ("best strings in 64", ".1f"),
    "entropy": ("entropy", ".2f"),
    "mean_length": ("length", ".2f"),
    "kl_target_policy": ("KL(p*‖π)", ".3g"),
    "kl_policy_target": ("KL(π‖p*)", ".3g"),
    "nearest_beta": ("nearest β", "z.1f"),
    "kl_policy_nearest": ("KL(π‖p_β)", ".3g"),
    "log_z_error": ("log Ẑ − log Z", "+.2f"),
}
"""Figures of the table: their heads and how they are written."""


def write_report(finished: Sequence[Finished], cell: Cell, folder: Path) -> str:
    """Write all three files; returns the table.

    Args:
        finished: Results in the order of the entries.
        cell: Any cell of the study: its settings are named in the texts.
        folder: Where to.
    """
    rows = [{"entry": f.entry, "seed": f.seed, **_figures(f)} for f in finished]
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows)
    note = describe(cell, rows)
    (folder / "comparison.md").write_text(f"{note}\n\n{text}\n", encoding="utf-8")
    from distmatch.study.lab_picture import draw

    draw(finished, cell, folder / "comparison.png")
    return text


def _figures(finished: Finished) -> dict[str, float]:
    found = dict(finished.figures)
    return found | {"log_z_error": found["log_z_believed"] - found["log_z_exact"]}


def describe(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> str:
    """The setting in words, with what the columns mean."""
    k = cell.knobs
    seeds = sorted({int(row["seed"]) for row in rows})
    given = {key: value for key, value in cell.task.items() if key != "_target_" and value is not None}
    task = ", ".join(f"{key}={value}" for key, value in given.items())
    spread = ": mean, in brackets smallest and largest" if len(seeds) > 1 else ""
    return (
        f"Lab: {task}. Tabular policy, reference logits N(0, {k['reference_scale']}²), "
        f"{k['groups']} groups x {k['group_size']} answers, Adam {k['lr']}, {k['iterations']} iterations; "
        f"target p* at β = {k['beta']}; seeds {seeds}{spread}. *Best strings "
        f"in 64*: expected number of different best strings ({rows[0]['best_strings']:.0f} exist) in 64 "
        "samples. *Nearest β*: the tilted reference p_β with the policy's own E[r]; KL(π‖p_β) is what the "
        "policy gave up beyond that reward."
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, one line an entry."""
    shown = {key: text for key, text in COLUMNS.items() if any(_known(row.get(key)) for row in rows)}
    if len({format(row["mean_length"], ".3f") for row in rows}) == 1:  # a language of one length
        shown.pop("mean_length", None)
    heads = ["", *(head for head, _ in shown.values())]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for entry in dict.fromkeys(row["entry"] for row in rows):
        mine = [row for row in rows if row["entry"] == entry]
        cells = [_cell([row.get(key) for row in mine], form) for key, (_, form) in shown.items()]
        lines.append(f"| `{entry}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _known(value: Any) -> bool:
    return isinstance(value, float) and not math.isnan(value)


def _cell(values: Sequence[Any], form: str) -> str:
    known = [value for value in values if _known(value)]
    if not known:
        return "–"
    texts = [format(value, form).replace("inf", "∞") for value in (mean(known), min(known), max(known))]
    return texts[0] if len(known) == 1 or len(set(texts)) == 1 else f"{texts[0]} ({texts[1]}, {texts[2]})"
