"""How far a policy is from the front of reward against closeness to the reference.

Among all distributions of a given expected reward, the tilted reference p_b = pi_ref exp(b r) / Z_b with that
reward has the smallest KL to the reference. So KL(pi||pi_ref) - KL(p_b||pi_ref) is never negative, it equals
KL(pi||p_b), and it says what a policy gave up for nothing: coverage that another policy of the same reward
keeps. It asks for no inverse temperature, and so it can be asked of reward maximisers too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from distmatch.study.exact import exact_target, expectation, kl

LARGEST_BETA = 200.0
"""Searched up to here; beyond it nothing but the best strings is left of the reference, to many digits."""


@dataclass(frozen=True)
class Nearest:
    """The tilted reference that has a policy's expected reward.

    Attributes:
        beta: Its inverse temperature; infinite where the policy's reward is above that of `LARGEST_BETA`, and
            negative where it is below the reference's own.
        divergence: KL(pi||p_beta) in nats.
    """

    beta: float
    divergence: float


def nearest_tilt(log_pi: Tensor, log_ref: Tensor, rewards: Tensor) -> Nearest:
    """Find the tilted reference of equal reward by bisection; its reward rises strictly with beta.

    Args:
        log_pi: The policy, (S,).
        log_ref: The reference, (S,).
        rewards: Of every string, (S,).

    Raises:
        ValueError: All rewards are equal, so that every tilt is the reference.
    """
    if bool((rewards == rewards[0]).all()):
        raise ValueError("all rewards are equal: tilting the reference changes nothing")
    wanted = float(expectation(log_pi, rewards))
    low, high = -LARGEST_BETA, LARGEST_BETA
    if wanted >= _reward(log_ref, rewards, high) - 1e-12:  # sums over strings are only that exact
        return Nearest(math.inf, float(kl(log_pi, exact_target(log_ref, rewards, high))))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _reward(log_ref, rewards, middle) < wanted else (low, middle)
    return Nearest(low, float(kl(log_pi, exact_target(log_ref, rewards, low))))


def _reward(log_ref: Tensor, rewards: Tensor, beta: float) -> float:
    return float(expectation(exact_target(log_ref, rewards, beta), rewards))
