"""KL divergence to the reference: estimators of its value, and, kept apart, losses whose gradient is known.

Write d = log pi - log pi_ref for a token sampled from pi. An estimator can have the right value and a useless
gradient:

    name  per token         mean over pi               gradient of that mean when put in a loss
    k1    d                 KL(pi||ref)                zero
    k2    d^2 / 2           close to it if both agree  that of KL(pi||ref)
    k3    exp(-d) - 1 + d   KL(pi||ref), never < 0     that of KL(ref||pi), the other direction

"Gradient" is that of the sampled tokens' terms: prefixes are held fixed (as in every library), and tokens are
taken to be samples of the current policy; after several updates on the same rollouts both hold approximately.
d is clamped to +-20 nats before anything is exponentiated. Source of the names: J. Schulman, "Approximating
KL divergence".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from distmatch.ops import LOG_RATIO_LIMIT, log_ratio, where_mask

TokenKL = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From log-probs, reference log-probs and mask, each (B, T), to a figure a token (B, T); masked: zero."""


# ---- value estimators: for reporting, without gradient ----------------------------------------------------


def k1(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """d: unbiased, high variance, often negative for single tokens."""
    return log_ratio(logprobs.detach(), ref_logprobs, mask)


def k2(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """d^2 / 2: never negative, biased where the policies differ much."""
    return k1(logprobs, ref_logprobs, mask).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """exp(-d) - 1 + d: unbiased and never negative."""
    gap = k1(logprobs, ref_logprobs, mask)
    return torch.expm1(-gap) + gap


KL_ESTIMATORS: Mapping[str, TokenKL] = {"k1": k1, "k2": k2, "k3": k3}


# ---- losses: what is minimised ----------------------------------------------------------------------------


def reverse_kl_score(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Value d, gradient d * grad log pi: the score-function gradient of KL(pi||ref), and a right value too.

    The coefficient d is detached, so its clamp bounds the gradient instead of switching it off.
    """
    return _with_score_gradient(k1(logprobs, ref_logprobs, mask), logprobs, ref_logprobs, mask)


def k2_loss(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Value d^2 / 2, gradient d * grad log pi: as `reverse_kl_score`, with a value that is never negative."""
    return _with_score_gradient(k2(logprobs, ref_logprobs, mask), logprobs, ref_logprobs, mask)


def k3_loss(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """exp(-d) - 1 + d as published by GRPO (arXiv 2402.03300 eq. 4); minimises KL(ref||pi), not KL(pi||ref).

    The gradient is (1 - exp(-d)) grad log pi: unbounded where the policy has left the reference's support,
    hardly any where it puts mass on what the reference excludes. Beyond 20 nats the clamp gives no gradient.
    """
    gap = log_ratio(logprobs, ref_logprobs, mask)
    return torch.expm1(-gap) + gap


KL_LOSSES: Mapping[str, TokenKL] = {"reverse_kl_score": reverse_kl_score, "k2": k2_loss, "k3": k3_loss}


def choose_kl_loss(name: str) -> TokenKL:
    """The KL loss called `name`.

    Raises:
        ValueError: Unknown name, or `k1`, which would train nothing.
    """
    if name == "k1":
        raise ValueError(
            "kl_loss='k1' would train nothing: its gradient is that of the mean log-probability of the "
            f"policy's own samples, which is zero on average; choose one of {', '.join(KL_LOSSES)}"
        )
    if name not in KL_LOSSES:
        raise ValueError(f"kl_loss={name!r} is unknown; choose one of {', '.join(KL_LOSSES)}")
    return KL_LOSSES[name]


def choose_kl_estimator(name: str) -> TokenKL:
    """The value estimator called `name`.

    Raises:
        ValueError: Unknown name.
    """
    if name not in KL_ESTIMATORS:
        raise ValueError(f"kl_estimator={name!r} is unknown; choose one of {', '.join(KL_ESTIMATORS)}")
    return KL_ESTIMATORS[name]


def clamped(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Which tokens were clamped, (B, T) bool: if there are any, the policy is far from the reference."""
    gap = (where_mask(logprobs.detach(), mask) - where_mask(ref_logprobs, mask)).abs()
    return gap >= LOG_RATIO_LIMIT


def _with_score_gradient(value: Tensor, logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """`value`, with the gradient d * grad log pi."""
    kept = where_mask(logprobs, mask)
    return value + k1(logprobs, ref_logprobs, mask) * (kept - kept.detach())
