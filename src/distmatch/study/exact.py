"""The exact lab's figures: distributions over all strings of a small language, enumerated in float64.

A distribution is its log-probabilities (S,) in nats over the strings in the order of `Language.strings`; log
of zero is -inf and adds nothing to any figure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distmatch.ops import where_mask
from distmatch.study.language import Landscape


def log_partition(log_ref: Tensor, rewards: Tensor, beta: float) -> Tensor:
    """The value of log Z = log sum of pi_ref(o) exp(beta * r(o)) over all strings, (S,), (S,) -> ()."""
    return (log_ref + beta * rewards).logsumexp(dim=0)


def exact_target(log_ref: Tensor, rewards: Tensor, beta: float) -> Tensor:
    """The fixed point of the balance family, log p*(o) = log pi_ref(o) + beta * r(o) - log Z, (S,)."""
    return log_ref + beta * rewards - log_partition(log_ref, rewards, beta)


def expectation(log_p: Tensor, values: Tensor) -> Tensor:
    """Mean of `values` (S,) under p; strings of probability zero do not count, whatever their value."""
    p = log_p.exp()
    return where_mask(p * values, p > 0).sum()


def entropy(log_p: Tensor) -> Tensor:
    """Entropy of p in nats."""
    return expectation(log_p, -log_p)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p||q) in nats; infinite where q lacks what p has."""
    return expectation(log_p, log_p - log_q)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Half the sum of |p - q|, between 0 and 1."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum()


def expected_distinct(log_p: Tensor, members: Tensor, samples: int) -> Tensor:
    """Expected number of different `members` (S,) bool among `samples` draws: sum of 1 - (1 - p)^samples."""
    p = log_p.exp()[members].clamp(max=1.0)
    return -torch.expm1(samples * torch.log1p(-p)).sum()


def measure(
    log_pi: Tensor, log_ref: Tensor, landscape: Landscape, beta: float, samples: int = 64
) -> dict[str, float]:
    """All figures of one policy against its exact target.

    Args:
        log_pi: The policy, (S,).
        log_ref: The reference, (S,).
        landscape: The rewards.
        beta: Inverse temperature of the target.
        samples: Draws in which best strings are counted (`modes`).

    Returns:
        Those of `compare`, and `mean_length` in letters.
    """
    figures = compare(log_pi, log_ref, landscape.rewards, landscape.best, beta, samples)
    lengths = landscape.tree.lengths.to(log_pi.dtype)
    return figures | {"mean_length": float(expectation(log_pi, lengths))}


def compare(
    log_pi: Tensor, log_ref: Tensor, rewards: Tensor, best: Tensor, beta: float, samples: int = 64
) -> dict[str, float]:
    """Figures of one distribution against the target that a reference and rewards make.

    Args:
        log_pi: The policy, over any S outcomes, (S,).
        log_ref: The reference, (S,).
        rewards: Of the outcomes, (S,).
        best: Outcomes to be covered, (S,) bool.
        beta: Inverse temperature of the target.
        samples: Draws in which these are counted.

    Returns:
        `reward` (its mean), `entropy`, `modes` (expected number of different best outcomes in `samples`
        draws), `best_mass` (their probability), `kl_target_policy` (KL(p*||pi)), `kl_policy_target`
        (KL(pi||p*)), `total_variation`, `log_z_exact`.
    """
    target = exact_target(log_ref, rewards, beta)
    figures = {
        "reward": expectation(log_pi, rewards),
        "entropy": entropy(log_pi),
        "modes": expected_distinct(log_pi, best, samples),
        "best_mass": log_pi.exp()[best].sum(),
        "kl_target_policy": kl(target, log_pi),
        "kl_policy_target": kl(log_pi, target),
        "total_variation": total_variation(log_pi, target),
        "log_z_exact": log_partition(log_ref, rewards, beta),
    }
    return {name: float(value) for name, value in figures.items()}
