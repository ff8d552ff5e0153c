"""PPO and the mismatch correction against verl's recorded numbers, and against the papers in plain Python."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.gae import generalized_advantages
from distmatch.losses.mismatch import MismatchCorrection
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.losses.ppo import PPOLoss
from tests.builders import make_batch, make_policy

INDEX = torch.arange(30, dtype=torch.float64).view(6, 5)


def recorded_batch() -> tuple[RolloutBatch, PolicyOutput]:
    """Two groups of three; ratios, values and engine log-probabilities far enough off to be clipped."""
    batch = make_batch(
        2, 3, rewards=[1.0, 0.0, 0.5, 0.2, 0.9, 0.4], lengths=[3, 5, 1, 4, 2, 5], dtype=torch.float64
    )
    mask = batch.loss_mask

    def live(values: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, values, 0.0)

    old = -(1.2 + INDEX.sin())
    old_values = 0.5 + 0.3 * (0.7 * INDEX).cos()
    batch = dataclasses.replace(
        batch,
        old_logprobs=live(old),
        ref_logprobs=live(old + 0.3 * (2 * INDEX).sin()),
        old_values=live(old_values),
        sampler_logprobs=live(old - 0.6 * (1.7 * INDEX).sin()),
    )
    new = make_policy(batch, logprobs=live(old + 0.4 * (3 * INDEX + 1).cos()))
    values = live(old_values + 0.4 * (1.3 * INDEX + 2).sin()).requires_grad_()
    return batch, dataclasses.replace(new, values=values)


def probe(grad: torch.Tensor) -> tuple[float, float]:
    return grad.norm().item(), (grad * (5 * INDEX).cos()).sum().item()


# ---- numbers recorded from verl ----------------------------------------------------------------------------

PPO_RECORDED = {
    "plain": (
        {},
        (0.22121603937932285, 0.09194920278984721, -0.07102985038277201),
        (0.14139768982396378, 0.11544909223158066, 0.12302240289754446, 0.25),
    ),
    "whitened, dual clip": (
        {"whiten": True, "dual_clip": 1.3, "value_clip": 0.5},
        (-0.020753179698770618, 0.15646601882266845, -0.11158409782799732),
        (0.13575958274059755, 0.11651591425234475, 0.09807683695665874, 0.0),
    ),
    "discounts and KL": (
        {"gamma": 0.99, "gae_lambda": 0.9, "kl_coef": 0.1},
        (0.17654433664395858, 0.08206741245636474, -0.07691030523698872),
        (0.1265957983460499, 0.11073530664164868, 0.11233724188333681, 0.2),
    ),
}
"""Settings; the policy's loss, norm and probe of its gradient in the log-probabilities; the critic's loss,
norm and probe of its gradient in the values, and share of clipped values. verl 0.9.1 on torch 2.13.0,
float64: `compute_gae_advantage_return` (its advantages before whitening for the first and the last),
`compute_policy_loss_vanilla`, `compute_value_loss`, `kl_penalty` (kl) of `core_algos`, called on the tensors
of `recorded_batch`. TRL has had no PPO since before 1.16."""


@pytest.mark.parametrize("name", PPO_RECORDED)
def test_ppo_agrees_with_verl(name: str) -> None:
    settings, surrogate, critic = PPO_RECORDED[name]
    batch, policy = recorded_batch()
    output = PPOLoss(**settings)(batch, policy)
    by_logprobs, by_values = torch.autograd.grad(output.loss, (policy.logprobs, policy.values))
    value_loss = output.metrics["value_loss"]
    # verl adds 1e-8 to counts of tokens, here 20.
    assert (output.loss - value_loss).item() == pytest.approx(surrogate[0], rel=2e-8)
    assert probe(by_logprobs) == pytest.approx(surrogate[1:], rel=2e-8)
    assert value_loss.item() == pytest.approx(critic[0], rel=2e-8)
    assert probe(by_values) == pytest.approx(critic[1:3], rel=2e-8)
    assert output.metrics["value_clip_fraction"].item() == pytest.approx(critic[3])


MISMATCH_RECORDED = {
    ("token", "truncate", 0.0): ((0.18385700268467722, -0.1510932652357719), None),
    ("token", "mask", 0.7): ((0.08578685829568145, -0.04624444567569196), 0.6),
    ("sequence", "truncate", 0.0): ((0.19713777376816177, -0.11742995133548564), None),
    ("sequence", "mask", 0.7): ((0.10186461549364945, -0.050649465914461914), 0.7),
}
"""Level, bound and lower limit (the upper is 1.5); norm and probe of the gradient in the log-probabilities,
and with `mask` the share of tokens outside. verl 0.9.1 as above: `compute_rollout_correction_weights` with
rollout_is_threshold 1.5 or "0.7_1.5", and `compute_policy_loss_vanilla` with its weights. Advantages are our
group z-scores, made in plain torch."""


@pytest.mark.parametrize("case", MISMATCH_RECORDED)
def test_the_mismatch_correction_agrees_with_verl(case: tuple[str, str, float]) -> None:
    level, bound, low = case
    expected, outside = MISMATCH_RECORDED[case]
    batch, policy = recorded_batch()
    loss = MismatchCorrection(GRPOLoss(), level, bound, limit=1.5, limit_low=low)
    output = loss(batch, policy)
    (grad,) = torch.autograd.grad(output.loss, policy.logprobs)
    assert probe(grad) == pytest.approx(expected, rel=2e-8)
    if outside is not None:
        assert output.metrics["mismatch_clip_fraction"].item() == pytest.approx(outside)


# ---- plain Python, from the papers -------------------------------------------------------------------------


def advantages_by_definition(
    rewards: list[float], values: list[float], gamma: float, gae_lambda: float
) -> list[float]:
    """arXiv 1506.02438 eq. 12 and 16, for one row without masks; the value after the last step is 0."""
    steps = len(rewards)
    after = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(steps)]
    return [sum((gamma * gae_lambda) ** i * deltas[t + i] for i in range(steps - t)) for t in range(steps)]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.95, 0.0])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 33])
def test_advantages_by_definition_under_any_mask(gamma: float, gae_lambda: float, width: int) -> None:
    """Masked tokens, also between live ones, are as if they were not there; row 0 has none that live."""
    rng = torch.Generator().manual_seed(width)
    rewards, values = torch.randn(2, 12, width, generator=rng, dtype=torch.float64)
    mask = torch.rand(12, width, generator=rng) < torch.linspace(0, 1.1, 12)[:, None]
    spoilt = values.masked_fill(~mask, torch.nan)
    found = generalized_advantages(rewards, spoilt, mask, gamma, gae_lambda)
    for i in range(12):
        kept = [row[mask[i]].tolist() for row in (rewards[i], values[i])]
        expected = torch.zeros(width, dtype=torch.float64)
        expected[mask[i]] = torch.tensor(
            advantages_by_definition(*kept, gamma, gae_lambda), dtype=torch.float64
        )
        torch.testing.assert_close(found[i], expected)


def ppo_by_definition(batch: RolloutBatch, policy: PolicyOutput, settings: dict) -> float:
    """arXiv 1707.06347 eq. 7 and 9, token by token, then the mean; with the authors' clip of the critic."""
    gamma, lam, kl_coef = settings["gamma"], settings["gae_lambda"], settings["kl_coef"]
    total, tokens = 0.0, 0
    for i in range(batch.rows):
        places = [t for t in range(batch.loss_mask.shape[1]) if bool(batch.loss_mask[i, t])]
        old, ref, new, values, fresh = (
            [float(x[i, t]) for t in places]
            for x in (
                batch.old_logprobs,
                batch.ref_logprobs,
                policy.logprobs.detach(),
                batch.old_values,
                policy.values.detach(),
            )
        )
        rewards = [-kl_coef * (o - r) for o, r in zip(old, ref, strict=True)]
        if rewards:
            rewards[-1] += float(batch.rewards[i])
        for t, a in enumerate(advantages_by_definition(rewards, values, gamma, lam)):
            rho = math.exp(new[t] - old[t])
            kept = min(max(rho, 1 - settings["clip_low"]), 1 + settings["clip_high"])
            target, moved = a + values[t], fresh[t] - values[t]
            near = values[t] + max(-settings["value_clip"], min(settings["value_clip"], moved))
            worst = max((fresh[t] - target) ** 2, (near - target) ** 2)
            total += -min(rho * a, kept * a) + settings["value_coef"] * worst / 2
        tokens += len(places)
    return total / tokens


