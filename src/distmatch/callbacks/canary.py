"""Canary: stops a run whose sampling engine does not run the trainer's policy, before it trains on a lie."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import rich
import torch
from lightning import Callback, LightningModule, Trainer

from distmatch.batch import RolloutBatch
from distmatch.callbacks.rollout import RolloutCallback
from distmatch.callbacks.sync_causes import Explanation, Sequences
from distmatch.callbacks.sync_check import Report, SyncCheck, SyncError, failure, fixed_prompts
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler


class Canary(Callback):
    """Checks after every sync, on every rank; see `distmatch.callbacks.sync_check`.

    Logs `rollout/sync_gap`, the mean of |engine - trainer| in nats a token, beside `rollout/sync_limit`, and
    `time/canary`. When a check fails, all ranks stop with a `SyncError`, and what was compared is kept in the
    run folder. The HF sampler has no weights of its own that could be old: it is checked once, at the start.

    Args:
        folder: The run folder.
        prompts: Fixed prompts, made of held-out ones.
        samples: Completions of each.
        prompt_tokens: Length of the fixed prompts, at most data.max_prompt_tokens. The default is longer than
            an engine's cache block (16 tokens on GPUs, 128 on CPUs), or a stale cache would not be noticed.
        max_tokens: Length limit of their completions, at most data.max_tokens.
        rows: Rows of each iteration's rollouts to look at as well.
        bound: Accept gaps up to this many nats; null derives the limit from a floor measured at the start and
            from the number formats.
        engine_dtype: The engine's number format by name, or `auto`; see `SyncCheck`.

    Raises:
        ValueError: A value is out of its range.
    """

    def __init__(
        self,
        folder: str,
        prompts: int = 2,
        samples: int = 2,
        prompt_tokens: int = 160,
        max_tokens: int = 32,
        rows: int = 4,
        bound: float | None = None,
        engine_dtype: str = "auto",
    ) -> None:
        sizes = {"prompts": prompts, "samples": samples, "prompt_tokens": prompt_tokens}
        for name, value in (sizes | {"max_tokens": max_tokens, "rows": rows}).items():
            if value < 1:
                raise ValueError(f"callbacks.canary.{name}={value} must be at least 1")
        if bound is not None and not bound > 0:
            raise ValueError(f"callbacks.canary.bound={bound} must be above 0 nats, or null")
        if engine_dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(
                f"callbacks.canary.engine_dtype={engine_dtype!r} is unknown; choose auto, float32, bfloat16 "
                "or float16"
            )
        self._folder = Path(folder)
        self._prompts, self._samples, self._prompt_tokens = prompts, samples, prompt_tokens
        self._max_tokens, self._rows, self._bound = max_tokens, rows, bound
        self._engine_dtype = engine_dtype
        self._check: SyncCheck | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the engine after this iteration's sync, before the first update."""
        if trainer.datamodule.offline:
            return  # stored trajectories: nothing was synced, and no engine sampled them
        began = time.perf_counter()
        report = self._look(trainer, pl_module, trainer.datamodule.train_dataloader().dataset[0])
        if report is None:
            return
        figures = {"rollout/sync_gap": report.gap, "rollout/sync_limit": report.limit}
        figures["time/canary"] = time.perf_counter() - began
        pl_module.log_dict(
            figures, on_step=False, on_epoch=True, batch_size=1, sync_dist=trainer.world_size > 1
        )

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Held-out figures must be those of the policy too."""
        self._look(trainer, pl_module, None)

    def _look(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch | None
    ) -> Report | None:
        """Every rank takes the same turns, so that a sharded model's collective calls meet."""
        policy, check = pl_module.policy, self._made(trainer, pl_module)
        sampler = next(c.sampler for c in trainer.callbacks if isinstance(c, RolloutCallback))
        own_weights = not isinstance(sampler, HFSampler)
        if check.floor is not None and not own_weights:
            return None
        report = check.look(policy, sampler, batch)
        if _anywhere(trainer, not report.passed):
            report = check.look_again(policy, report)
            if _anywhere(trainer, not report.passed):
                self._stop(trainer, report, check.explain(policy, sampler, report))
        if check.floor is None and own_weights and trainer.is_global_zero:
            rich.get_console().print(
                f"canary: engine and trainer agree to {report.gap:.1g} nats a token (16-bit arithmetic alone "
                f"makes {report.rounding:.1g})",
                soft_wrap=True,
                highlight=False,
            )
        check.remember(report)
        return report if own_weights else None

    def _made(self, trainer: Trainer, pl_module: LightningModule) -> SyncCheck:
        """The check, made when the data are there; it asks for nothing longer than the run itself does."""
        if self._check is None:
            data = trainer.datamodule
            prompts = [query.ids for query in data.eval_queries()]
            length = min(self._prompt_tokens, data.max_prompt_tokens)
            tokens = min(self._max_tokens, data.sampling.max_tokens)
            self._check = SyncCheck(
                fixed_prompts(prompts, self._prompts, length),
                SamplingParams(self._samples, tokens, data.sampling.temperature),
                data.seed,
                self._rows,
                self._bound,
                self._engine_dtype,
                pl_module.precision,
            )
        return self._check

    def _stop(self, trainer: Trainer, report: Report, explanation: Explanation) -> None:
        if report.passed:
            raise SyncError("the engine of another rank does not run the trainer's policy", "other_rank", {})
        name = f"canary-iteration{trainer.current_epoch}-rank{trainer.global_rank}.pt"
        keep(report, explanation, self._folder / name)
        raise failure(report, explanation, f". What was compared is kept in {self._folder / name}")


def keep(report: Report, explanation: Explanation, file: Path) -> None:
    """Write what was compared as plain tensors, numbers and texts: `torch.load` needs no code for them."""
    kept: dict[str, Any] = {
        "cause": explanation.cause,
        "distances": explanation.distances,
        "gap": report.gap,
        "limit": report.limit,
        "rounding": report.rounding,
        "fixed": _tensors(report.fixed),
        "rollouts": None if report.rollouts is None else _tensors(report.rollouts),
    }
    torch.save(kept, file)


def _tensors(seen: Sequences) -> dict[str, torch.Tensor]:
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "sampler_logprobs")
    return {name: getattr(seen.batch, name).cpu() for name in names} | {"trainer": seen.trainer.cpu()}


def _anywhere(trainer: Trainer, failed: bool) -> bool:
    """Whether a claim holds on any rank."""
    flag = torch.tensor(float(failed), device=trainer.strategy.root_device)
    return bool(trainer.strategy.reduce(flag, reduce_op="sum") > 0)
