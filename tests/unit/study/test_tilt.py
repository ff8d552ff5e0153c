"""The nearest tilted reference: against a grid search in plain Python, and where it must be zero."""

from __future__ import annotations

import math

import pytest
import torch

from distmatch.study.exact import exact_target, kl
from distmatch.study.tilt import nearest_tilt

REWARDS = torch.tensor([1.0, 0.5, 0.5, 0.0, 0.0, 1.0], dtype=torch.float64)


def distribution(seed: int) -> torch.Tensor:
    return torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize("beta", [-3.0, 0.0, 0.5, 6.0, 20.0])
def test_a_tilted_reference_is_its_own_nearest(beta: float) -> None:
    ref = distribution(0)
    nearest = nearest_tilt(exact_target(ref, REWARDS, beta), ref, REWARDS)
    assert nearest.beta == pytest.approx(beta, abs=1e-6)
    assert nearest.divergence == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_other_tilt_is_nearer_and_the_divergence_is_the_excess_over_the_reference(seed: int) -> None:
    ref, pi = distribution(0), distribution(seed)
    nearest = nearest_tilt(pi, ref, REWARDS)
    others = [float(kl(pi, exact_target(ref, REWARDS, b / 50))) for b in range(-500, 501)]
    assert nearest.divergence <= min(others) + 1e-12
    tilted = exact_target(ref, REWARDS, nearest.beta)
    assert nearest.divergence == pytest.approx(float(kl(pi, ref) - kl(tilted, ref)), abs=1e-9)


def test_a_policy_with_one_best_string_is_infinitely_tilted() -> None:
    pi = torch.full((6,), -torch.inf, dtype=torch.float64)
    pi[0] = 0.0
    ref = distribution(0)
    nearest = nearest_tilt(pi, ref, REWARDS)
    two_best = torch.logaddexp(ref[0], ref[5])  # what is left of the reference at infinite beta
    assert math.isinf(nearest.beta)
    assert nearest.divergence == pytest.approx(float(two_best - ref[0]), abs=1e-6)


def test_equal_rewards_are_refused() -> None:
    with pytest.raises(ValueError, match="all rewards are equal"):
        nearest_tilt(distribution(0), distribution(1), torch.ones(6, dtype=torch.float64))
