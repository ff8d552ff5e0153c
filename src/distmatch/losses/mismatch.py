"""A correction for any loss: the sampling engine's policy is not quite the one that the trainer computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.aggregate import token_mean
from distmatch.losses.base import Loss
from distmatch.ops import LOG_RATIO_LIMIT, log_ratio, masked_sum, where_mask


def _token(gap: Tensor) -> Tensor:
    return gap


def _sequence(gap: Tensor) -> Tensor:
    return gap.sum(dim=1, keepdim=True).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expand_as(gap)


LEVELS: Mapping[str, Callable[[Tensor], Tensor]] = {"token": _token, "sequence": _sequence}
"""From log-ratios of tokens, zero where masked, to the log-weight of each token, (B, T) -> (B, T)."""


def truncate(weight: Tensor, low: float, high: float) -> Tensor:
    """Weights moved into [low, high]: TIS."""
    return weight.clamp(low, high)


def mask_out(weight: Tensor, low: float, high: float) -> Tensor:
    """Weights outside [low, high] at zero: MIS."""
    return where_mask(weight, (weight >= low) & (weight <= high))


BOUNDS: Mapping[str, Callable[[Tensor, float, float], Tensor]] = {"truncate": truncate, "mask": mask_out}


class MismatchCorrection(Loss):
    """Importance weights from the engine's policy to the trainer's, on the gradient of any other loss.

    Rows come from the engine, whose log-probabilities differ from the trainer's for the same weights: other
    kernels, other precision. For every token that trains,

        w_t = pi_old(o_t) / pi_engine(o_t)                `level="token"`
        w_t = product over the row's tokens of the same   `level="sequence"`
        w_t = bounded to [limit_low, limit]               `truncate`: moved there; `mask`: 0 outside
        L   = L_base( log pi + (w_t - 1) (log pi - sg(log pi)) )

    where sg stops the gradient. The base sees the same values; only the gradient through each token's
    log-probability is multiplied by w_t. For a policy gradient that is the same as weighing every token's
    loss, as TRL and verl do; but it holds for any loss, and weighs a KL term or a matching term too, where
    TRL leaves the KL term alone. Where engine and trainer agree nothing changes, bit for bit.

    Fixed point: the base's, for `level="sequence"` without bounds: then expectations over the engine's
    answers are those of the policy. Bounds trade that for variance; so does `token`, which leaves out the
    weights of the rest of the answer.

    Assumes that the engine reports the log-probabilities that it samples with (temperature included). What a
    loss learns beside the policy (a critic, log Z) gets no weights, neither do entropies and hidden states.
    Masked tokens and rows stay in group statistics and denominators, as in TRL: a batch of which half is
    masked takes half a step.

    Metrics: those of the base; of the weights before bounding, over tokens, `mismatch_weight_mean`,
    `mismatch_weight_min`, `mismatch_weight_max`; `mismatch_clip_fraction`, the tokens outside the bounds; and
    of the weights as used `mismatch_weight_ess`, (sum w)^2 / (n sum w^2), 1 if all are equal (mean of the
    ranks' own figures).

    Args:
        base: Any other loss.
        level: `token` or `sequence`.
        bound: `truncate` (TIS) or `mask` (MIS).
        limit: Upper bound of the weight. TRL 1.16: `sequence`, `mask`, 3.0. verl: `truncate`, 2.0.
        limit_low: Lower bound; 0 (TRL, verl) for none. With `mask`, 1 / limit treats both sides alike.

    Raises:
        ValueError: An unknown name, or bounds that do not hold 1 between them.
    """

    def __init__(
        self,
        base: Loss,
        level: str = "sequence",
        bound: str = "mask",
        limit: float = 3.0,
        limit_low: float = 0.0,
    ) -> None:
        super().__init__()
        if level not in LEVELS or bound not in BOUNDS:
            raise ValueError(
                f"level={level!r} must be one of {', '.join(LEVELS)}, and bound={bound!r} one of "
                f"{', '.join(BOUNDS)}"
            )
        if not 0 <= limit_low < 1 < limit < math.inf:
            raise ValueError(
                f"limit_low={limit_low} must be in [0, 1) and limit={limit} finite and above 1: a weight of "
                "1 means that engine and trainer agree"
            )
        self.base = base
        self._log_weight, self._bound = LEVELS[level], BOUNDS[bound]
        self.limit, self.limit_low = limit, limit_low
        self.requires = base.requires | {"old_logprobs"}
        self.drops_zero_signal_groups = base.drops_zero_signal_groups
        self.min_group_size = base.min_group_size
        self.target_beta = base.target_beta
        # Past nn.Module's registration: it belongs to the base, and must not appear twice in checkpoints.
        object.__setattr__(self, "value_head", base.value_head)

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """Those of the base: the correction learns nothing of its own."""
        return self.base.param_groups(lr)

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """The base's loss, with weights on its gradient in the log-probabilities."""
        mask = batch.loss_mask
        gap = log_ratio(batch.old_logprobs, batch.sampler_logprobs, mask)
        raw = self._log_weight(gap).exp()  # (B, T)
        weight = self._bound(raw, self.limit_low, self.limit)
        logprobs = where_mask(policy.logprobs, mask)
        fixed = logprobs.detach()
        # A live token of log-probability -inf has no gradient to weigh, and -inf minus itself is nan.
        step = torch.where(fixed.isinf(), torch.zeros_like(fixed), logprobs - fixed)
        output = self.base(batch, dataclasses.replace(policy, logprobs=fixed + weight * step))
        return LossOutput(output.loss, {**output.metrics, **_metrics(raw, weight, batch)})


def _metrics(raw: Tensor, weight: Tensor, batch: RolloutBatch) -> dict[str, Tensor]:
    mask = batch.loss_mask
    squares = (masked_sum(weight.square(), mask) * mask.sum()).clamp(min=torch.finfo(weight.dtype).tiny)
    return {
        "mismatch_weight_mean": token_mean(raw, batch),
        "mismatch_weight_min": torch.where(mask, raw, raw.max()).min(),  # 1 if nothing is live
        "mismatch_weight_max": torch.where(mask, raw, raw.min()).max(),
        "mismatch_clip_fraction": token_mean((raw != weight).to(raw.dtype), batch),
        "mismatch_weight_ess": masked_sum(weight, mask).square() / squares,
    }
