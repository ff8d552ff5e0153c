"""DMPO's composition with a base, its zero-signal setting, and its figures."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from distmatch.batch import LossOutput
from distmatch.losses.base import Loss
from distmatch.losses.dmpo import DIVERGENCES, DMPOLoss
from distmatch.losses.policy_gradient import GRPOLoss
from tests.builders import make_batch, make_policy


def gradient(loss: Loss, batch, policy) -> Tensor:
    return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]


class Learned(Loss):
    """A base with its own parameters, needs and critic."""

    min_group_size = 5

    def __init__(self) -> None:
        super().__init__()
        self.value_head = nn.Linear(4, 1)
        self.requires = frozenset({"values"})

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        return [{"params": list(self.parameters()), "lr": 10 * lr}]

    def forward(self, batch, policy) -> LossOutput:
        return LossOutput(policy.values.sum() * 0 + policy.logprobs.sum() * 0, {"base_figure": 1.0})


def test_is_the_sum_of_its_parts() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    whole, base, alone = DMPOLoss(GRPOLoss(), weight=3.0), GRPOLoss(), DMPOLoss(weight=1.0)
    expected = gradient(base, batch, policy) + 3 * gradient(alone, batch, policy)
    torch.testing.assert_close(gradient(whole, batch, policy), expected)
    metrics = whole(batch, policy).metrics
    assert metrics["base_loss"] == base(batch, policy).loss.detach()
    assert metrics["dm_loss"] == alone(batch, policy).loss.detach()


def test_weight_zero_is_the_base() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    torch.testing.assert_close(
        gradient(DMPOLoss(GRPOLoss(), weight=0.0), batch, policy), gradient(GRPOLoss(), batch, policy)
    )


def test_takes_over_what_the_base_is() -> None:
    base = Learned()
    loss = DMPOLoss(base)
    assert loss.requires == {"values"} and loss.min_group_size == 5
    assert loss.value_head is base.value_head
    assert loss.param_groups(0.1) == [{"params": list(base.parameters()), "lr": 1.0}]
    assert set(loss.state_dict()) == {"base.value_head.weight", "base.value_head.bias"}
    assert DMPOLoss(GRPOLoss(kl_coef=0.1)).requires == {"old_logprobs", "ref_logprobs"}
    assert DMPOLoss().requires == frozenset() and DMPOLoss().value_head is None


def test_a_base_that_drops_what_this_keeps_is_refused() -> None:
    with pytest.raises(ValueError, match="zero_signal=drop"):
        DMPOLoss(GRPOLoss(zero_signal="drop"))
    assert DMPOLoss(GRPOLoss(zero_signal="drop"), zero_signal="drop").drops_zero_signal_groups
    assert not DMPOLoss(GRPOLoss(), zero_signal="drop").drops_zero_signal_groups


def test_kept_flat_groups_are_pulled_to_uniform_and_dropped_ones_are_not_counted() -> None:
    batch = make_batch(2, 4, rewards=[1, 1, 1, 1, 0, 1, 0, 1])
    policy = make_policy(batch)
    keep, drop = DMPOLoss(), DMPOLoss(zero_signal="drop")
    assert (gradient(keep, batch, policy)[:4] != 0).any()
    alone = batch.select_groups(torch.tensor([1]))
    kept_alone = make_policy(alone, logprobs=policy.logprobs.detach()[4:])
    grad = gradient(drop, batch, policy)
    assert (grad[:4] == 0).all()
    torch.testing.assert_close(grad[4:], gradient(keep, alone, kept_alone))
    assert drop(batch, policy).metrics["frac_groups_no_signal"] == 0.5


def test_dropping_everything_gives_zero() -> None:
    batch = make_batch(rewards=[1.0] * 12)
    policy = make_policy(batch)
    assert (gradient(DMPOLoss(zero_signal="drop"), batch, policy) == 0).all()


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_masked_rows_leave_their_group(divergence: str) -> None:
    """A group of 4 with one masked row is a group of 3."""
    batch = make_batch(1, 4, masked_rows=[2], width=7)
    rest = torch.tensor([0, 1, 3])
    small = make_batch(
        1, 3, rewards=batch.rewards[rest], lengths=batch.loss_mask[rest].sum(1).tolist(), width=7
    )
    policy = make_policy(batch)
    small_policy = make_policy(small, logprobs=policy.logprobs.detach()[rest])
    loss = DMPOLoss(divergence=divergence, temperature=0.5)
    torch.testing.assert_close(loss(batch, policy).loss, loss(small, small_policy).loss)
    torch.testing.assert_close(gradient(loss, batch, policy)[rest], gradient(loss, small, small_policy))


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_impossible_answers_stay_finite(divergence: str) -> None:
    batch = make_batch(1, 4)
    logprobs = make_policy(batch).logprobs.detach()
    logprobs[0, 0] = -torch.inf
    policy = make_policy(batch, logprobs=logprobs)
    loss = DMPOLoss(divergence=divergence)
    assert torch.isfinite(loss(batch, policy).loss) and torch.isfinite(gradient(loss, batch, policy)).all()


def test_there_is_no_importance_ratio_in_the_matching_term() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    other = dataclasses.replace(batch, old_logprobs=batch.old_logprobs - 3)
    assert DMPOLoss()(batch, policy).loss == DMPOLoss()(other, policy).loss


def test_grad_norm_ratio_is_right_and_leaves_the_backward_alone() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    leaf = policy.logprobs
    scored = dataclasses.replace(policy, logprobs=leaf * 1.0)
    output = DMPOLoss(GRPOLoss(), weight=2.0)(batch, scored)
    output.loss.backward()
    norms = [gradient(loss, batch, policy).norm() for loss in (DMPOLoss(weight=2.0), GRPOLoss())]
    torch.testing.assert_close(output.metrics["grad_norm_ratio"], norms[0] / norms[1])
    torch.testing.assert_close(leaf.grad, gradient(DMPOLoss(GRPOLoss(), weight=2.0), batch, policy))
    with torch.no_grad():
        assert "grad_norm_ratio" not in DMPOLoss(GRPOLoss())(batch, policy).metrics
    assert "grad_norm_ratio" not in DMPOLoss()(batch, policy).metrics


def test_target_metrics() -> None:
    batch = make_batch(2, 4, rewards=[1, 1, 0, 0, 0, 0, 0, 0], lengths=[1] * 8)
    policy = make_policy(batch, logprobs=torch.full((8, 1), -0.5))
    metrics = DMPOLoss(temperature=0.01)(batch, policy).metrics
    assert metrics["target_entropy"] == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert metrics["target_effective_size"] == pytest.approx(3.0)
    assert metrics["target_max"] == pytest.approx((0.5 + 0.25) / 2)
    assert metrics["dm_gap_max"] == pytest.approx(0.25)
    assert metrics["frac_groups_no_signal"] == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"weight": -1.0}, "weight"),
        ({"divergence": "kl"}, "divergence='kl' is unknown; choose one of mse, js, forward_kl, log_mse"),
        ({"target_source": "value"}, "choose one of reward, advantage"),
        ({"zero_signal": "maybe"}, "choose keep or drop"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DMPOLoss(**settings)
