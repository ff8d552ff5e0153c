"""What a run prints at its ends: the batch plan, held-out figures before and after, where to look next."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from distmatch.data.rollouts import RolloutDataModule

QUIET, ACCENT, BETTER, WORSE = "dim", "cyan", "green", "red"


# ---- the batch plan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchPlan:
    """The arithmetic of an iteration.

    Attributes:
        prompts: N over all ranks.
        group_size: G.
        updates: Optimizer steps per iteration.
        world: Ranks.
        max_prompt_tokens, max_tokens: Limits of a prompt and of a completion.
        micro_batch_tokens: Padded tokens of one chunk.
        iterations: Of the whole run.
        eval_prompts, eval_samples: Of one evaluation.
        eval_every: Iterations between evaluations; None for none during training.
    """

    prompts: int
    group_size: int
    updates: int
    world: int
    max_prompt_tokens: int
    max_tokens: int
    micro_batch_tokens: int
    iterations: int
    eval_prompts: int
    eval_samples: int
    eval_every: int | None

    @property
    def rows(self) -> int:
        """B, completions per iteration."""
        return self.prompts * self.group_size

    @property
    def prompts_per_update(self) -> int:
        """Prompts of one optimizer step on one rank."""
        return self.prompts // (self.updates * self.world)

    @property
    def rows_per_chunk(self) -> int:
        """Completions that pass through the model at once if all are as long as they may be."""
        return max(1, self.micro_batch_tokens // (self.max_prompt_tokens + self.max_tokens))

    @property
    def chunks(self) -> int:
        """Most passes through the model per optimizer step and rank."""
        return math.ceil(self.prompts_per_update * self.group_size / self.rows_per_chunk)

    @property
    def most_tokens(self) -> int:
        """Most tokens that an iteration samples."""
        return self.rows * self.max_tokens


def batch_plan(
    data: RolloutDataModule,
    *,
    micro_batch_tokens: int,
    eval_prompts: int,
    iterations: int,
    eval_every: int | None,
    world: int,
) -> BatchPlan:
    """The plan that follows from a data module and what the other parts of a run decide."""
    return BatchPlan(
        prompts=data.prompts_per_iteration,
        group_size=data.sampling.n,
        updates=data.updates_per_rollout,
        world=world,
        max_prompt_tokens=data.max_prompt_tokens,
        max_tokens=data.sampling.max_tokens,
        micro_batch_tokens=micro_batch_tokens,
        iterations=iterations,
        eval_prompts=eval_prompts,
        eval_samples=data.eval_sampling.n,
        eval_every=eval_every,
    )


def plan_table(plan: BatchPlan) -> Table:
    """The plan as numbers with what each means and which setting it comes from."""
    steps = plan.iterations * plan.updates
    ranks = f", on each of {plan.world} ranks" if plan.world > 1 else ""
    chunk_rows = min(plan.rows_per_chunk, plan.prompts_per_update * plan.group_size)
    evaluation = f"{count(plan.eval_prompts)} × {count(plan.eval_samples)}"
    often = {None: "", 1: ", every iteration"}.get(plan.eval_every, f", every {plan.eval_every} iterations")
    rows = [
        ("prompts", count(plan.prompts), "per iteration, data.prompts_per_iteration"),
        ("group size", count(plan.group_size), "completions per prompt, data.group_size"),
        ("completions", count(plan.rows), "per iteration, prompts × group size"),
        ("sampled tokens", count(plan.most_tokens), "per iteration at most, data.max_tokens"),
        ("mini-batches", count(plan.updates), "one step each, data.updates_per_rollout"),
        ("prompts per step", count(plan.prompts_per_update), f"in whole groups{ranks}"),
        ("chunk", count(chunk_rows), "completions at once, module.micro_batch_tokens"),
        ("chunks per step", count(plan.chunks), f"at most{ranks}"),
        ("iterations", count(plan.iterations), f"{count(steps)} optimizer steps, trainer.max_epochs"),
        ("evaluation", evaluation, f"prompts × samples{often}"),
    ]
    table = _table("batch plan")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style=QUIET)
    for row in rows:
        table.add_row(*row)
    table.show_header = False
    return table


# ---- before and after --------------------------------------------------------------------------------------


def figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """The held-out figures of some metrics under their bare names: `val/tsp/best@4` becomes `tsp/best@4`."""
    return {k.removeprefix("val/"): float(v) for k, v in metrics.items() if k.startswith("val/")}


def largest(name: str, *metrics: Mapping[str, float]) -> str | None:
    """The figure `<name>@<k>` with the largest k that all mappings have, None if there is none."""
    shared = set(metrics[0]).intersection(*metrics[1:])
    found = [int(m[1]) for key in shared if (m := re.fullmatch(rf"{re.escape(name)}@(\d+)", key))]
    return f"{name}@{max(found)}" if found else None


def shown_figures(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, str]:
    """Heading by figure, in the order of the tables, for all that exist."""
    best, samples = largest("best", before, after), largest("mean", before, after)
    of = f" of {samples.partition('@')[2]}" if samples else ""
    headings = {
        "success_rate": "success rate",
        "quality_ratio": "quality ratio",
        "quality_feasible": "quality of feasible",
        **({best: f"best of {best.partition('@')[2]}"} if best else {}),
        "distinct_solutions": f"distinct solutions{of}",
    }
    return {key: heading for key, heading in headings.items() if key in before or key in after}


def before_after_table(
    start: Mapping[str, float], final: Mapping[str, float], entropy: tuple[float, float] | None = None
) -> Table:
    """Held-out figures before and after with their difference and the 95 % interval of the second.

    Args:
        start: Metrics from before training under `val/<name>`.
        final: The same from after.
        entropy: Of the policy in the first and in the last iteration, nats per token.
    """
    before, after = figures(start), figures(final)
    table = _table("held-out prompts, before and after (mean of categories)")
    table.add_column()
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", style=QUIET, no_wrap=True)
    for key, heading in shown_figures(before, after).items():
        old, new = before.get(key, math.nan), after.get(key, math.nan)
        low, high = after.get(f"{key}_low", math.nan), after.get(f"{key}_high", math.nan)
        interval = "" if math.isnan(low) or math.isnan(high) else f"{figure(low)} to {figure(high)}"
        table.add_row(heading, figure(old), bold(new), change(old, new), interval)
    if entropy:
        first, last = entropy
        difference = Text(f"{last - first:+.3f}")
        table.add_row("entropy, nats a token", figure(first), bold(last), difference, "while training")
    return table


def by_task_table(start: Mapping[str, float], final: Mapping[str, float]) -> Table | None:
    """Each task's figures after training with the change, None if there is but one task."""
    before, after = figures(start), figures(final)
    parts = {key.partition("/")[0]: None for key in after if "/" in key and not key.startswith("category_")}
    if len(parts) < 2:
        return None
    shown = shown_figures(before, after)
    table = _table("by task, after and change")
    table.add_column(no_wrap=True)
    for heading in shown.values():
        short = re.sub(r" rate| ratio| solutions.*|quality of ", "", heading)
        table.add_column(short, justify="right", no_wrap=True)
    for part in parts:
        table.add_row(part.replace("_", " "), *(_cell(before, after, f"{part}/{key}") for key in shown))
    return table


