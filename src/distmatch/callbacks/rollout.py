"""RolloutCallback: where weights go to the sampler and completions come back as scored rollouts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from distmatch.batch import Completions
from distmatch.callbacks.collection import collect
from distmatch.callbacks.scored import Rollouts, group_scores, rollout_figures, to_batch, verify
from distmatch.data.rollouts import Query, RolloutDataModule
from distmatch.metrics.benchmark import GroupScore
from distmatch.modules.policy import PolicyModule
from distmatch.rewards import Reward
from distmatch.sampling.base import Sampler
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import derive_seed


class RolloutCallback(Callback):
    """At the start of every iteration: sync, sample, verify, reward, annotate, fill the buffer.

    Args:
        sampler: Draws the completions.
        reward: Turns verdicts into rewards.

    Attributes:
        latest: The last training rollouts, all that were sampled, for callbacks that write or show them.
        latest_eval: The last held-out ones.
        phase: What is going on now, for the progress display.
    """

    def __init__(self, sampler: Sampler, reward: Reward) -> None:
        self._sampler = sampler
        self._reward = reward
        self._ready = False
        self._update_began = 0.0
        self.latest: Rollouts | None = None
        self.latest_eval: Rollouts | None = None
        self.phase = "start"

    @property
    def sampler(self) -> Sampler:
        """What draws the completions."""
        return self._sampler

    # ---- hooks ---------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the module how many updates share a rollout.

        Raises:
            ConfigError: The loss needs the sampling policy, and the data are stored trajectories.
        """
        data: RolloutDataModule = trainer.datamodule
        if data.offline and "old_logprobs" in pl_module.loss.requires:
            raise ConfigError(
                f"algo: {type(pl_module.loss).__name__} compares the policy with the one that sampled, which "
                "stored trajectories do not tell; train on them with algo=sft, or sample with data=rollouts"
            )
        pl_module.updates_per_rollout = data.updates_per_rollout

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One iteration's rollouts."""
        data, iteration, rank = trainer.datamodule, trainer.current_epoch, trainer.global_rank
        # Whatever draws from torch's global generator during this iteration repeats after a resume.
        torch.manual_seed(derive_seed("iteration", data.seed, iteration, rank))
        clock: dict[str, float] = {}
        if not data.offline:
            self._sync(pl_module, clock)

        def draw(queries: Sequence[Query]) -> tuple[Completions, Rollouts]:
            return self._draw(trainer, queries, "train", clock)

        found = collect(data, draw, rank, trainer.world_size)
        self.latest = found.sampled
        batch = to_batch(found.batch.queries, found.completions, found.batch, data, pl_module.device)
        if data.offline:
            unknown = torch.full_like(batch.sampler_logprobs, torch.nan)
            batch = dataclasses.replace(batch, sampler_logprobs=unknown)
        with self._timed("annotate", clock):
            batch = pl_module.annotate(batch)
        data.fill(batch, iteration)
        self._log(pl_module, trainer, found.figures, clock)
        self.phase, self._update_began = "update", time.perf_counter()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Refuse to train on rollouts of another iteration; start the clock of the updates."""
        if batch_idx == 0:
            self._update_began = time.perf_counter()
        held = trainer.datamodule.buffered_iteration()
        if held != trainer.current_epoch:
            raise RuntimeError(
                f"iteration {trainer.current_epoch} would train on rollouts of iteration {held}; resume "
                "from a checkpoint that was written at the end of an iteration"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log how long the updates of this iteration took together."""
        if batch_idx + 1 == trainer.datamodule.updates_per_rollout:
            seconds = time.perf_counter() - self._update_began
            pl_module.log("time/update", seconds, on_step=False, on_epoch=True, batch_size=1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sample and score the held-out prompts, before the validation loop counts them."""
        data = trainer.datamodule
        clock: dict[str, float] = {}
        self._sync(pl_module, clock)
        queries = data.eval_queries(trainer.global_rank, trainer.world_size)
        _, self.latest_eval = self._draw(trainer, queries, "eval", clock)
        data.fill_validation(group_scores(self.latest_eval, data))
        self.phase = "validate"

    def close(self) -> None:
        """Give the sampler's resources back at the end of a run: one engine serves all its parts."""
        self._sampler.close()
        self._ready = False

    # ---- steps ---------------------------------------------------------------------------------------------

    def _sync(self, pl_module: PolicyModule, clock: dict[str, float]) -> None:
        # Lightning validates in inference mode; an engine that starts there could never take new weights.
        with self._timed("sync", clock), torch.inference_mode(False):
            if not self._ready:
                self._sampler.setup(pl_module.policy)
                self._ready = True
            self._sampler.sync(pl_module.policy)

    def _draw(
        self, trainer: Trainer, queries: Sequence[Query], purpose: str, clock: dict[str, float]
    ) -> tuple[Completions, Rollouts]:
        """Completions of some prompts, sampled or looked up, and what they are worth."""
        data: RolloutDataModule = trainer.datamodule
        params = data.sampling if purpose == "train" else data.eval_sampling
        if purpose == "train" and data.offline:
            completions = data.stored(queries)
        else:
            with self._timed("sample", clock):
                seeds = data.sample_seeds(queries, purpose, params.n)
                completions = self._sampler.sample([q.ids for q in queries], params, seeds)
        with self._timed("verify", clock):
            rollouts = verify(data, self._reward, queries, completions, params.n, trainer.current_epoch)
        return completions, rollouts

    @contextmanager
    def _timed(self, phase: str, clock: dict[str, float]) -> Iterator[None]:
        self.phase = phase
        start = time.perf_counter()
        yield
        clock[phase] = clock.get(phase, 0.0) + time.perf_counter() - start

    def _log(
        self, pl_module: PolicyModule, trainer: Trainer, own: Mapping[str, float], clock: dict[str, float]
    ) -> None:
        figures = {f"rollout/{k}": v for k, v in {**rollout_figures(self.latest), **own}.items()}
        figures["rollout/prompts_seen"] = float(trainer.datamodule.state_dict()["prompts_seen"])
        times = {f"time/{k}": v for k, v in clock.items()}
        if "sample" in clock:
            times["time/tokens_per_second"] = sum(self.latest.lengths) / max(clock["sample"], 1e-9)
        for name, value in {**figures, **times}.items():
            pl_module.log(
                name,
                float(value),
                on_step=False,
                on_epoch=True,
                batch_size=1,
                sync_dist=trainer.world_size > 1,
            )


def evaluate(data: RolloutDataModule, sampler: Sampler, reward: Reward) -> list[GroupScore]:
    """Score the held-out prompts with a sampler that is set up, outside any trainer."""
    queries, params = data.eval_queries(), data.eval_sampling
    completions = sampler.sample(
        [q.ids for q in queries], params, data.sample_seeds(queries, "eval", params.n)
    )
    return group_scores(verify(data, reward, queries, completions, params.n), data)
