"""`comparison.md` and `comparison.csv`: what was compared, how it ended, and how that was computed."""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from distmatch.metrics.benchmark import ladder as rungs
from distmatch.study.comparison.plan import BUDGET
from distmatch.study.comparison.results import ArmResult, Results
from distmatch.study.comparison.statistics import LADDERS, Estimate, figure_names

MINUS = "−"
CSV_COLUMNS = ("arm", "figure", "seed", "value", "low", "high", "difference", "difference_low")
CSV_COLUMNS += ("difference_high", "seeds", "prompts")
METHOD = """\
Every policy, trained or not, answers the same held-out prompts {n} times with the same random numbers
(`eval_seed={seed}`); the records are in `evaluation.jsonl` of each cell. A figure is the unweighted mean over
categories of the mean over tasks of the mean over prompts, and over seeds. pass@k, best@k (expected best
quality of k answers) and distinct@k (expected number of different feasible solutions among k answers, by
rarefaction) are unbiased estimates from n = {n} answers. *Quality of feasible* leaves infeasible answers out.

Brackets are 95 % intervals of a two-way bootstrap with {resamples} resamples: prompts (inside each task) and
seeds are drawn with replacement, independently; all policies get the same resamples, so differences are
paired by prompt and by seed. {about_seeds}

*The start overtakes* at the smallest k at which the mean of the model before training is the higher one;
*clearly* from the smallest k at which the whole interval of the difference says so. No correction is made
for looking at several figures."""


def main_figures(n: int) -> dict[str, str]:
    """Heading by figure, for the tables."""
    return {
        "success_rate": "success rate",
        "quality_ratio": "quality ratio",
        "quality_feasible": "quality of feasible",
        f"pass@{n}": f"pass@{n}",
        f"best@{n}": f"best@{n}",
        f"distinct@{n}": f"distinct@{n}",
        f"effective_solutions@{n}": f"effective solutions of {n}",
    }


