"""RolloutCallback: where weights go to the sampler and completions come back as scored rollouts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from distmatch.batch import Completions, RolloutBatch
from distmatch.data.rollouts import Query, RolloutDataModule
from distmatch.metrics.benchmark import GroupScore
from distmatch.modules.evidence import NonFiniteError, blame
from distmatch.modules.policy import PolicyModule
from distmatch.ops import flat_groups
from distmatch.rewards import Outcome, Reward, score
from distmatch.sampling.base import Sampler, SamplingParams
from distmatch.sampling.hf import left_pad
from distmatch.tasks.base import derive_seed


@dataclass(frozen=True)
class Rollouts:
    """One iteration's scored completions on this rank, prompt-major.

    Attributes:
        iteration: Which one.
        queries: N prompts.
        texts: N*G decoded completions.
        outcomes: N*G verdicts with success, quality and reward.
        lengths: N*G lengths in tokens.
        truncated: N*G flags.
        group_size: G.
    """

    iteration: int
    queries: Sequence[Query]
    texts: Sequence[str]
    outcomes: Sequence[Outcome]
    lengths: Sequence[int]
    truncated: Sequence[bool]
    group_size: int

    def groups(self) -> Iterator[tuple[Query, slice]]:
        """Each prompt with the slice of its rows."""
        for i, query in enumerate(self.queries):
            yield query, slice(i * self.group_size, (i + 1) * self.group_size)


class RolloutCallback(Callback):
    """At the start of every iteration: sync, sample, verify, reward, annotate, fill the buffer.

    Args:
        sampler: Draws the completions.
        reward: Turns verdicts into rewards.

    Attributes:
        latest: The last training rollouts, for callbacks that write or show them.
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
        """Tell the module how many updates share a rollout."""
        pl_module.updates_per_rollout = trainer.datamodule.updates_per_rollout

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One iteration's rollouts."""
        data, iteration = trainer.datamodule, trainer.current_epoch
        # Whatever draws from torch's global generator during this iteration repeats after a resume.
        torch.manual_seed(derive_seed("iteration", data.seed, iteration, trainer.global_rank))
        queries = data.next_queries(trainer.global_rank, trainer.world_size)
        seeds = data.sample_seeds(queries, "train", data.sampling.n)
        clock: dict[str, float] = {}
        completions, self.latest = self._collect(trainer, pl_module, queries, data.sampling, seeds, clock)
        batch = to_batch(queries, completions, self.latest, data, pl_module.device)
        with self._timed("annotate", clock):
            batch = pl_module.annotate(batch)
        data.fill(batch, iteration)
        self._log(pl_module, trainer, batch, clock)
        self.phase, self._update_began = "update", time.perf_counter()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Refuse to train on rollouts of another iteration."""
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
        queries = data.eval_queries(trainer.global_rank, trainer.world_size)
        seeds = data.sample_seeds(queries, "eval", data.eval_sampling.n)
        _, self.latest_eval = self._collect(trainer, pl_module, queries, data.eval_sampling, seeds, {})
        data.fill_validation(group_scores(self.latest_eval, data))
        self.phase = "validate"

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the sampler's resources back."""
        self._sampler.close()
        self._ready = False

    # ---- steps ---------------------------------------------------------------------------------------------

    def _collect(
        self,
        trainer: Trainer,
        pl_module: PolicyModule,
        queries: Sequence[Query],
        params: SamplingParams,
        seeds: Sequence[int],
        clock: dict[str, float],
    ) -> tuple[Completions, Rollouts]:
        with self._timed("sync", clock):
            if not self._ready:
                self._sampler.setup(pl_module.policy)
                self._ready = True
            self._sampler.sync(pl_module.policy)
        with self._timed("sample", clock):
            completions = self._sampler.sample([q.ids for q in queries], params, seeds)
        with self._timed("verify", clock):
            rollouts = verify(
                trainer.datamodule, self._reward, queries, completions, params.n, trainer.current_epoch
            )
        return completions, rollouts

    @contextmanager
    def _timed(self, phase: str, clock: dict[str, float]) -> Iterator[None]:
        self.phase = phase
        start = time.perf_counter()
        yield
        clock[phase] = time.perf_counter() - start

    def _log(
        self, pl_module: PolicyModule, trainer: Trainer, batch: RolloutBatch, clock: dict[str, float]
    ) -> None:
        figures = {f"rollout/{k}": v for k, v in rollout_figures(self.latest, batch).items()}
        figures["rollout/prompts_seen"] = float(trainer.datamodule.state_dict()["prompts_seen"])
        times = {f"time/{k}": v for k, v in clock.items()}
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


