"""GSPO: an answer is one ratio, clipped or not as a whole."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from distmatch.losses.gspo import GSPOLoss
from distmatch.losses.policy_gradient import GRPOLoss
from tests.builders import make_batch, make_policy


def gradient(loss, batch, policy) -> Tensor:
    return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]


def test_on_policy_the_gradient_is_grpos() -> None:
    batch = make_batch(masked_rows=[3])
    batch = dataclasses.replace(batch, old_logprobs=make_policy(batch).logprobs.detach())
    policy = make_policy(batch, drift=0.0)
    grpo = GRPOLoss(aggregation="seq_mean_token_mean")
    torch.testing.assert_close(gradient(GSPOLoss(), batch, policy), gradient(grpo, batch, policy))


def test_tokens_of_an_answer_share_one_gradient() -> None:
    batch = make_batch()
    grad = gradient(GSPOLoss(clip_low=0.9, clip_high=9.0), batch, make_policy(batch))
    for row in range(batch.rows):
        mine = grad[row][batch.loss_mask[row]]
        torch.testing.assert_close(mine, mine[0].expand_as(mine))


def test_clips_whole_answers() -> None:
    """Good with mean log-ratio 0.01, though one token fell; bad with -0.01; both are beyond 4e-4 and 3e-4."""
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[2, 2])
    gaps = torch.tensor([[-0.1, 0.12], [0.1, -0.12]])
    policy = make_policy(batch, logprobs=batch.old_logprobs + gaps)
    output = GSPOLoss()(batch, policy)
    assert (torch.autograd.grad(output.loss, policy.logprobs)[0] == 0).all()
    assert output.metrics["clip_fraction_low"] == 0.5 and output.metrics["clip_fraction_high"] == 0.5
    assert (gradient(GSPOLoss(), batch, make_policy(batch, logprobs=batch.old_logprobs - gaps)) != 0).all()


def test_length_does_not_weigh_an_answer() -> None:
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[1, 6])
    grad = gradient(GSPOLoss(), batch, make_policy(batch, drift=0.0))
    assert grad[0].sum() == pytest.approx(-grad[1].sum().item())


@pytest.mark.parametrize("gap", [19.0, 300.0])
def test_extreme_ratios_are_cut(gap: float) -> None:
    """A bad answer far above its old probability: e^10 at most, and no gradient beyond."""
    batch = make_batch(1, 2, rewards=[0.0, 1.0], lengths=[1, 1])
    shift = torch.tensor([[gap], [0.0]])
    policy = make_policy(batch, logprobs=batch.old_logprobs + shift)
    output = GSPOLoss()(batch, policy)
    assert output.metrics["ratio_max"] == pytest.approx(math.exp(10), rel=1e-5)
    assert torch.autograd.grad(output.loss, policy.logprobs)[0][0] == 0


def test_ratio_metrics_are_of_answers_and_approx_kl_of_tokens() -> None:
    batch = make_batch(1, 2, rewards=[0.0, 1.0], lengths=[2, 2])
    gaps = torch.tensor([[1.0, -1.0], [0.0, 0.0]])
    metrics = GSPOLoss()(batch, make_policy(batch, logprobs=batch.old_logprobs + gaps)).metrics
    assert metrics["ratio_max"] == pytest.approx(1.0) and metrics["ratio_mean"] == pytest.approx(1.0)
    assert metrics["approx_kl"] == pytest.approx((math.cosh(1) * 2 - 2) / 4)


def test_equal_rewards_and_masked_batches_do_nothing() -> None:
    flat = make_batch(rewards=[0.3] * 12)
    assert (gradient(GSPOLoss(), flat, make_policy(flat)) == 0).all()
    dead = make_batch(masked_rows=range(12))
    assert (gradient(GSPOLoss(), dead, make_policy(dead)) == 0).all()


def test_kl_term_needs_a_reference() -> None:
    assert GSPOLoss().requires == {"old_logprobs"}
    assert GSPOLoss(kl_coef=0.1).requires == {"old_logprobs", "ref_logprobs"}
    batch = make_batch(rewards=[1.0] * 12)
    assert gradient(GSPOLoss(kl_coef=0.1), batch, make_policy(batch)).abs().max() > 0
