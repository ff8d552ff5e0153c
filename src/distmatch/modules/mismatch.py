"""How far the sampling engine's log-probabilities are from the trainer's at the moment of sampling.

Both describe the same tokens under what should be the same policy. Arithmetic alone makes them differ (about
1e-5 nats in float32, a few hundredths in bfloat16); more than that means training off the policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from distmatch.ops import log_ratio, masked_mean, masked_sum

LARGEST = frozenset({"mismatch_max", "mismatch_ratio_max"})
"""The figures that are combined by taking the largest; the others are averaged."""


@torch.no_grad()
def mismatch_figures(trainer: Tensor, engine: Tensor, mask: Tensor) -> Mapping[str, Tensor]:
    """Figures of one batch, with Δ = trainer - engine and the token ratio r = exp(Δ).

    - `mismatch_max`: the largest |Δ| in nats.
    - `mismatch_ratio_max`: the largest r.
    - `mismatch_kl`: mean over tokens of r - 1 - Δ, which estimates KL(engine || trainer) per token without
      bias, and is never negative (Schulman's k3; the tokens are the engine's).
    - `mismatch_ess`: effective sample size of the sequence weights w = exp(ΣΔ) as a share of the rows,
      (Σw)² / (B Σw²); 1 when all weights are equal, 1/B when one sequence has all the weight.

    Args:
        trainer: The policy's log-probabilities when the batch was sampled, (B, T); any value outside `mask`.
        engine: The engine's, (B, T).
        mask: Sampled tokens, (B, T) bool.
    """
    gap = log_ratio(trainer, engine, mask)
    weights = masked_sum(gap, mask, dim=1)[mask.any(dim=1)]  # (rows that have a token,)
    if not weights.numel():
        zero = gap.new_zeros(())
        return dict.fromkeys(("mismatch_max", "mismatch_kl"), zero) | dict.fromkeys(
            ("mismatch_ratio_max", "mismatch_ess"), zero + 1
        )
    share = 2 * weights.logsumexp(dim=0) - (2 * weights).logsumexp(dim=0) - math.log(len(weights))
    return {
        "mismatch_max": gap.abs().max(),
        "mismatch_ratio_max": gap[mask].max().exp(),
        "mismatch_kl": masked_mean(gap.expm1() - gap, mask),
        "mismatch_ess": share.exp().clamp(max=1),
    }
