"""The data types that flow through one iteration: prompts, completions, rollouts, policy outputs, losses.

Letters used in every shape comment of the package:
**N** prompts, **G** group size, **B = N*G** rows (prompt-major), **P** prompt length (left-padded),
**T** completion length (right-padded), **H** hidden size, **V** vocabulary size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from distmatch.ops import flat_groups

Style = Literal["natural", "compact"]


@dataclass(frozen=True)
class Prompt:
    """What a task asks of a model, before any tokenizer has seen it.

    Attributes:
        text: The whole question. A natural prompt becomes the user's chat message; a compact one is taken as
            is.
        style: Which of the two it is.
        images: Pictures that belong to the question, in order (none for text tasks).
    """

    text: str
    style: Style
    images: tuple[object, ...] = ()


@dataclass(frozen=True)
class Completions:
    """What a sampler returns for N prompts with G samples each, prompt-major.

    Attributes:
        ids: Sampled token ids, right-padded with any value, (B, T) long.
        mask: True on sampled tokens, up to and including EOS, (B, T) bool.
        logprobs: The engine's own log-probability of each sampled token in nats, (B, T) float32.
        finished: Whether the row ended by itself (EOS) and was not cut at the length limit, (B,) bool.
    """

    ids: Tensor
    mask: Tensor
    logprobs: Tensor
    finished: Tensor


@dataclass(frozen=True)
class Totals:
    """What losses divide by: counts after every mask, over all ranks, divided by the number of ranks.

    Attributes:
        tokens: True entries of `loss_mask`.
        rows: Rows with at least one true entry.
        groups: Groups with at least one such row.
        signal_groups: Groups in which the rewards of such rows are not all equal.
    """

    tokens: float
    rows: float
    groups: float
    signal_groups: float

    @classmethod
    def of(cls, loss_mask: Tensor, group_size: int, rewards: Tensor) -> Totals:
        """Count one rank's own batch, with `loss_mask` (B, T) bool and `rewards` (B,)."""
        rows = loss_mask.any(dim=1)
        groups = rows.view(-1, group_size).any(dim=1)
        signal = ~flat_groups(rewards, group_size, rows)
        return cls(float(loss_mask.sum()), float(rows.sum()), float(groups.sum()), float(signal.sum()))


@dataclass(frozen=True)
class RolloutBatch:
    """Whole groups of scored completions: all that a loss may know about the world outside the policy.

    Rows `[i*G:(i+1)*G]` answer prompt `i`. Two prompts with the same text in one batch keep two group ids.

    Attributes:
        prompt_ids, prompt_mask: Left-padded prompts, (B, P) long and bool.
        completion_ids, completion_mask: Right-padded completions, (B, T) long and bool; True up to and
            including EOS.
        loss_mask: The tokens that train, (B, T) bool; a subset of `completion_mask` and the only source of
            denominators.
        rewards: One scalar a row, (B,) float32.
        group_size: G.
        group_ids: Given when sampling, constant inside a group and different between groups, (B,) long.
        truncated: Rows cut at the length limit, (B,) bool.
        sampler_logprobs: As the sampling engine reported them, (B, T) float32.
        old_logprobs, ref_logprobs: Of the policy at sampling time and of the reference, (B, T) or None.
        ref_prompt_hidden: Mean over prompt tokens of the frozen reference's last layer, (B, H) or None.
        old_values: The critic's values at sampling time, (B, T) or None.
        totals: Denominators over all ranks; None stands for this batch's own counts.
        images: Extra model inputs of picture tasks, by name.

    Raises:
        ValueError: A group is split, ragged or interleaved, a shape does not fit, or a reward is not a finite
            number.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    loss_mask: Tensor
    rewards: Tensor
    group_size: int
    group_ids: Tensor
    truncated: Tensor
    sampler_logprobs: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    ref_prompt_hidden: Tensor | None = None
    old_values: Tensor | None = None
    totals: Totals = None  # type: ignore[assignment]  # filled in __post_init__
    images: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        rows, length = self.completion_ids.shape
        self._check_groups(rows)
        self._check_rewards(rows)
        for name in (
            "completion_mask",
            "loss_mask",
            "sampler_logprobs",
            "old_logprobs",
            "ref_logprobs",
            "old_values",
        ):
            value = getattr(self, name)
            if value is not None and value.shape != (rows, length):
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}, expected {(rows, length)} like completion_ids"
                )
        if self.totals is None:
            object.__setattr__(self, "totals", Totals.of(self.loss_mask, self.group_size, self.rewards))

    def _check_groups(self, rows: int) -> None:
        if self.group_size < 1 or rows % self.group_size:
            raise ValueError(f"{rows} rows cannot be cut into whole groups of {self.group_size}")
        groups = self.group_ids.view(-1, self.group_size)
        heads = groups[:, 0]
        if not bool((groups == heads[:, None]).all()):
            raise ValueError(
                "group_ids change inside a group: groups must be whole, uniform and prompt-major"
            )
        if heads.unique().numel() != heads.numel():
            raise ValueError("group_ids repeat: a group is split or interleaved, or two prompts share an id")

    def _check_rewards(self, rows: int) -> None:
        if not isinstance(self.rewards, Tensor) or self.rewards.shape != (rows,):
            raise ValueError(f"rewards must be a tensor of shape {(rows,)}, one number a row")
        bad = (~torch.isfinite(self.rewards)).nonzero().reshape(-1)
        if bad.numel():
            raise ValueError(
                f"rewards are nan or infinite in rows {bad[:8].tolist()}: a verifier or reward is broken"
            )

    @property
    def rows(self) -> int:
        """B, the number of rows."""
        return self.completion_ids.shape[0]

    @property
    def groups(self) -> int:
        """N, the number of groups."""
        return self.rows // self.group_size

    def to(self, device: torch.device | str) -> RolloutBatch:
        """The same batch on another device (Lightning calls this for frozen dataclasses too)."""

        def move(value: object) -> object:
            if isinstance(value, Tensor):
                return value.to(device)
            if isinstance(value, Mapping):
                return {key: move(item) for key, item in value.items()}
            return value

        return dataclasses.replace(
            self, **{f.name: move(getattr(self, f.name)) for f in dataclasses.fields(self)}
        )

    def select_groups(self, groups: Tensor) -> RolloutBatch:
        """Whole groups by their position in this batch (k,) long; totals are counted anew."""
        rows = (
            groups[:, None] * self.group_size + torch.arange(self.group_size, device=groups.device)
        ).reshape(-1)
        chosen: dict[str, object] = {"totals": None}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                chosen[field.name] = value[rows]
            elif isinstance(value, Mapping):
                chosen[field.name] = {key: item[rows] for key, item in value.items()}
        return dataclasses.replace(self, **chosen)


@dataclass(frozen=True)
class PolicyOutput:
    """What the current policy says about a batch, with gradient.

    Attributes:
        logprobs: Log-probability of each completion token at the sampling temperature, (B, T) float32; zero
            where the completion mask is False.
        entropy: Entropy of the next-token distribution over the whole vocabulary in nats, (B, T) or None.
        values: The loss's value head on the hidden state that predicts each token, (B, T) or None.
        prompt_hidden: Mean over prompt tokens of the policy's last layer, (B, H) or None.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None
    prompt_hidden: Tensor | None = None


@dataclass(frozen=True)
class LossOutput:
    """A scalar to minimise and detached figures to log.

    Attributes:
        loss: Scalar with gradient.
        metrics: Name to float or 0-d tensor; logged as `train/<name>`.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor | float]