def number(value: float, digits: int = 3) -> str:
    """A rounded number with a true minus sign; a dash for what does not exist."""
    if math.isnan(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("-", MINUS) if float(text) else f"{0:.{digits}f}"


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_report(results: Results, command: Sequence[str], pictures: Sequence[str]) -> None:
    """Write both files into the comparison's folder."""
    folder = results.plan.folder
    _write(folder / "comparison.md", "\n\n".join(_sections(results, command, pictures)) + "\n")
    with (folder / "comparison.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(CSV_COLUMNS)
        writer.writerows(csv_rows(results))
    with (folder / "curves.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["arm", "seed", "iteration", "figure", "value"])
        writer.writerows(_curve_rows(results))


def _write(file: Path, text: str) -> None:
    scratch = file.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(file)


# ---- Markdown ----------------------------------------------------------------------------------------------


def _sections(results: Results, command: Sequence[str], pictures: Sequence[str]) -> Iterator[str]:
    plan, n = results.plan, results.n
    yield f"# Comparison: {plan.name}"
    yield _compared(results, command)
    if results.failures:
        texts = [f"**{f.cell.name} failed** (exit status {f.status}):" for f in results.failures]
        blocks = ["```\n" + "\n".join(f.lines) + "\n```" for f in results.failures]
        yield "## Cells that failed\n\n" + "\n\n".join(
            f"{a}\n\n{b}" for a, b in zip(texts, blocks, strict=True)
        )
    yield f"## Held-out figures after training\n\n{figure_table(results)}"
    if any(arm.differences is not None for arm in results.arms):
        yield f"## Differences to {plan.baseline}, paired\n\n{difference_table(results)}"
    yield f"## Each seed\n\n{seed_table(results)}"
    for ladder in LADDERS:
        yield f"## {ladder}@k\n\n{ladder_table(results, ladder)}"
    yield f"## Where the start overtakes\n\n{crossing_table(results)}"
    yield f"## What it took\n\n{cost_table(results)}"
    yield "## Pictures\n\n" + "\n\n".join(f"![{Path(name).stem}]({name})" for name in pictures)
    seeds = {seed for arm in results.arms for seed in arm.seeds}
    about = (
        "There is one seed, so the intervals say nothing about other seeds."
        if len(seeds) == 1
        else f"With {len(seeds)} seeds the part of the variance that comes from seeds is underestimated by "
        f"the factor {len(seeds) - 1}/{len(seeds)}."
    )
    request = plan.request
    yield "## Method\n\n" + METHOD.format(
        n=n, seed=request.eval_seed, resamples=request.resamples, about_seeds=about
    )


def _compared(results: Results, command: Sequence[str]) -> str:
    plan = results.plan
    cfg = plan.cells[0].cfg
    prompts, group, iterations = (OmegaConf.select(cfg, key) for key in BUDGET)
    lines = [
        f"- compared: {'; '.join(arm.label for arm in plan.arms)}; baseline {plan.baseline}",
        f"- seeds: {', '.join(map(str, sorted({cell.seed for cell in plan.cells})))}",
        f"- task {cfg.choices.task}, reward {cfg.choices.reward}, model {cfg.choices.model}",
        f"- budget of {plan.cells[0].arm}: {iterations} iterations of {prompts} prompts × {group} answers",
        f"- evaluation: {results.prompts} prompts × {results.n} answers, split {cfg.data.eval_split}",
    ]
    lines += [f"- **not equal:** {note}" for note in plan.notes]
    if plan.request.common:
        lines.append(f"- settings of all cells: `{shlex.join(plan.request.common)}`")
    if plan.request.runs:
        lines += [f"- {cell.arm}, seed {cell.seed}: `{cell.run}`" for cell in plan.cells]
    return "\n".join(lines) + f"\n\n```bash\n{shlex.join(command)}\n```"


def interval(found: Estimate | None, digits: int = 3, signed: bool = False) -> str:
    """A figure with its interval."""
    if found is None:
        return "–"
    plus = "+" if signed and found.value > 0 else ""
    low, high = number(found.low, digits), number(found.high, digits)
    return f"{plus}{number(found.value, digits)} [{low}, {high}]"


def _digits(figure: str) -> int:
    return 2 if figure.startswith(("distinct", "effective")) else 3


def figure_table(results: Results) -> str:
    """Start and arms by main figure."""
    figures = main_figures(results.n)
    rows = [
        [arm.label, _seeds(arm), *(interval(results.figure(arm, f), _digits(f)) for f in figures)]
        for arm in (*results.starts, *results.arms)
    ]
    return markdown(["", "seeds", *figures.values()], rows)


def difference_table(results: Results) -> str:
    """Arm minus baseline by main figure."""
    figures = main_figures(results.n)
    rows = [
        [arm.label, *(interval(results.difference(arm, f), _digits(f), signed=True) for f in figures)]
        for arm in results.arms
        if arm.label != results.plan.baseline
    ]
    return markdown(["", *figures.values()], rows)


def seed_table(results: Results) -> str:
    """Every run by main figure, in brackets minus the baseline's run of that seed."""
    figures = main_figures(results.n)
    columns = [results.column(figure) for figure in figures]
    rows = []
    for arm in results.arms:
        for seed, values in arm.per_seed.items():
            gaps = results.seed_differences(arm, seed)
            row = [arm.label, str(seed)]
            for figure, column in zip(figures, columns, strict=True):
                digits = _digits(figure)
                sign = "+" if gaps is not None and gaps[column] > 0 else ""
                gap = "" if gaps is None else f" ({sign}{number(float(gaps[column]), digits)})"
                row.append(number(float(values[column]), digits) + gap)
            rows.append(row)
    return markdown(["", "seed", *figures.values()], rows)


def ladder_table(results: Results, ladder: str) -> str:
    """Start and arms by k."""
    ks = rungs(results.n)
    names = [f"{ladder}@{k}" for k in ks]
    rows = [
        [arm.label, *(interval(results.figure(arm, name), _digits(ladder)) for name in names)]
        for arm in (*results.starts, *results.arms)
    ]
    return markdown(["", *(f"k = {k}" for k in ks)], rows)


def crossing_table(results: Results) -> str:
    """By arm and ladder: the smallest k at which the start is better."""
    rows = []
    for arm in results.arms:
        cells = []
        for ladder in LADDERS:
            found = arm.crossings[ladder]
            clear = f"clearly from k = {found.clear}" if found.clear else "never clearly"
            cells.append(f"k = {found.first}, {clear}" if found.first else f"none up to {results.n}")
        rows.append([arm.label, arm.start, *cells])
    return markdown(["", "against", *(f"{ladder}@k" for ladder in LADDERS)], rows)


def cost_table(results: Results) -> str:
    """Means over seeds of what training took."""
    rows = []
    for arm in results.arms:
        cost = arm.costs
        rows.append(
            [
                arm.label,
                f"{cost['answers']:,.0f}",
                f"{cost['tokens']:,.0f}",
                f"{cost['training_seconds']:,.0f}",
                f"{cost['wall_seconds']:,.0f}",
                f"{cost['peak_memory_bytes'] / 2**20:,.0f}",
            ]
        )
    headers = [
        "mean over seeds",
        "answers sampled",
        "tokens sampled",
        "training seconds",
        "wall seconds of the run",
    ]
    return (
        markdown([*headers, "peak memory, MiB (largest)"], rows)
        + "\n\nTraining seconds count all sessions of a run; wall seconds are those of the last session, "
        "evaluations during the run included. The final evaluation is in neither. Seconds of cells that ran "
        "side by side, or on a busy machine, say little."
    )


def _seeds(arm: ArmResult) -> str:
    return ", ".join(map(str, arm.seeds)) or "–"


# ---- CSV ---------------------------------------------------------------------------------------------------


def csv_rows(results: Results) -> Iterator[list[object]]:
    """Every figure of every arm over all seeds (`seed` is `all`), then of each seed."""
    names = figure_names(results.n)
    for arm in (*results.starts, *results.arms):
        for name in names:
            own, gap = results.figure(arm, name), results.difference(arm, name)
            gaps = ["", "", ""] if gap is None else [gap.value, gap.low, gap.high]
            numbers = [own.value, own.low, own.high, *gaps]
            yield [arm.label, name, "all", *map(_cell, numbers), len(arm.seeds), results.prompts]
        for seed, values in arm.per_seed.items():
            gaps = results.seed_differences(arm, seed)
            for place, name in enumerate(names):
                gap = "" if gaps is None else _cell(float(gaps[place]))
                yield [
                    arm.label,
                    name,
                    seed,
                    _cell(float(values[place])),
                    "",
                    "",
                    gap,
                    "",
                    "",
                    1,
                    results.prompts,
                ]


def _curve_rows(results: Results) -> Iterator[list[object]]:
    for arm in results.arms:
        for figure, values in arm.curves.items():
            for seed, line in zip(arm.seeds, values, strict=True):
                for iteration, value in enumerate(line):
                    yield [arm.label, seed, iteration, figure, _cell(float(value))]


def _cell(value: object) -> object:
    """What does not exist is an empty cell."""
    return "" if isinstance(value, float) and math.isnan(value) else value
