"""What theory says of the balance loss, by enumeration: gradients, fixed points, what a wrong log Z costs.

Trajectory balance arXiv 2201.13259, DISA 2605.17295.
"""

from __future__ import annotations

import pytest
import torch

from distmatch.batch import PolicyOutput
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.log_z import FrozenLogZ, LogZ
from distmatch.study.exact import exact_target, kl, log_partition
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, tabular_batch
from distmatch.tasks.lab import Lab

WEIGHTS = ("none", "clipped", "capped", "unclipped")


def balance(log_z: LogZ, weight: str) -> BalanceLoss:
    """Raw reward, token sums, beta 6; clipped to [0.8, 1.2]."""
    return BalanceLoss(log_z, beta=6.0, length_normalize=False, reward_source="raw", importance_weight=weight)


class Enumerated:
    """All 64 strings of a language as one batch, their log-probabilities, and how a loss averages over pi.

    Every string is one row, "drawn" from the uniform policy, so that the unclipped weight is 64 pi(o) and the
    loss's mean over rows the expectation under pi, held constant.
    """

    def __init__(self, seed: int) -> None:
        self.landscape = Landscape.of(Lab(alphabet=4, length=3, modes=3, near=6), seed)
        self.policy, uniform = TabularPolicy(4, 3, seed=seed), TabularPolicy(4, 3, scale=0.0)
        self.reference = TabularPolicy(4, 3, seed=seed + 100).token_logprobs().detach()
        everything = torch.arange(64)
        self.batch = tabular_batch(
            everything, 1, self.landscape, uniform.token_logprobs().detach(), self.reference
        )
        start = (self.reference.sum(1), self.landscape.rewards, 6.0)
        self.log_z, self.target = float(log_partition(*start)), exact_target(*start)

    def gradient(self, log_z: float, weight: str = "unclipped") -> torch.Tensor:
        loss = balance(FrozenLogZ(log_z), weight)
        output = loss(self.batch, PolicyOutput(self.policy.token_logprobs()))
        return torch.autograd.grad(output.loss, self.policy.logits)[0]


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_gradient_is_twice_that_of_the_reverse_kl(seed: int) -> None:
    lab = Enumerated(seed)
    (expected,) = torch.autograd.grad(2 * kl(lab.policy.logprobs(), lab.target), lab.policy.logits)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(lab.gradient(lab.log_z), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("bias", [-2.0, 2.0, 100.0])
def test_a_bias_that_depends_on_the_prompt_alone_adds_no_gradient_on_policy(bias: float) -> None:
    """DISA's second theorem (papers.md 3.4): 2 b E_pi[grad log pi] = 0."""
    lab = Enumerated(0)
    added = lab.gradient(lab.log_z + bias) - lab.gradient(lab.log_z)
    assert float(added.norm()) < 1e-10


@pytest.mark.parametrize("bias", [0.0, -2.0, 2.0])
def test_the_target_is_stationary_on_policy_whatever_the_bias(bias: float) -> None:
    lab = Enumerated(1)
    _set_table(lab.policy, lab.target)
    torch.testing.assert_close(lab.policy.logprobs().detach(), lab.target)
    assert float(lab.gradient(lab.log_z + bias).norm()) < 1e-10


def test_off_policy_a_bias_does_matter() -> None:
    """Rows of the uniform policy without a weight: the exact log Z is stationary, a biased one is not."""
    lab = Enumerated(1)
    _set_table(lab.policy, lab.target)
    assert float(lab.gradient(lab.log_z, "none").norm()) < 1e-10
    assert float(lab.gradient(lab.log_z + 2.0, "none").norm()) > 0.1


def stale(lab: Enumerated, scale: float) -> TabularPolicy:
    """The policy that sampled: the target's table, moved by random logits of this deviation."""
    _set_table(lab.policy, lab.target)
    old = TabularPolicy(4, 3, scale=scale, seed=7)
    old.logits.data += lab.policy.logits.data
    return old


def expected_gradient(lab: Enumerated, old: TabularPolicy, log_z: float, weight: str) -> torch.Tensor:
    """The loss's gradient in the policy's logits, expected over samples of `old`, by enumeration."""
    before = old.token_logprobs().detach()
    batch = tabular_batch(torch.arange(64), 1, lab.landscape, before, lab.reference)
    logp = lab.policy.token_logprobs()
    rows = logp.detach().requires_grad_()
    output = balance(FrozenLogZ(log_z), weight)(batch, PolicyOutput(rows))
    (slope,) = torch.autograd.grad(output.loss, rows)  # of the mean over 64 rows
    return torch.autograd.grad(logp, lab.policy.logits, 64 * before.sum(1).exp()[:, None] * slope)[0]


@pytest.mark.parametrize("bias", [-2.0, 2.0])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_disa_with_a_biased_log_z_rests_at_the_target_on_policy(weight: str, bias: float) -> None:
    """Unit weights, whichever option computes them: the sampling policy is the policy."""
    for seed in range(3):
        lab = Enumerated(seed)
        _set_table(lab.policy, lab.target)
        assert float(expected_gradient(lab, lab.policy, lab.log_z + bias, weight).norm()) <= 1e-6


@pytest.mark.parametrize("bias", [-2.0, 2.0])
@pytest.mark.parametrize("scale", [0.02, 0.1, 0.5, 2.0])
def test_what_a_biased_log_z_costs_on_samples_of_a_stale_policy(scale: float, bias: float) -> None:
    """At the target the residual is the bias b. Without a weight the gradient is 2 b E_old[grad log pi], that
    is -2 b grad KL(old||pi); the exact weight removes it, and so does a clipped one inside its bounds.
    """
    lab = Enumerated(1)
    old = stale(lab, scale)
    norms = {
        weight: float(expected_gradient(lab, old, lab.log_z + bias, weight).norm()) for weight in WEIGHTS
    }
    divergence = kl(old.logprobs().detach(), lab.policy.logprobs())
    (push,) = torch.autograd.grad(-2 * bias * divergence, lab.policy.logits)
    plain = expected_gradient(lab, old, lab.log_z + bias, "none")
    torch.testing.assert_close(plain, push, atol=1e-12, rtol=1e-9)
    assert norms["unclipped"] <= 1e-10
    ratio = (lab.target - old.logprobs().detach()).exp()
    inside = bool(((ratio >= 0.8) & (ratio <= 1.2)).all())
    assert inside == (scale <= 0.02)
    assert norms["clipped"] <= 1e-10 if inside else 1e-4 < norms["clipped"] < norms["none"]
    assert norms["capped"] <= 1e-10 if float(ratio.max()) <= 10 else norms["capped"] > 1e-4


@pytest.mark.parametrize("weight", WEIGHTS)
def test_an_exact_log_z_rests_at_the_target_on_any_samples(weight: str) -> None:
    lab = Enumerated(2)
    assert float(expected_gradient(lab, stale(lab, 2.0), lab.log_z, weight).norm()) <= 1e-10


def _set_table(policy: TabularPolicy, log_p: torch.Tensor) -> None:
    """Logits of the distribution log_p: log of the mass below every prefix."""
    levels = []
    for level in range(policy.length):
        mass = log_p.view(policy.alphabet ** (level + 1), -1).logsumexp(dim=1)
        levels.append(mass.view(-1, policy.alphabet))
    policy.logits.data.copy_(torch.cat(levels))
