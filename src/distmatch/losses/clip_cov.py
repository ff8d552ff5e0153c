"""Clip-Cov: leave out a few of the tokens that would lower the entropy most."""

from __future__ import annotations

import torch
from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.aggregate import token_mean
from distmatch.losses.base import ZeroSignal
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.ops import masked_mean, where_mask

_LARGEST_KEY = torch.iinfo(torch.int64).max


class ClipCovLoss(GRPOLoss):
    """Clip-Cov. arXiv 2505.22617.

    GRPO's clipped surrogate (see `GRPOLoss`), in which some tokens count zero, without gradient. With

        cov_t = (A_t - mean A) (log pi(o_t) - mean log pi)        means over all tokens

    a token may be left out if low < cov_t < high and the ratio clip has not already taken its gradient. Of
    those, floor(share * tokens) are drawn at random. They stay in the denominators. The idea: entropy falls
    by the covariance of log-probability and advantage, and a handful of tokens makes up most of it.

    Fixed point: GRPO's, all mass on best answers, one of them by chance; the way there is slower.

    Assumes that rows were sampled from pi_old, and batches large enough that share * tokens is 1 or more:
    below 5,000 tokens the paper's 2e-4 leaves out nothing, and this is GRPO. Raise `share`, or set
    `at_least_one`, as the authors' code does.

    Each rank takes the means and draws from its own tokens, as the authors' code does; so with tokens left
    out, several ranks give a slightly different update than one. The draw depends on torch's global generator
    (seeded anew every iteration by `RolloutCallback`, so it repeats after a resume) and on a token's group,
    answer and position, not on the order of rows or on padding.

    Metrics: those of `GRPOLoss`; `clip_cov_fraction`, `clip_cov_candidates` (shares of tokens).

    Args:
        share: Of the batch's tokens, how many are left out at most.
        cov_low, cov_high: Between which covariances.
        at_least_one: Leave out one token even if share * tokens is below 1 (authors' code, on every rank).
        clip_low, clip_high: Limits of the ratio, see `GRPOLoss`.
        aggregation: A name of `distmatch.losses.aggregate`.
        constant_length: Only for `aggregation="constant"`.
        scale_rewards: Divide advantages by the group's standard deviation.
        kl_coef: Weight of the KL term, see `GRPOLoss`.
        zero_signal: `keep` or `drop` groups whose rewards are all equal.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    def __init__(
        self,
        share: float = 2e-4,
        cov_low: float = 1.0,
        cov_high: float = 5.0,
        at_least_one: bool = False,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregation: str = "token_mean",
        constant_length: int | None = None,
        scale_rewards: bool = True,
        kl_coef: float = 0.0,
        zero_signal: ZeroSignal = "keep",
    ) -> None:
        super().__init__(
            clip_low=clip_low,
            clip_high=clip_high,
            aggregation=aggregation,
            constant_length=constant_length,
            scale_rewards=scale_rewards,
            kl_coef=kl_coef,
            zero_signal=zero_signal,
        )
        if not 0 <= share <= 1 or cov_low >= cov_high:
            raise ValueError(
                f"share={share} must be in [0, 1] and cov_low={cov_low} below cov_high={cov_high}"
            )
        self.share, self.cov_low, self.cov_high, self.at_least_one = share, cov_low, cov_high, at_least_one

    def surrogate(
        self, ratio: Tensor, advantages: Tensor, batch: RolloutBatch, policy: PolicyOutput
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate, zero on the tokens that are left out."""
        surrogate, _ = super().surrogate(ratio, advantages, batch, policy)
        mask = batch.loss_mask
        cov = covariances(advantages.expand_as(surrogate), policy.logprobs.detach(), mask)
        clipped = surrogate.detach() < (ratio * advantages).detach()
        candidates = mask & ~clipped & (cov > self.cov_low) & (cov < self.cov_high)
        quota = max(int(self.share * batch.totals.tokens), int(self.at_least_one))
        left_out = pick(candidates, quota, token_keys(batch))
        metrics = {
            "clip_cov_fraction": token_mean(left_out.to(cov.dtype), batch),
            "clip_cov_candidates": token_mean(candidates.to(cov.dtype), batch),
        }
        return where_mask(surrogate, ~left_out), metrics


def covariances(advantages: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """Each token's part of the covariance of advantage and log-probability, (B, T); zero where masked."""
    parts = [where_mask(values - masked_mean(values, mask), mask) for values in (advantages, logprobs)]
    return parts[0] * parts[1]


def pick(candidates: Tensor, quota: int, keys: Tensor) -> Tensor:
    """The `quota` candidates with the smallest keys, or all if there are fewer, (B, T) bool."""
    ranked = keys.masked_fill(~candidates, _LARGEST_KEY).reshape(-1)
    first = ranked.topk(min(quota, ranked.numel()), largest=False).indices
    picked = torch.zeros_like(ranked, dtype=torch.bool)
    picked[first] = True
    return picked.view_as(candidates) & candidates


def token_keys(batch: RolloutBatch) -> Tensor:
    """A random number for every token that trains, (B, T) int64: from its group, answer and position."""
    salt = int(torch.randint(_LARGEST_KEY, ()))
    position = torch.arange(batch.completion_ids.shape[1], device=batch.completion_ids.device)
    tokens = _scramble(_scramble(batch.completion_ids) + position)
    answer = where_mask(tokens, batch.loss_mask).sum(dim=1) + _scramble(batch.group_ids)  # (B,)
    return _scramble(_scramble(answer + salt)[:, None] + position)


def _scramble(numbers: Tensor) -> Tensor:
    """splitmix64 (Steele et al., OOPSLA 2014) on int64, which wraps around; not for secrets."""
    mixed = numbers + -7046029254386353131  # 0x9E3779B97F4A7C15
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
        low_bits = (1 << (64 - shift)) - 1  # a logical shift: int64 has only the arithmetic one
        mixed = (mixed ^ ((mixed >> shift) & low_bits)) * factor
    return mixed
