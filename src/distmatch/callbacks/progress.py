"""ProgressDisplay: one calm display of where a run is, in a terminal; one line an iteration in a log.

At start it prints the batch plan, at the end what training changed on held-out prompts and where to look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from distmatch.callbacks.rollout import RolloutCallback
from distmatch.callbacks.tables import (
    ACCENT,
    QUIET,
    batch_plan,
    before_after_table,
    by_task_table,
    count,
    duration,
    figure,
    figures,
    largest,
    next_steps,
    next_steps_lines,
    plan_table,
)

PHASES = ("sample", "verify", "update", "validate")
_PHASE_OF = {"start": "sample", "sync": "sample", "annotate": "update"}
"""The rollout callback knows more phases than one wants to see."""

COLUMNS: Mapping[str, str] = {
    "reward": "rollout/reward",
    "success": "rollout/success_rate",
    "quality": "rollout/quality_ratio",
    "distinct": "rollout/distinct_solutions",
    "entropy": "train/entropy",
    "length": "rollout/length",
    "tokens/s": "time/tokens_per_second",
}
HELD_OUT: Mapping[str, str] = {
    "success": "success_rate",
    "quality": "quality_ratio",
    "distinct": "distinct_solutions",
}


class ProgressDisplay(Callback):
    """Shows phases, figures and time left; rank 0 only.

    Args:
        micro_batch_tokens: As the module has it, for the batch plan.
        eval_prompts: As the data module has it, for the batch plan.
        plain_every_seconds: Without a terminal, the least time between two lines; 0 prints every iteration.
            Iterations with an evaluation and the last one are always printed.
        console: Where to print; the process-wide one by default, so that other messages appear above it.
    """

    def __init__(
        self,
        micro_batch_tokens: int,
        eval_prompts: int,
        plain_every_seconds: float = 0.0,
        console: Console | None = None,
    ) -> None:
        self._micro_batch_tokens = micro_batch_tokens
        self._eval_prompts = eval_prompts
        self._plain_every = plain_every_seconds
        self._console = console or rich.get_console()
        self._live: Live | None = None
        self._rollout: RolloutCallback | None = None
        self._plan_shown = False
        self._validating = self._held_out_is_new = False
        self._last_line = -math.inf
        self._clock = time.monotonic()
        self._iteration = self._first = self._iterations = 0
        self._samples = (0, 0)  # completions a prompt when training and when evaluating
        self._now: dict[str, float] = {}
        self._held_out: dict[str, float] = {}
        self._start: dict[str, float] = {}
        self._entropy: list[float] = []  # of the first and the last iteration

    # ---- called by run.py ----------------------------------------------------------------------------------

    def remember_start(self, metrics: Mapping[str, float]) -> None:
        """Keep the held-out figures from before training (`val/<name>`), to compare with."""
        self._start = figures(metrics)

    def show_end(self, start: Mapping[str, float], final: Mapping[str, float], run_dir: Path) -> None:
        """Print the comparison of two evaluations (`val/<name>`) and where to look further."""
        self._stop()
        entropy = (self._entropy[0], self._entropy[-1]) if self._entropy else None
        self._console.print(before_after_table(start, final, entropy))
        tasks = by_task_table(start, final)
        if tasks is not None:
            self._console.print(tasks)
        self._console.print(Text("look further", style=f"bold {ACCENT}"))
        for line in next_steps_lines(next_steps(run_dir, max(1, self._iterations))):
            self._console.print(line, soft_wrap=True)
        self._console.print()

    # ---- hooks ---------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print the batch plan, once, before anything is sampled."""
        self._rollout = next(c for c in trainer.callbacks if isinstance(c, RolloutCallback))
        data, self._iterations = trainer.datamodule, int(trainer.max_epochs or 0)
        self._samples = (data.sampling.n, data.eval_sampling.n)
        if self._plan_shown or not trainer.is_global_zero:
            return
        self._plan_shown = True
        plan = batch_plan(
            data,
            micro_batch_tokens=self._micro_batch_tokens,
            eval_prompts=self._eval_prompts,
            iterations=self._iterations,
            eval_every=trainer.check_val_every_n_epoch,
            world=trainer.world_size,
        )
        self._console.print()
        self._console.print(plan_table(plan))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock and the display."""
        self._clock, self._last_line = time.monotonic(), -math.inf
        self._iteration = self._first = trainer.current_epoch
        if trainer.is_global_zero:
            self._go_live(self)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over this iteration's figures; without a terminal, print them."""
        self._iteration = trainer.current_epoch + 1
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
        self._now = {name: metrics[key] for name, key in COLUMNS.items() if key in metrics}
        if "entropy" in self._now:
            self._entropy = [*self._entropy[:1], self._now["entropy"]]
        if trainer.is_global_zero and self._live is None:
            self._print_line()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show that held-out prompts are being answered, also before and after training."""
        self._validating = True
        if trainer.state.fn == TrainerFn.VALIDATING and trainer.is_global_zero:
            what = f"answering {count(self._eval_prompts)} held-out prompts, {self._samples[1]} times each"
            if not self._go_live(Spinner("dots", Text(what, style=QUIET), style=ACCENT), keep=False):
                self._console.print(Text(what), soft_wrap=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the held-out figures."""
        self._validating = False
        self._held_out = figures(trainer.callback_metrics)
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._stop()  # before or after training: the table at the end shows these
        else:
            self._held_out_is_new = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the last state on the screen."""
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the terminal back before the message appears."""
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Never leave a display behind."""
        self._stop()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run compares with, as plain JSON values."""
        return {"start": dict(self._start), "entropy": list(self._entropy), "held_out": dict(self._held_out)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the figures of the interrupted run."""
        self._start, self._held_out = dict(state_dict["start"]), dict(state_dict["held_out"])
        self._entropy = list(state_dict["entropy"])

    # ---- in a terminal -------------------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        """The display as it is now; drawn anew several times a second from a thread of its own."""
        return Padding(Group(self._bar(), self._phases(), Text(), self._figures()), (1, 0, 1, 0))

    def _bar(self) -> RenderableType:
        total, now = self._iterations, self._iteration
        bar = ProgressBar(max(1, total), now, width=30, complete_style=ACCENT, finished_style=ACCENT)
        which = Text(f"iteration {min(now + 1, total)} of {total}", style="bold")
        clock = f"{duration(time.monotonic() - self._clock)} gone   {self._left()} left"
        line = Table.grid(padding=(0, 2))
        line.add_row(which, bar, Text(clock, style=QUIET))
        return line

    def _phases(self) -> RenderableType:
        line = Table.grid(padding=(0, 3))
        now = self._phase()
        marks = [Text(f"· {name}", style=QUIET) for name in PHASES]
        live = Spinner("dots", Text(now, style=f"bold {ACCENT}"), style=ACCENT)
        line.add_row(*(live if name == now else mark for name, mark in zip(PHASES, marks, strict=True)))
        return line

    def _phase(self) -> str:
        """The active one; none when all is done."""
        if self._validating or self._rollout is None:
            return "validate"
        if self._iteration >= self._iterations:
            return ""
        return _PHASE_OF.get(self._rollout.phase, self._rollout.phase)

    def _figures(self) -> RenderableType:
        trained, evaluated = self._samples
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style=QUIET)
        table.add_column(style=QUIET, min_width=14)
        for name in COLUMNS:
            table.add_column(name, justify="right", min_width=8)
        for heading, values, style in (
            (f"rollouts × {trained}", self._now, "bold"),
            (f"held-out × {evaluated}", self._named(self._held_out), "bold"),
            ("before", self._named(self._start), QUIET),
        ):
            table.add_row(heading, *(Text(_cell(name, values), style=style) for name in COLUMNS))
        return table

    def _named(self, held_out: Mapping[str, float]) -> dict[str, float]:
        return {name: held_out[key] for name, key in HELD_OUT.items() if key in held_out}

    def _left(self) -> str:
        """Time to the last iteration at the pace so far; evaluations during training are part of it."""
        done = self._iteration - self._first
        if not done:
            return "-:--:--"
        return duration((time.monotonic() - self._clock) / done * (self._iterations - self._iteration))

    def _go_live(self, view: RenderableType, keep: bool = True) -> bool:
        # FORCE_COLOR makes rich take a CI log for a terminal; the file knows better.
        if not (self._console.is_interactive and self._console.file.isatty()):
            return False
        self._stop()
        self._live = Live(view, console=self._console, refresh_per_second=8, transient=not keep)
        self._live.start(refresh=True)
        return True

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # ---- in a log ------------------------------------------------------------------------------------------

    def _print_line(self) -> None:
        """One line for this iteration, and one for a new evaluation."""
        now = time.monotonic()
        last = self._iteration == self._iterations
        if now - self._last_line >= self._plain_every or self._held_out_is_new or last:
            self._last_line = now
            place = f"{self._iteration:>{len(str(self._iterations))}}/{self._iterations}"
            shown = "  ".join(f"{name} {_cell(name, self._now)}" for name in COLUMNS if name in self._now)
            self._console.print(Text(f"[{place}]  {shown}  left {self._left()}"), soft_wrap=True)
        if self._held_out_is_new:
            self._held_out_is_new = False
            self._console.print(Text(f"  held-out  {self._held_out_line()}"), soft_wrap=True)

    def _held_out_line(self) -> str:
        best = largest("best", self._held_out)
        names = {**HELD_OUT, **({best.replace("@", " of "): best} if best else {})}
        parts = []
        for name, key in names.items():
            if key in self._held_out:
                before = f" (before {figure(self._start[key])})" if key in self._start else ""
                parts.append(f"{name} {figure(self._held_out[key])}{before}")
        return "  ".join(parts)


def _cell(name: str, values: Mapping[str, float]) -> str:
    if name not in values:
        return ""
    value = values[name]
    if math.isnan(value):
        return "-"
    if name == "tokens/s":
        return count(value)
    digits = {"length": 1, "distinct": 2}.get(name, 3)
    return f"{value:.{digits}f}"