@pytest.mark.parametrize(
    ("gamma", "gae_lambda", "kl_coef"), list(itertools.product([1.0, 0.9], [1.0, 0.5], [0.0, 0.2]))
)
def test_ppo_by_definition(gamma: float, gae_lambda: float, kl_coef: float) -> None:
    settings = {"gamma": gamma, "gae_lambda": gae_lambda, "kl_coef": kl_coef, "clip_low": 0.15}
    settings |= {"clip_high": 0.25, "value_clip": 0.3, "value_coef": 0.7}
    batch = make_batch(masked_rows=[2, 4, 5, 6, 7], dtype=torch.float64, seed=5)
    policy = make_policy(batch)
    expected = ppo_by_definition(batch, policy, settings)
    assert PPOLoss(**settings)(batch, policy).loss.item() == pytest.approx(expected, rel=1e-12)


# ---- the fixed point ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gae_lambda", [1.0, 0.6])
def test_the_tilted_reference_is_a_fixed_point_with_kl(gae_lambda: float) -> None:
    """All 9 strings of two letters out of three: the mean gradient is zero at pi_ref exp(r / kl_coef) / Z.

    Values are exact: kl_coef * log of the mean of exp(r / kl_coef) over the reference's continuations, which
    is the policy's mean reward minus the KL still to come.
    """
    kl_coef, rng = 0.25, torch.Generator().manual_seed(3)
    rewards = torch.rand(9, generator=rng, dtype=torch.float64)
    ref = torch.randn(9, generator=rng, dtype=torch.float64).log_softmax(0).view(3, 3)
    tilted = (ref.view(-1) + rewards / kl_coef).view(3, 3)
    soft = [kl_coef * (tilted.logsumexp(1) - ref.logsumexp(1)), kl_coef * tilted.logsumexp((0, 1))]

    def tokens(joint: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of both letters of all strings, (9, 2)."""
        first = joint.logsumexp(1) - joint.logsumexp((0, 1))
        return torch.stack([first.repeat_interleave(3), joint.log_softmax(1).view(-1)], dim=1)

    logits = tilted.clone().requires_grad_()
    logprobs = tokens(logits)
    batch = make_batch(9, 1, rewards=rewards, lengths=[2] * 9, dtype=torch.float64)
    batch = dataclasses.replace(
        batch,
        old_logprobs=logprobs.detach(),
        ref_logprobs=tokens(ref),
        old_values=torch.stack([soft[1].expand(9), soft[0].repeat_interleave(3)], dim=1),
    )
    loss = PPOLoss(kl_coef=kl_coef, gae_lambda=gae_lambda, aggregation="seq_mean_token_sum")
    assert loss.target_beta == 1 / kl_coef

    def mean_gradient(batch: RolloutBatch) -> torch.Tensor:
        """Under the policy: every string's own gradient, weighted by its probability."""
        values = batch.old_values.clone().requires_grad_()
        output = loss(batch, PolicyOutput(logprobs, values=values))
        (by_token,) = torch.autograd.grad(output.loss, logprobs, retain_graph=True)
        share = logprobs.detach().sum(1).exp()[:, None]
        return torch.autograd.grad(logprobs, logits, by_token * share * 9, retain_graph=True)[0]

    torch.testing.assert_close(
        mean_gradient(batch), torch.zeros(3, 3, dtype=torch.float64), atol=1e-12, rtol=0
    )
    other = dataclasses.replace(batch, rewards=batch.rewards.flip(0))
    assert mean_gradient(other).abs().max() > 1e-3
