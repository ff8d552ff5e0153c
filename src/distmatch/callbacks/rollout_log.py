"""RunLog: what a run leaves behind in plain files, readable without this package.

`rollouts.jsonl` has a line per training completion, `metrics.csv` a row per iteration. Both are flushed
before the checkpoint of the same iteration is written, and cut back to it on resume, so a killed run leaves
no line twice.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from distmatch.callbacks.rollout import RolloutCallback, Rollouts
from distmatch.data.rollouts import RolloutDataModule


class RunLog(Callback):
    """Writes `rollouts.jsonl` and `metrics.csv` into the run folder.

    Attributes:
        start: Held-out figures from before training.
        held_out: Those of the last iteration, empty if it had no evaluation.

    Args:
        folder: The run folder.
        rollouts_every: Write the completions of every n-th iteration; 0 writes none.
    """

    def __init__(self, folder: str, rollouts_every: int = 1) -> None:
        self._folder = Path(folder)
        self._rollouts_every = rollouts_every
        self._iteration = -1
        self._seconds = 0.0
        self._tokens = 0
        self._clock = 0.0
        self._validated = False
        self.held_out: dict[str, float] = {}
        self.start: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cut the files back to the checkpoint that training goes on from, or to nothing."""
        self._clock = time.perf_counter()
        cut_rollouts(self._rollouts_file(trainer.global_rank), self._iteration)
        if trainer.is_global_zero:
            rows = [row for row in read_rows(self._metrics_file) if int(row["iteration"]) <= self._iteration]
            if len(rows) <= self._iteration:
                print(f"{self._metrics_file} has {len(rows)} of the {self._iteration + 1} iterations so far")
            write_rows(self._metrics_file, rows)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No held-out figures of this iteration yet."""
        self._validated = False
        self.held_out = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Held-out figures are fresh now."""
        self._validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Append this iteration, before the checkpoint callback runs."""
        self._iteration = trainer.current_epoch
        callback = next(c for c in trainer.callbacks if isinstance(c, RolloutCallback))
        sampled = torch.tensor(float(sum(callback.latest.lengths)), device=pl_module.device)
        self._tokens += int(trainer.strategy.reduce(sampled, reduce_op="sum"))
        if self._rollouts_every and self._iteration % self._rollouts_every == 0:
            self._append_rollouts(trainer, callback.latest)
        if trainer.is_global_zero:
            now = time.perf_counter()
            self._seconds, self._clock = self._seconds + now - self._clock, now
            self._append_metrics(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The last whole iteration and the totals so far, as plain JSON values."""
        return {
            "iteration": self._iteration,
            "seconds": self._seconds,
            "tokens": self._tokens,
            "start": dict(self.start),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember where the checkpoint stood."""
        self._iteration = int(state_dict["iteration"])
        self._seconds, self._tokens = float(state_dict["seconds"]), int(state_dict["tokens"])
        self.start = dict(state_dict["start"])

    def totals(self) -> dict[str, float]:
        """Seconds of training, tokens sampled on all ranks, and iterations, over all sessions of the run."""
        return {"seconds": self._seconds, "tokens": self._tokens, "iterations": self._iteration + 1}

    @property
    def _metrics_file(self) -> Path:
        return self._folder / "metrics.csv"

    def _rollouts_file(self, rank: int) -> Path:
        return self._folder / ("rollouts.jsonl" if rank == 0 else f"rollouts-rank{rank}.jsonl")

    def _append_rollouts(self, trainer: Trainer, rollouts: Rollouts) -> None:
        file = self._rollouts_file(trainer.global_rank)
        with file.open("a", encoding="utf-8") as out:
            for record in rollout_records(rollouts, trainer.datamodule):
                out.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _append_metrics(self, trainer: Trainer) -> None:
        figures = {k: float(v) for k, v in trainer.callback_metrics.items() if "/" in k}
        fresh = {k: v for k, v in figures.items() if self._validated or not k.startswith("val/")}
        self.held_out = {k: v for k, v in fresh.items() if k.startswith("val/")}
        row = {
            "iteration": self._iteration,
            "step": trainer.global_step,
            "tokens": self._tokens,
            "time/seconds": self._seconds,
            **fresh,
        }
        append_row(self._metrics_file, {k: _plain(v) for k, v in row.items()})


def cut_rollouts(file: Path, iteration: int) -> None:
    """Keep the lines up to `iteration`: later ones, and a half-written last line, are left by a kill."""
    kept = 0
    file.touch()
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n") or json.loads(line)["iteration"] > iteration:
                break
            kept += len(line)
    os.truncate(file, kept)


def rollout_records(rollouts: Rollouts, data: RolloutDataModule) -> Iterable[dict[str, Any]]:
    """One JSON-ready record per completion, under the names of the documentation."""
    for (query, rows), trained in zip(rollouts.groups(), rollouts.trains(), strict=True):
        for row in range(rows.start, rows.stop):
            outcome = rollouts.outcomes[row]
            yield {
                "iteration": rollouts.iteration,
                "task": query.instance.task,
                "instance": query.instance.id,
                "group": query.group_id,
                "completion": rollouts.texts[row],
                "parsed": outcome.verdict.parsed,
                "feasible": outcome.success,
                "value": outcome.verdict.value,
                "reference": outcome.reference,
                "quality": outcome.quality,
                "key": outcome.verdict.key,
                "reason": outcome.verdict.reason,
                "reward": outcome.reward,
                "length": rollouts.lengths[row],
                "truncated": rollouts.truncated[row],
                "trained": trained,
            }


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a metrics file; an absent file has none, a half-written last line is left out."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    return [row for row in csv.DictReader(io.StringIO(whole)) if None not in row.values()]


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write all rows at once under the union of their columns, and move the file into place."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    scratch = file.with_suffix(".tmp")
    with scratch.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns, restval="")
        if columns:
            writer.writeheader()
        writer.writerows(rows)
    scratch.replace(file)


def append_row(file: Path, row: Mapping[str, Any]) -> None:
    """Add a row; when it brings a new column the file is written anew, else only the line is appended."""
    header = _header(file)
    if set(row) <= set(header):
        with file.open("a", newline="", encoding="utf-8") as out:
            csv.DictWriter(out, header, restval="").writerow(row)
    else:
        write_rows(file, [*read_rows(file), dict(row)])


def _header(file: Path) -> list[str]:
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return next(csv.reader(lines), [])


def _plain(value: float) -> float | str:
    """Not-a-number is an empty cell."""
    return "" if isinstance(value, float) and not math.isfinite(value) else value
