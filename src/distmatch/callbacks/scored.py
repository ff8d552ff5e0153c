"""Scored completions: what becomes of tokens between the sampler and the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distmatch.batch import Completions, RolloutBatch
from distmatch.data.rollouts import Query, RolloutDataModule
from distmatch.metrics.benchmark import GroupScore
from distmatch.modules.evidence import NonFiniteError, blame
from distmatch.ops import flat_groups
from distmatch.rewards import Outcome, Reward, score
from distmatch.sampling.hf import left_pad


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
        trained: N flags, False for groups that dynamic sampling leaves out of the loss; None: no group is.
    """

    iteration: int
    queries: Sequence[Query]
    texts: Sequence[str]
    outcomes: Sequence[Outcome]
    lengths: Sequence[int]
    truncated: Sequence[bool]
    group_size: int
    trained: Sequence[bool] | None = None

    def groups(self) -> Iterator[tuple[Query, slice]]:
        """Each prompt with the slice of its rows."""
        for i, query in enumerate(self.queries):
            yield query, slice(i * self.group_size, (i + 1) * self.group_size)

    def trains(self) -> Sequence[bool]:
        """Whether each group trains, N flags."""
        return [True] * len(self.queries) if self.trained is None else self.trained

    def rewards(self) -> Tensor:
        """What the loss will see, (B,) float32."""
        return torch.tensor([o.reward for o in self.outcomes], dtype=torch.float32)


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
    outcomes = [
        score(data.task, instance, text, reward, length)
        for instance, text, length in zip(instances, texts, lengths, strict=True)
    ]
    truncated = (~completions.finished).tolist()
    return Rollouts(iteration, queries, texts, outcomes, lengths, truncated, n)


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
    mask, truncated = completions.mask.to(device), ~completions.finished.to(device)
    trains = torch.tensor(rollouts.trains(), device=device).repeat_interleave(n)
    if data.mask_truncated:
        trains = trains & ~truncated
    return RolloutBatch(
        prompt_ids=prompt_ids.repeat_interleave(n, dim=0),
        prompt_mask=prompt_mask.repeat_interleave(n, dim=0),
        completion_ids=completions.ids.to(device),
        completion_mask=mask,
        loss_mask=mask & trains[:, None],
        rewards=rollouts.rewards().to(device),
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


def rollout_figures(rollouts: Rollouts) -> dict[str, float | Tensor]:
    """Means over this iteration's completions, trained on or not, under the names of `rollout/*`."""
    outcomes, size = rollouts.outcomes, rollouts.group_size
    rows, rewards = len(outcomes), rollouts.rewards()
    feasible = [o.quality for o in outcomes if o.success]
    distinct = [len({o.verdict.key for o in outcomes[part] if o.success}) for _, part in rollouts.groups()]
    figures = {
        "reward": rewards.mean(),
        "reward_std": rewards.view(-1, size).std(dim=1).mean() if size > 1 else 0.0,
        "success_rate": sum(o.success for o in outcomes) / rows,
        "quality_ratio": sum(o.quality for o in outcomes) / rows,
        "quality_feasible": sum(feasible) / max(1, len(feasible)),
        "parsed": sum(o.verdict.parsed for o in outcomes) / rows,
        "distinct_solutions": sum(distinct) / len(distinct),
        "length": sum(rollouts.lengths) / rows,
        "truncated": sum(rollouts.truncated) / rows,
    }
    # A group of one has nothing to differ from: its flatness would say nothing.
    return figures | ({"flat_groups": flat_groups(rewards, size).float().mean()} if size > 1 else {})
