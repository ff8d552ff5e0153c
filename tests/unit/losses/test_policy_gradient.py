"""GRPO's parts one by one."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from distmatch.losses.policy_gradient import GRPOLoss, clipped_surrogate
from distmatch.ops import flat_groups
from tests.builders import make_batch, make_policy


def gradient(loss: GRPOLoss, batch, policy) -> Tensor:
    return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]


def at_ratios(ratios: list[float], rewards: list[float]):
    """Single-token rows with the given ratios of new to old probability."""
    batch = make_batch(1, len(rewards), rewards=rewards, lengths=[1] * len(rewards))
    batch = dataclasses.replace(batch, old_logprobs=torch.full((len(rewards), 1), -2.0))
    return batch, make_policy(batch, logprobs=-2.0 + torch.tensor(ratios).log()[:, None])


def test_clip_takes_the_gradient_away() -> None:
    """Good at ratio 2 and bad at ratio 0.5 are done; good at 0.5 and bad at 2 are not."""
    batch, policy = at_ratios([2.0, 0.5, 0.5, 2.0], [1.0, 0.0, 1.0, 0.0])
    grad = gradient(GRPOLoss(), batch, policy).reshape(-1)
    assert (grad[:2] == 0).all() and (grad[2:] != 0).all()
    metrics = GRPOLoss()(batch, policy).metrics
    assert metrics["clip_fraction_high"] == 0.25 and metrics["clip_fraction_low"] == 0.25
    assert metrics["ratio_mean"] == pytest.approx(1.25) and metrics["ratio_max"] == pytest.approx(2.0)


def test_dual_clip_bounds_bad_tokens_only() -> None:
    ratio, bad, good = torch.tensor([[1.0, 2.9, 3.1, 500.0]]), torch.tensor([[-1.0]]), torch.tensor([[1.0]])
    assert clipped_surrogate(ratio, bad, 0.2, 0.2, 3.0)[0].tolist() == pytest.approx([-1.0, -2.9, -3.0, -3.0])
    assert clipped_surrogate(ratio, bad, 0.2, 0.2)[0].tolist() == pytest.approx([-1.0, -2.9, -3.1, -500.0])
    assert clipped_surrogate(ratio, good, 0.2, 0.2, 3.0)[0].tolist() == pytest.approx([1.0, 1.2, 1.2, 1.2])
    batch, policy = at_ratios([9.0, 1.0], [0.0, 1.0])
    assert GRPOLoss(dual_clip=3.0)(batch, policy).metrics["dual_clip_fraction"] == 0.5
    assert gradient(GRPOLoss(dual_clip=3.0), batch, policy)[0] == 0


def test_on_policy_gradient_is_the_plain_policy_gradient() -> None:
    batch = make_batch(1, 2, rewards=[0.0, 1.0], lengths=[1, 3])
    grad = gradient(GRPOLoss(scale_rewards=False), batch, make_policy(batch, drift=0.0))
    expected = torch.where(batch.loss_mask, torch.tensor([[0.5], [-0.5]]) / 4, torch.zeros(()))
    torch.testing.assert_close(grad, expected)


def test_flat_groups_feel_nothing_but_kl() -> None:
    batch = make_batch(rewards=[1.0] * 12)
    policy = make_policy(batch)
    assert (gradient(GRPOLoss(), batch, policy) == 0).all()
    signal = make_batch()
    both = gradient(GRPOLoss(kl_coef=0.3), signal, make_policy(signal))
    kl_alone = both - gradient(GRPOLoss(), signal, make_policy(signal))
    torch.testing.assert_close(gradient(GRPOLoss(kl_coef=0.3), batch, policy), kl_alone)


def test_dropped_flat_groups_leave_numerator_and_denominator() -> None:
    """As PolicyModule narrows the mask: the rest has the gradient that it has alone, KL included."""
    loss = GRPOLoss(kl_coef=0.3, zero_signal="drop")
    assert loss.drops_zero_signal_groups and not GRPOLoss().drops_zero_signal_groups
    batch = make_batch(2, 4, rewards=[1, 1, 1, 1, 0, 1, 0, 1], lengths=[3] * 8)
    policy = make_policy(batch)
    flat = flat_groups(batch.rewards, 4).repeat_interleave(4)
    narrowed = dataclasses.replace(batch, loss_mask=batch.loss_mask & ~flat[:, None], totals=None)
    grad = gradient(loss, narrowed, policy)
    alone = batch.select_groups(torch.tensor([1]))
    expected = gradient(loss, alone, make_policy(alone, logprobs=policy.logprobs.detach()[4:]))
    assert (grad[:4] == 0).all()
    torch.testing.assert_close(grad[4:], expected)


def test_metrics_tell_on_policy_from_no_signal() -> None:
    signal, flat = make_batch(), make_batch(rewards=[0.1] * 12)
    loss = GRPOLoss()
    first, second = loss(signal, make_policy(signal, drift=0.0)), loss(flat, make_policy(flat, drift=0.0))
    assert first.metrics["frac_groups_no_signal"] == 0 and second.metrics["frac_groups_no_signal"] == 1
    assert first.metrics["adv_abs_mean"] > 0.1 and second.metrics["adv_abs_mean"] == 0
    assert first.metrics["approx_kl"] == 0 and first.metrics["ratio_mean"] == 1


def test_kl_metrics_report_and_count_clamps() -> None:
    batch, policy = at_ratios([1.0, 1.0], [0.0, 1.0])
    batch = dataclasses.replace(batch, ref_logprobs=torch.tensor([[-32.0], [-2.5]]))
    metrics = GRPOLoss(kl_coef=0.1, kl_estimator="k1")(batch, policy).metrics
    assert metrics["kl"] == pytest.approx((20 + 0.5) / 2) and metrics["kl_max"] == 20
    assert metrics["kl_clamp_fraction"] == 0.5


def test_approx_kl_is_k3_from_old_to_new() -> None:
    batch, policy = at_ratios([2.0, 1.0], [0.0, 1.0])
    assert GRPOLoss()(batch, policy).metrics["approx_kl"] == pytest.approx((2 - 1 - math.log(2)) / 2)


def test_needs_follow_the_settings() -> None:
    assert GRPOLoss().requires == {"old_logprobs"}
    assert GRPOLoss(kl_coef=0.1).requires == {"old_logprobs", "ref_logprobs"}
    assert list(GRPOLoss().parameters()) == [] and GRPOLoss().param_groups(1.0) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 1.0}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"dual_clip": 1.1}, "dual_clip"),
        ({"kl_coef": -1.0}, "kl_coef"),
        ({"zero_signal": "mask"}, "choose keep or drop"),
        ({"aggregation": "mean"}, "token_mean"),
        ({"kl_loss": "k1"}, "would train nothing"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPOLoss(**settings)