def _cell(before: Mapping[str, float], after: Mapping[str, float], key: str) -> Text:
    if key not in before or key not in after:
        return Text("-", style=QUIET)
    number = Text(f"{after[key]:.2f} ")
    return number.append_text(change(before[key], after[key], digits=2))


# ---- where to look next ------------------------------------------------------------------------------------


def next_steps(run_dir: Path, iterations: int) -> list[tuple[str, str]]:
    """What is in a run folder and the command or file that opens it; only what is there."""
    resume = f"python train.py resume={_short(run_dir)} trainer.max_epochs={2 * iterations}"
    options = [
        ("tensorboard", "curves, samples, pictures", f"tensorboard --logdir {_short(run_dir)}"),
        ("rollouts.jsonl", "every completion", _short(run_dir / "rollouts.jsonl")),
        ("metrics.csv", "a row per iteration", _short(run_dir / "metrics.csv")),
        ("metrics.json", "final figures", _short(run_dir / "metrics.json")),
        ("export", "the trained model", _short(run_dir / "export")),
        ("checkpoints", "train on", resume),
    ]
    return [(what, how) for name, what, how in options if (run_dir / name).exists()]


def next_steps_lines(steps: Sequence[tuple[str, str]]) -> list[Text]:
    """One line each, aligned, never wrapped, so that commands can be copied."""
    width = max((len(what) for what, _ in steps), default=0)
    return [Text.assemble((f"  {what:<{width}}   ", QUIET), how) for what, how in steps]


def _short(path: Path) -> str:
    """The path as one would type it here."""
    inside = path.resolve().is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(path) if inside else str(path.resolve()))


# ---- numbers -----------------------------------------------------------------------------------------------


def count(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{round(number):,}".replace(",", " ")


def figure(value: float) -> str:
    """Three digits after the point, two from 10 on, nothing for a figure that does not exist."""
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def bold(value: float) -> Text:
    """A figure that matters."""
    return Text(figure(value), style="bold")


def change(before: float, after: float, digits: int = 3) -> Text:
    """A signed difference: green if it rose, red if it fell, quiet if it rounds to nothing."""
    if math.isnan(before) or math.isnan(after):
        return Text("-", style=QUIET)
    difference = round(after - before, digits) + 0.0
    style = BETTER if difference > 0 else WORSE if difference < 0 else QUIET
    return Text(f"{difference:+.{digits}f}", style=style)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style=f"bold {ACCENT}",
        header_style=QUIET,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
