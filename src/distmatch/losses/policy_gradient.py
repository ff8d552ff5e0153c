"""Group-relative policy gradients: reward what was better than the other answers to the same prompt."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.aggregate import make_aggregation, over, token_mean
from distmatch.losses.base import Loss, ZeroSignal, drops
from distmatch.losses.kl import choose_kl_estimator, choose_kl_loss, clamped
from distmatch.ops import flat_groups, group_centred, group_zscore, log_ratio, masked_sum, where_mask


class GRPOLoss(Loss):
    """GRPO, group relative policy optimization. DeepSeekMath, arXiv 2402.03300.

    With A_i = (r_i - mean) / (std + 1e-6) over the group and rho_t = pi(o_t) / pi_old(o_t) per token:

        L = aggregate_t( -min(rho_t A_i, clip(rho_t, 1 - clip_low, 1 + clip_high) A_i) )
            + kl_coef * aggregate_t(KL_t)

    Fixed point: without the KL term, any policy that puts all mass on best answers. Which of several best
    answers is left to chance: one usually takes everything, which is the collapse that this package is about.

    Assumes that rows were sampled from pi_old. Groups of equal rewards push in no direction (exactly zero),
    but stay in the denominators and feel the KL term with `zero_signal="keep"`; `drop` takes them out of both
    (see `Loss.drops_zero_signal_groups`: PolicyModule narrows `loss_mask`, nothing happens here). Rows
    outside `loss_mask` (truncated ones, if they are excluded) do not enter mean and std either.

    Metrics (means over all ranks' tokens, rows or groups): `clip_fraction_low`, `clip_fraction_high`,
    `dual_clip_fraction`, `ratio_mean`, `ratio_max`, `approx_kl` (old to new policy, nats a token),
    `adv_abs_mean`, `frac_groups_no_signal`, and with a KL term `kl`, `kl_max`, `kl_clamp_fraction`.

    Args:
        clip_low: How far below 1 a ratio may fall before a bad token is left alone.
        clip_high: How far above 1 a ratio may rise before a good token is left alone (DAPO uses 0.28).
        dual_clip: Bounds the loss of bad tokens at this ratio, e.g. 3.0 as in verl; None leaves it unbounded
            as published.
        aggregation: A name of `distmatch.losses.aggregate`. `token_mean` is verl's and the DMPO authors'
            choice, the GRPO paper has `seq_mean_token_mean`.
        constant_length: Only for `aggregation="constant"`.
        scale_rewards: Divide advantages by the group's standard deviation; False is Dr. GRPO's correction.
        kl_coef: Weight of the KL term; 0 computes no reference at all.
        kl_loss: What is minimised, a name of `distmatch.losses.kl.KL_LOSSES`; the GRPO paper has `k3`.
        kl_estimator: What is reported as `kl`, a name of `KL_ESTIMATORS`.
        zero_signal: `keep` or `drop` groups whose rewards are all equal.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    min_group_size = 2

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = None,
        aggregation: str = "token_mean",
        constant_length: int | None = None,
        scale_rewards: bool = True,
        kl_coef: float = 0.0,
        kl_loss: str = "reverse_kl_score",
        kl_estimator: str = "k3",
        zero_signal: ZeroSignal = "keep",
    ) -> None:
        super().__init__()
        if not 0 <= clip_low < 1 or clip_high < 0:
            raise ValueError(f"clip_low={clip_low} must be in [0, 1) and clip_high={clip_high} at least 0")
        if dual_clip is not None and dual_clip <= 1 + clip_high:
            raise ValueError(f"dual_clip={dual_clip} must be above 1 + clip_high = {1 + clip_high}")
        if kl_coef < 0:
            raise ValueError(
                f"kl_coef={kl_coef} must not be negative: that would reward leaving the reference"
            )
        self.clip_low, self.clip_high, self.dual_clip = clip_low, clip_high, dual_clip
        self.scale_rewards = scale_rewards
        self.kl_coef = kl_coef
        self.drops_zero_signal_groups = drops(zero_signal)
        self.requires = frozenset({"old_logprobs"} | ({"ref_logprobs"} if kl_coef > 0 else set()))
        self._aggregate = make_aggregation(aggregation, constant_length)
        self._kl_loss, self._kl_estimator = choose_kl_loss(kl_loss), choose_kl_estimator(kl_estimator)

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """The clipped surrogate, plus the KL term if it has a weight."""
        advantages = self.advantages(batch)[:, None]  # (B, 1)
        gap = log_ratio(policy.logprobs, batch.old_logprobs, batch.loss_mask)  # (B, T)
        ratio = self.ratio(gap, batch)
        limits = (self.clip_low, self.clip_high, self.dual_clip)
        surrogate, own = self.surrogate(ratio, advantages, batch, policy)
        loss = self._aggregate(-surrogate, batch)
        metrics = {
            **ratio_metrics(gap.detach(), ratio.detach(), advantages, batch, limits),
            **signal_metrics(advantages, batch),
            **own,
        }
        if self.kl_coef > 0:
            triple = (policy.logprobs, batch.ref_logprobs, batch.loss_mask)
            loss = loss + self.kl_coef * self._aggregate(self._kl_loss(*triple), batch)
            value = where_mask(self._kl_estimator(*triple), batch.loss_mask)
            metrics |= {
                "kl": token_mean(value, batch),
                "kl_max": value.max(),
                "kl_clamp_fraction": token_mean(clamped(*triple).to(value.dtype), batch),
            }
        return LossOutput(loss, metrics)

    # ---- what a relative of GRPO may override --------------------------------------------------------------

    def advantages(self, batch: RolloutBatch) -> Tensor:
        """One a row, (B,); zero on rows outside `loss_mask`."""
        normalize = group_zscore if self.scale_rewards else group_centred
        return normalize(batch.rewards, batch.group_size, batch.loss_mask.any(dim=1))

    def ratio(self, gap: Tensor, batch: RolloutBatch) -> Tensor:
        """What is clipped, (B, T), from the log-ratio of new to old policy of every token, (B, T)."""
        return gap.exp()

    def surrogate(
        self, ratio: Tensor, advantages: Tensor, batch: RolloutBatch, policy: PolicyOutput
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of every token, (B, T), to be maximised, and metrics about it."""
        return clipped_surrogate(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip), {}


def clipped_surrogate(
    ratio: Tensor,  # (B, T)
    advantages: Tensor,  # (B, 1) or (B, T)
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's pessimistic objective, (B, T); with `dual_clip` c at least c A for A < 0 (arXiv 1912.09729)."""
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is None:
        return surrogate
    return torch.where(advantages < 0, torch.maximum(surrogate, dual_clip * advantages), surrogate)


def ratio_metrics(
    gap: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    batch: RolloutBatch,
    limits: tuple[float, float, float | None],
) -> dict[str, Tensor]:
    """How far the policy has moved since the rollouts, and how often that is cut.

    Args:
        gap: Log-ratio of new to old policy of every token, detached, (B, T).
        ratio: What is clipped, detached, (B, T).
        advantages: (B, 1) or (B, T).
        batch: The batch they belong to.
        limits: clip_low, clip_high and dual_clip.
    """
    low, high, dual = limits
    good, bad = advantages > 0, advantages < 0
    shares = {
        "clip_fraction_low": bad & (ratio < 1 - low),
        "clip_fraction_high": good & (ratio > 1 + high),
        "dual_clip_fraction": bad & (ratio > (dual or torch.inf)),
    }
    return {name: token_mean(share.to(gap.dtype), batch) for name, share in shares.items()} | {
        "ratio_mean": token_mean(ratio, batch),
        "ratio_max": where_mask(ratio, batch.loss_mask).max(),
        "approx_kl": token_mean(torch.expm1(gap) - gap, batch),
    }


def signal_metrics(advantages: Tensor, batch: RolloutBatch) -> Mapping[str, Tensor]:
    """How much there is to learn from: mean |A| over rows, and the share of groups with equal rewards.

    Args:
        advantages: One a row, (B, 1) or (B,).
        batch: The batch they belong to.
    """
    live = batch.loss_mask.any(dim=1)
    flat = flat_groups(batch.rewards, batch.group_size, live) & live.view(-1, batch.group_size).any(dim=1)
    return {
        "adv_abs_mean": masked_sum(advantages.detach().reshape(-1).abs(), live) / over(batch.totals.rows),
        "frac_groups_no_signal": flat.sum() / over(batch.totals.groups),
    }
