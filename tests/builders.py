"""Small synthetic batches for tests of losses and modules: no model, no tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch


def make_batch(
    groups: int = 3,
    group_size: int = 4,
    *,
    rewards: Sequence[float] | Tensor | None = None,
    lengths: Sequence[int] | None = None,
    width: int | None = None,
    masked_rows: Sequence[int] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    hidden: int = 5,
) -> RolloutBatch:
    """Whole groups with every optional field filled in.

    Args:
        groups: N.
        group_size: G.
        rewards: B of them; random in [0, 1) by default.
        lengths: Completion lengths, B of them; random in 1..7 by default.
        width: T; the longest length by default.
        masked_rows: Rows that are truncated and taken out of `loss_mask`.
        seed: Of everything random.
        dtype: Of all floats; float64 for finite differences.
        hidden: H.
    """
    rng = torch.Generator().manual_seed(seed)
    rows = groups * group_size
    sizes = torch.tensor(lengths) if lengths is not None else torch.randint(1, 8, (rows,), generator=rng)
    length = width or int(sizes.max())
    mask = torch.arange(length)[None, :] < sizes[:, None]
    truncated = torch.zeros(rows, dtype=torch.bool)
    truncated[list(masked_rows)] = True

    def logprobs() -> Tensor:
        return torch.where(
            mask, -torch.rand(rows, length, generator=rng, dtype=dtype) * 2, torch.zeros((), dtype=dtype)
        )

    drawn = torch.rand(
        rows, generator=rng, dtype=dtype
    )  # drawn in any case: other fields must not depend on it
    given = drawn if rewards is None else torch.as_tensor(rewards, dtype=dtype)
    return RolloutBatch(
        prompt_ids=torch.ones(rows, 3, dtype=torch.long),
        prompt_mask=torch.ones(rows, 3, dtype=torch.bool),
        completion_ids=torch.where(mask, torch.randint(1, 9, (rows, length), generator=rng), 0),
        completion_mask=mask,
        loss_mask=mask & ~truncated[:, None],
        rewards=given,
        group_size=group_size,
        group_ids=torch.arange(groups).repeat_interleave(group_size) + 100,
        truncated=truncated,
        sampler_logprobs=logprobs(),
        old_logprobs=logprobs(),
        ref_logprobs=logprobs(),
        ref_prompt_hidden=torch.randn(groups, hidden, generator=rng, dtype=dtype).repeat_interleave(
            group_size, dim=0
        ),
        old_values=torch.where(mask, torch.randn(rows, length, generator=rng, dtype=dtype), 0.0),
    )


def make_policy(
    batch: RolloutBatch, *, logprobs: Tensor | None = None, drift: float = 0.3, seed: int = 1
) -> PolicyOutput:
    """A policy output for `batch` whose tensors are all leaves that require grad.

    Args:
        batch: The batch that it scores.
        logprobs: (B, T); the old ones plus noise by default.
        drift: Standard deviation of that noise in nats.
        seed: Of everything random.
    """
    rng = torch.Generator().manual_seed(seed)
    dtype, shape = batch.rewards.dtype, batch.completion_mask.shape
    mask = batch.completion_mask

    def noise(scale: float) -> Tensor:
        return torch.where(mask, scale * torch.randn(shape, generator=rng, dtype=dtype), 0.0)

    if logprobs is None:
        logprobs = batch.old_logprobs + noise(drift)
    hidden = torch.randn(batch.groups, batch.ref_prompt_hidden.shape[1], generator=rng, dtype=dtype)
    return PolicyOutput(
        logprobs=logprobs.clone().requires_grad_(),
        entropy=noise(1.0).abs().requires_grad_(),
        values=noise(1.0).requires_grad_(),
        prompt_hidden=hidden.repeat_interleave(batch.group_size, dim=0).requires_grad_(),
    )


def take_rows(policy: PolicyOutput, rows: Tensor) -> PolicyOutput:
    """The output for some rows (k,) as new leaves that require grad."""
    fields = {f.name: getattr(policy, f.name) for f in dataclasses.fields(policy)}
    return PolicyOutput(
        **{k: None if v is None else v.detach()[rows].requires_grad_() for k, v in fields.items()}
    )
