"""BalanceLoss against plain Python written from the papers: residual, weights, gradient, theory.

FlowRL arXiv 2509.15207, trajectory balance 2201.13259, VarGrad 2010.10436, DISA 2605.17295.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
import torch

from distmatch.batch import PolicyOutput
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.log_z import FrozenLogZ, GroupMeanLogZ, LearnedLogZ, LogZ, ScalarLogZ
from distmatch.ops import where_mask
from tests.builders import make_batch, make_policy

WEIGHTS = {"none": None, "clipped": (0.9, 1.3), "capped": (0.0, 10.0), "unclipped": (0.0, math.inf)}


def balance(log_z: LogZ, **changes) -> BalanceLoss:
    """Raw reward, token sums, no weight: the form that theory speaks about."""
    plain = {"beta": 6.0, "length_normalize": False, "reward_source": "raw", "importance_weight": "none"}
    return BalanceLoss(log_z, **(plain | changes))


# ---- the formula -------------------------------------------------------------------------------------------


def looped(batch, logprobs, *, log_z, beta, normalize, source, bounds) -> float:
    """The mean over live rows of omega * delta^2, row by row; log_z a number, or None for the group mean."""
    squares = []
    for first in range(0, batch.rows, batch.group_size):
        rows = [i for i in range(first, first + batch.group_size) if bool(batch.loss_mask[i].any())]
        rewards = [float(batch.rewards[i]) for i in rows]
        if source == "group_zscore":
            spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
            rewards = [(r - statistics.mean(rewards)) / (spread + 1e-6) for r in rewards]
        without, weights = [], []
        for i, reward in zip(rows, rewards, strict=True):
            tokens = [t for t, on in enumerate(batch.loss_mask[i].tolist()) if on]
            gap = sum((logprobs[i, t] - batch.ref_logprobs[i, t]).item() for t in tokens)
            without.append(gap / (len(tokens) if normalize else 1) - beta * reward)
            ratio = math.exp(sum((logprobs[i, t] - batch.old_logprobs[i, t]).item() for t in tokens))
            weights.append(1.0 if bounds is None else min(max(ratio, bounds[0]), bounds[1]))
        known = -statistics.mean(without) if log_z is None and without else log_z
        squares += [w * (known + d) ** 2 for w, d in zip(weights, without, strict=True)]
    return statistics.mean(squares)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("source", ["raw", "group_zscore"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("log_z", [1.3, None])
@pytest.mark.parametrize("masked", [(), (1, 6, 8, 9, 10, 12, 13, 14, 15)])
def test_agrees_with_loops(weight: str, source: str, normalize: bool, log_z, masked) -> None:
    batch = make_batch(4, 4, masked_rows=masked, dtype=torch.float64)
    policy = make_policy(batch)
    loss = BalanceLoss(
        GroupMeanLogZ() if log_z is None else FrozenLogZ(log_z),
        beta=2.5,
        length_normalize=normalize,
        reward_source=source,
        importance_weight=weight,
        clip_low=0.1,
        clip_high=0.3,
        coefficient=0.5,
    )
    expected = looped(
        batch,
        policy.logprobs,
        log_z=log_z,
        beta=2.5,
        normalize=normalize,
        source=source,
        bounds=WEIGHTS[weight],
    )
    assert loss(batch, policy).loss.item() == pytest.approx(0.5 * expected, rel=1e-9)


def two_answers(logprobs=((-1.0, -2.0), (-3.0, 0.0)), old=None):
    """Two answers to one prompt, of two tokens and of one; reference -1 a token, rewards 1 and 0."""
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[2, 1], dtype=torch.float64)
    given = torch.tensor(logprobs, dtype=torch.float64)
    reference = torch.tensor([[-1.0, -1.0], [-1.0, 0.0]], dtype=torch.float64)
    past = given if old is None else torch.tensor(old, dtype=torch.float64)
    batch = dataclasses.replace(batch, ref_logprobs=reference, old_logprobs=past)
    return batch, make_policy(batch, logprobs=given)


def test_hand_worked_token_sums() -> None:
    """log pi - log ref: -1 and -2. log Z 2, beta 3: delta = 2 - 1 - 3 = -2 and 2 - 2 - 0 = 0."""
    batch, policy = two_answers()
    output = balance(FrozenLogZ(2.0), beta=3.0)(batch, policy)
    assert output.loss.item() == pytest.approx((4 + 0) / 2)
    (grad,) = torch.autograd.grad(output.loss, policy.logprobs)
    torch.testing.assert_close(grad, torch.tensor([[-2.0, -2.0], [0.0, 0.0]], dtype=torch.float64))
    assert float(output.metrics["residual_mean"]) == pytest.approx(-1)
    assert float(output.metrics["reference_gap_mean"]) == pytest.approx(-1.5)


def test_hand_worked_token_means() -> None:
    """Per token -1/2 and -2: delta = 2 - 1/2 - 3 = -3/2 and 0."""
    batch, policy = two_answers()
    loss = balance(FrozenLogZ(2.0), beta=3.0, length_normalize=True)
    assert loss(batch, policy).loss.item() == pytest.approx(2.25 / 2)


def test_hand_worked_group_mean() -> None:
    """Without log Z: -1 - 3 = -4 and -2; their mean -3 is minus log Z; (1 + 1) / 2."""
    batch, policy = two_answers()
    output = balance(GroupMeanLogZ(), beta=3.0)(batch, policy)
    assert output.loss.item() == pytest.approx(1.0)
    assert float(output.metrics["log_z_mean"]) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("weight", "expected"), [("none", 1.0), ("clipped", 1.2), ("capped", 10.0), ("unclipped", math.exp(3))]
)
def test_hand_worked_weights(weight: str, expected: float) -> None:
    """The first answer is e^3 times as likely as when it was drawn; delta is -2 and 0."""
    batch, policy = two_answers(old=((-2.5, -3.5), (-3.0, 0.0)))
    output = balance(FrozenLogZ(2.0), beta=3.0, importance_weight=weight)(batch, policy)
    assert output.loss.item() == pytest.approx(expected * 4 / 2)
    if weight != "none":
        share = output.metrics["importance_weight_clip_fraction"]
        assert float(share) == (0.0 if weight == "unclipped" else 0.5)


def test_hand_worked_zscored_rewards() -> None:
    """Rewards 1 and 0 have mean 1/2 and deviation (ddof 1) 1/sqrt(2): scores are +-1/sqrt(2)."""
    batch, policy = two_answers()
    loss = balance(FrozenLogZ(0.0), beta=2.0, reward_source="group_zscore")
    score = 0.5 / (math.sqrt(0.5) + 1e-6)
    expected = ((-1 - 2 * score) ** 2 + (-2 + 2 * score) ** 2) / 2
    assert loss(batch, policy).loss.item() == pytest.approx(expected)


# ---- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("head", [FrozenLogZ(0.7), ScalarLogZ(0.7)], ids=["frozen", "scalar"])
def test_finite_differences(head: LogZ, normalize: bool) -> None:
    batch = make_batch(2, 4, masked_rows=[5], dtype=torch.float64)
    policy = make_policy(batch, drift=0.5)
    loss = balance(head, length_normalize=normalize, reward_source="group_zscore").double()
    torch.autograd.gradcheck(lambda logprobs: loss(batch, PolicyOutput(logprobs)).loss, policy.logprobs)


def test_finite_differences_of_a_learned_head() -> None:
    """In log-probabilities, in the prompt's hidden state and, through it, in the head's own weights."""
    batch = make_batch(2, 4, masked_rows=[5], dtype=torch.float64)
    policy = make_policy(batch)
    loss = balance(LearnedLogZ(width=5)).double()
    bias = loss.log_z.layers[-1].bias

    def value(logprobs: torch.Tensor, hidden: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        bias.data.copy_(shift.detach())
        output = loss(batch, PolicyOutput(logprobs, prompt_hidden=hidden)).loss
        return output

    start = bias.detach().clone()
    torch.autograd.gradcheck(
        lambda a, b: value(a, b, start), (policy.logprobs, policy.prompt_hidden), atol=1e-4
    )
    (slope,) = torch.autograd.grad(value(policy.logprobs, policy.prompt_hidden, start), bias)
    up, down = (value(policy.logprobs, policy.prompt_hidden, start + s).item() for s in (1e-5, -1e-5))
    assert slope.item() == pytest.approx((up - down) / 2e-5, rel=1e-6)


def test_the_weight_and_the_group_mean_carry_no_gradient() -> None:
    """d/dlogp of omega * delta^2 / B is 2 omega delta / B, with omega and the group mean as numbers."""
    batch = make_batch(2, 4, dtype=torch.float64)
    policy = make_policy(batch, drift=0.05)
    loss = balance(GroupMeanLogZ(), importance_weight="unclipped")
    (grad,) = torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)
    gap = (policy.logprobs - batch.ref_logprobs).sum(1).detach() - 6 * batch.rewards
    delta = gap - gap.view(2, 4).mean(1).repeat_interleave(4)
    omega = (policy.logprobs - batch.old_logprobs).sum(1).exp().detach()
    expected = torch.where(batch.loss_mask, (2 * omega * delta / 8)[:, None], 0.0)
    torch.testing.assert_close(grad, expected)


def test_a_token_outside_the_references_support_is_pushed_down_with_a_bounded_force() -> None:
    batch, policy = two_answers()
    impossible = torch.tensor([[-torch.inf, -1.0], [-1.0, 0.0]], dtype=torch.float64)
    batch = dataclasses.replace(batch, ref_logprobs=impossible)
    output = balance(FrozenLogZ(0.0), beta=3.0)(batch, policy)
    (grad,) = torch.autograd.grad(output.loss, policy.logprobs)
    assert grad[0, 0].item() == pytest.approx(2 * (20 - 1 - 3) / 2)  # gaps: 20 for inf, -1; reward 3
    assert float(output.metrics["reference_clamp_fraction"]) == pytest.approx(1 / 3)


# ---- VarGrad -----------------------------------------------------------------------------------------------


def test_vargrad_is_the_variance_inside_groups() -> None:
    """arXiv 2010.10436: the log-variance loss; with n, not n - 1."""
    batch = make_batch(3, 5, dtype=torch.float64)
    policy = make_policy(batch)
    gap = where_mask(policy.logprobs - batch.ref_logprobs, batch.loss_mask).sum(1) - 6 * batch.rewards
    expected = gap.view(3, 5).var(dim=1, correction=0).mean()
    loss = balance(GroupMeanLogZ())(batch, policy).loss
    torch.testing.assert_close(loss, expected)
    grads = [torch.autograd.grad(f, policy.logprobs, retain_graph=True)[0] for f in (loss, expected)]
    torch.testing.assert_close(*grads)  # though the mean is held constant in the first


def test_vargrad_does_not_see_what_a_prompt_adds() -> None:
    batch = make_batch(3, 4, dtype=torch.float64)
    policy = make_policy(batch)
    shift = torch.tensor([5.0, -3.0, 0.5], dtype=torch.float64).repeat_interleave(4)
    moved = dataclasses.replace(batch, rewards=batch.rewards + shift)
    loss = balance(GroupMeanLogZ())
    torch.testing.assert_close(loss(moved, policy).loss, loss(batch, policy).loss)
