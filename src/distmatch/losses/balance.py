"""The balance family: make log pi equal to log of the tilted reference, row by row, with log Z in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.aggregate import over, token_mean
from distmatch.losses.base import Loss
from distmatch.losses.kl import clamped
from distmatch.losses.log_z import LogZ
from distmatch.ops import LOG_RATIO_LIMIT, group_zscore, log_ratio, masked_sum, sequence_logprob, where_mask

RewardSource = Callable[[Tensor, int, Tensor], Tensor]
"""From rewards (B,), the group size and the live rows (B,) to what is tilted by, (B,)."""


def _raw(rewards: Tensor, group_size: int, live: Tensor) -> Tensor:
    return rewards


REWARD_SOURCES: Mapping[str, RewardSource] = {"raw": _raw, "group_zscore": group_zscore}

WEIGHT_BOUNDS: Mapping[str, Callable[[float, float], tuple[float, float]]] = {
    "clipped": lambda low, high: (1 - low, 1 + high),
    "capped": lambda low, high: (0.0, 10.0),
    "unclipped": lambda low, high: (0.0, math.inf),
}
"""Bounds of the importance weight, from clip_low and clip_high; `none` has no weight at all."""


class BalanceLoss(Loss):
    """Squared balance residual: FlowRL arXiv 2509.15207, trajectory balance 2201.13259, VarGrad 2010.10436.

    For each row o of a prompt x, with reward r:

        delta = log Z(x) + log pi(o|x) - log pi_ref(o|x) - beta * r(o)
        L     = coefficient * mean over rows of omega * delta^2

    and omega = pi(o) / pi_old(o), held constant, clipped or absent. The family differs in three choices:

        log_z            learned MLP or number (FlowRL, trajectory balance), group mean (VarGrad), known and
                         frozen (DISA, arXiv 2605.17295; the exact lab)
        length_normalize log-probabilities are means over tokens (FlowRL), or sums
        importance_weight

    Fixed point, with token sums, raw rewards and a log Z that fits: pi(o|x) = pi_ref(o|x) exp(beta r) / Z(x),
    all good answers, each by its reward. On samples of pi with omega = 1 the expected gradient in the policy
    is 2 grad KL(pi||target) whatever log Z is, as long as it depends on the prompt alone: a wrong log Z costs
    variance on-policy and bias off-policy. The mean over a group of n makes it (n - 1) / n of that.

    Two options move the fixed point. With `length_normalize`, pi(o) to the power 1/|o| fits the tilted
    reference, and Z is not its partition function. With `reward_source="group_zscore"` the tilt is relative
    to the other samples: its strength grows as rewards in a group get closer, and a group of equal rewards
    pulls towards the reference.

    Assumes that rows were sampled from pi, or from pi_old with a weight. log pi - log pi_ref of a token is
    clamped to +-20 nats in value only: its gradient goes on, bounded, where a policy has left the reference's
    support. Rows outside `loss_mask` altogether leave numerator, denominator, group means and z-scores.

    Authors' code of FlowRL: one version multiplies by the unclipped weight, another caps it at 10.

    Metrics (means over rows unless named otherwise): `log_z_mean`, `residual_mean` (its distance from the
    group means), `residual_abs_mean`, `reference_gap_mean` (log pi - log pi_ref, sum or mean over tokens),
    `reference_clamp_fraction` (of tokens); with a weight `importance_weight_mean`, `importance_weight_max`,
    `importance_weight_clip_fraction`.

    Args:
        log_z: A head of `distmatch.losses.log_z`.
        beta: Inverse temperature on the reward (the paper's 15 is meant for token means).
        length_normalize: Means over tokens (FlowRL) or sums, an answer's true log-probability.
        reward_source: `raw`, or `group_zscore` (FlowRL).
        importance_weight: `clipped` to [1 - clip_low, 1 + clip_high] (FlowRL as published), `capped` at 10 or
            `unclipped` (its codes), or `none`. The ratio is of whole answers.
        clip_low: Only for `clipped`.
        clip_high: Only for `clipped`.
        coefficient: Of the whole loss, to weigh it against other terms or the gradient clip.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    def __init__(
        self,
        log_z: LogZ,
        beta: float = 15.0,
        length_normalize: bool = True,
        reward_source: str = "group_zscore",
        importance_weight: str = "clipped",
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        coefficient: float = 1.0,
    ) -> None:
        super().__init__()
        if not 0 < beta < math.inf or coefficient <= 0:
            raise ValueError(f"beta={beta} and coefficient={coefficient} must be finite and above 0")
        if not 0 <= clip_low <= 1 or clip_high < 0:
            raise ValueError(f"clip_low={clip_low} must be in [0, 1] and clip_high={clip_high} at least 0")
        if reward_source not in REWARD_SOURCES:
            raise ValueError(
                f"reward_source={reward_source!r} is unknown; choose one of {', '.join(REWARD_SOURCES)}"
            )
        log_z.check_tilt(beta, length_normalize, reward_source)
        self.log_z = log_z
        self.beta, self.coefficient, self.length_normalize = beta, coefficient, length_normalize
        self.target_beta = beta if reward_source == "raw" and not length_normalize else None
        self._rewards = REWARD_SOURCES[reward_source]
        self._bounds = _weight_bounds(importance_weight, clip_low, clip_high)
        weighted = {"old_logprobs"} if self._bounds is not None else set()
        self.requires = frozenset({"ref_logprobs"} | weighted | log_z.requires)
        self.min_group_size = max(log_z.min_group_size, 2 if reward_source == "group_zscore" else 1)

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """Those of the log Z head, which may have a rate of its own."""
        return self.log_z.param_groups(lr)

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """The weighted mean of squared residuals."""
        live = batch.loss_mask.any(dim=1)  # (B,)
        gap = self._reference_gap(batch, policy.logprobs)  # (B,)
        rewards = self._rewards(batch.rewards, batch.group_size, live).to(gap.dtype)
        without_z = where_mask(gap - self.beta * rewards, live)
        log_z = self.log_z(batch, policy, without_z).to(gap.dtype)
        residual = where_mask(log_z + without_z, live)
        weight, metrics = self._importance_weight(batch, policy.logprobs.detach())
        rows = over(batch.totals.rows)
        loss = self.coefficient * (weight * residual.square()).sum() / rows
        figures = {"log_z": log_z, "residual": residual, "residual_abs": residual.abs(), "reference_gap": gap}
        metrics |= {f"{k}_mean": masked_sum(v.detach(), live) / rows for k, v in figures.items()}
        far = clamped(policy.logprobs, batch.ref_logprobs, batch.loss_mask)
        metrics["reference_clamp_fraction"] = token_mean(far.to(gap.dtype), batch)
        return LossOutput(loss, metrics)

    def _reference_gap(self, batch: RolloutBatch, logprobs: Tensor) -> Tensor:
        """The gap log pi - log pi_ref of each row, (B,); clamped in value, never in gradient."""
        kept = where_mask(logprobs, batch.loss_mask)
        gap = log_ratio(logprobs.detach(), batch.ref_logprobs, batch.loss_mask) + (kept - kept.detach())
        return sequence_logprob(gap, batch.loss_mask, length_normalize=self.length_normalize)

    def _importance_weight(self, batch: RolloutBatch, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weight omega of each row without gradient, (B,), or 1; and what to log about it."""
        if self._bounds is None:
            return torch.ones((), dtype=logprobs.dtype, device=logprobs.device), {}
        live, rows = batch.loss_mask.any(dim=1), over(batch.totals.rows)
        tokens = log_ratio(logprobs, batch.old_logprobs, batch.loss_mask)
        ratio = tokens.sum(dim=1).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        weight = ratio.clamp(*self._bounds)
        return weight, {
            "importance_weight_mean": masked_sum(weight, live) / rows,
            "importance_weight_max": where_mask(weight, live).max(),
            "importance_weight_clip_fraction": (weight != ratio).sum() / rows,
        }


def _weight_bounds(name: str, clip_low: float, clip_high: float) -> tuple[float, float] | None:
    if name == "none":
        return None
    if name not in WEIGHT_BOUNDS:
        known = ", ".join(["none", *WEIGHT_BOUNDS])
        raise ValueError(f"importance_weight={name!r} is unknown; choose one of {known}")
    return WEIGHT_BOUNDS[name](clip_low, clip_high)