def verify(
    data: RolloutDataModule,
    reward: Reward,
    queries: Sequence[Query],
    completions: Completions,
    n: int,
    iteration: int = 0,
) -> Rollouts:
    """Decode and score n completions per query.

    Raises:
        NonFiniteError: The sampler's log-probabilities are not finite.
    """
    if not bool(torch.isfinite(completions.logprobs).all()):
        why = blame(data.policy)
        raise NonFiniteError(f"the sampler returned log-probabilities that are not finite{why}")
    lengths = completions.mask.sum(dim=1).tolist()
    texts = [
        data.policy.decode(row[:length])
        for row, length in zip(completions.ids.tolist(), lengths, strict=True)
    ]
    instances = [q.instance for q in queries for _ in range(n)]
    outcomes = [score(data.task, i, text, reward) for i, text in zip(instances, texts, strict=True)]
    truncated = (~completions.finished).tolist()
    return Rollouts(iteration, queries, texts, outcomes, lengths, truncated, n)


def evaluate(data: RolloutDataModule, sampler: Sampler, reward: Reward) -> list[GroupScore]:
    """Score the held-out prompts with a sampler that is set up, outside any trainer."""
    queries, params = data.eval_queries(), data.eval_sampling
    completions = sampler.sample(
        [q.ids for q in queries], params, data.sample_seeds(queries, "eval", params.n)
    )
    return group_scores(verify(data, reward, queries, completions, params.n), data)


def to_batch(
    queries: Sequence[Query],
    completions: Completions,
    rollouts: Rollouts,
    data: RolloutDataModule,
    device: torch.device,
) -> RolloutBatch:
    """Completions and their rewards as what losses see, on the policy's device."""
    n = rollouts.group_size
    prompt_ids, prompt_mask = left_pad([q.ids for q in queries], device)
    rewards = torch.tensor([o.reward for o in rollouts.outcomes], dtype=torch.float32, device=device)
    mask, truncated = completions.mask.to(device), ~completions.finished.to(device)
    return RolloutBatch(
        prompt_ids=prompt_ids.repeat_interleave(n, dim=0),
        prompt_mask=prompt_mask.repeat_interleave(n, dim=0),
        completion_ids=completions.ids.to(device),
        completion_mask=mask,
        loss_mask=mask & ~truncated[:, None] if data.mask_truncated else mask,
        rewards=rewards,
        group_size=n,
        group_ids=torch.tensor([q.group_id for q in queries], device=device).repeat_interleave(n),
        truncated=truncated,
        sampler_logprobs=completions.logprobs.to(device),
    )


def group_scores(rollouts: Rollouts, data: RolloutDataModule) -> list[GroupScore]:
    """What the held-out metrics count: one record a prompt."""
    scores = []
    categories = data.task.categories()  # a suite may sort its tasks otherwise than they do themselves
    for query, rows in rollouts.groups():
        outcomes = rollouts.outcomes[rows]
        name = data.task.problem(query.instance).name
        scores.append(
            GroupScore(
                task=name,
                category=categories[name],
                successes=[o.success for o in outcomes],
                qualities=[o.quality for o in outcomes],
                keys=[o.verdict.key for o in outcomes],
            )
        )
    return scores


def rollout_figures(rollouts: Rollouts, batch: RolloutBatch) -> dict[str, float | Tensor]:
    """Means over this iteration's completions, under the names of `rollout/*`."""
    outcomes = rollouts.outcomes
    rows = len(outcomes)
    feasible = [o.quality for o in outcomes if o.success]
    distinct = [len({o.verdict.key for o in outcomes[part] if o.success}) for _, part in rollouts.groups()]
    return {
        "reward": batch.rewards.mean(),
        "reward_std": batch.rewards.view(-1, batch.group_size).std(dim=1).mean()
        if batch.group_size > 1
        else 0.0,
        "success_rate": sum(o.success for o in outcomes) / rows,
        "quality_ratio": sum(o.quality for o in outcomes) / rows,
        "quality_feasible": sum(feasible) / max(1, len(feasible)),
        "parsed": sum(o.verdict.parsed for o in outcomes) / rows,
        "distinct_solutions": sum(distinct) / len(distinct),
        "length": sum(rollouts.lengths) / rows,
        "truncated": sum(rollouts.truncated) / rows,
        "flat_groups": flat_groups(batch.rewards, batch.group_size).float().mean(),
    }
