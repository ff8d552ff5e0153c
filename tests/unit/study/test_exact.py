"""The exact lab's figures against slow plain Python."""

from __future__ import annotations

import math
import random

import pytest
import torch

from distmatch.study.exact import (
    compare,
    entropy,
    exact_target,
    expectation,
    expected_distinct,
    kl,
    log_partition,
    measure,
    total_variation,
)
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy
from distmatch.tasks.lab import Lab
from tests.unit.study.walking import walked

FIXED = Lab(alphabet=3, length=3, modes=4, near=6)
VARIED = Lab(alphabet=3, length=4, min_length=2, landscape="lengths", modes=5, near=4)


@pytest.mark.parametrize("lab", [FIXED, VARIED], ids=["fixed", "varied"])
def test_figures_against_plain_python(lab: Lab) -> None:
    landscape = Landscape.of(lab, 2)
    policy, reference = TabularPolicy.of(landscape, seed=5), TabularPolicy.of(landscape, seed=6)
    r = landscape.rewards.tolist()
    pi, ref = list(walked(policy).values()), list(walked(reference).values())
    z = math.fsum(b * math.exp(4.0 * x) for b, x in zip(ref, r, strict=True))
    star = [b * math.exp(4.0 * x) / z for b, x in zip(ref, r, strict=True)]
    expected = {
        "reward": math.fsum(a * x for a, x in zip(pi, r, strict=True)),
        "entropy": -math.fsum(a * math.log(a) for a in pi),
        "modes": math.fsum(1 - (1 - a) ** 7 for a, x in zip(pi, r, strict=True) if x == 1.0),
        "best_mass": math.fsum(a for a, x in zip(pi, r, strict=True) if x == 1.0),
        "mean_length": math.fsum(a * len(text) for a, text in zip(pi, lab.strings(), strict=True)),
        "kl_target_policy": math.fsum(s * math.log(s / a) for s, a in zip(star, pi, strict=True)),
        "kl_policy_target": math.fsum(a * math.log(a / s) for s, a in zip(star, pi, strict=True)),
        "total_variation": math.fsum(abs(s - a) for s, a in zip(star, pi, strict=True)) / 2,
        "log_z_exact": math.log(z),
    }
    log_pi, log_ref = policy.logprobs().detach(), reference.logprobs().detach()
    assert measure(log_pi, log_ref, landscape, 4.0, samples=7) == pytest.approx(expected, rel=1e-10)
    del expected["mean_length"]
    found = compare(log_pi, log_ref, landscape.rewards, landscape.best, 4.0, samples=7)
    assert found == pytest.approx(expected, rel=1e-10)


def test_the_target_is_normalised_and_tilted() -> None:
    landscape, log_ref = Landscape.of(FIXED), TabularPolicy(3, 3, seed=2).logprobs().detach()
    target = exact_target(log_ref, landscape.rewards, 6.0)
    assert target.exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert kl(target, target).item() == 0 and total_variation(target, target).item() == 0
    torch.testing.assert_close(
        target - log_ref, 6 * landscape.rewards - log_partition(log_ref, landscape.rewards, 6.0)
    )
    torch.testing.assert_close(exact_target(log_ref, landscape.rewards, 0.0), log_ref)


@pytest.mark.parametrize("lab", [FIXED, VARIED], ids=["fixed", "varied"])
def test_identities_of_the_target(lab: Lab) -> None:
    """log Z = beta E_pi[r] - KL(pi||ref) + KL(pi||p*) for every pi; the target has its largest first two."""
    landscape = Landscape.of(lab, 1)
    log_ref = TabularPolicy.of(landscape, seed=3).logprobs().detach()
    target, log_z = (
        exact_target(log_ref, landscape.rewards, 6.0),
        log_partition(log_ref, landscape.rewards, 6.0),
    )
    for seed in range(5):
        log_pi = TabularPolicy.of(landscape, seed=seed + 10).logprobs().detach()
        free = 6.0 * expectation(log_pi, landscape.rewards) - kl(log_pi, log_ref)
        torch.testing.assert_close(free + kl(log_pi, target), log_z)
        assert kl(log_pi, target) > 0 and total_variation(log_pi, target) <= (kl(log_pi, target) / 2).sqrt()


def test_strings_of_probability_zero_are_harmless() -> None:
    certain = torch.tensor([0.0, -math.inf], dtype=torch.float64)
    even = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    assert entropy(certain).item() == 0
    assert kl(certain, even).item() == pytest.approx(math.log(2))
    assert kl(even, certain).item() == math.inf
    assert expected_distinct(certain, torch.tensor([True, True]), 64).item() == 1


@pytest.mark.parametrize("samples", [1, 8, 64])
def test_coverage_agrees_with_simulation(samples: int) -> None:
    landscape, policy = Landscape.of(FIXED, 3), TabularPolicy(3, 3, seed=4)
    formula = expected_distinct(policy.logprobs().detach(), landscape.best, samples).item()
    rng, p = random.Random(0), list(walked(policy).values())
    best = {i for i, x in enumerate(landscape.best.tolist()) if x}
    counts = [len(best & set(rng.choices(range(27), p, k=samples))) for _ in range(4000)]
    mean = sum(counts) / 4000
    error = math.sqrt(sum((c - mean) ** 2 for c in counts) / 4000 / 4000)
    assert abs(mean - formula) < 4 * error
