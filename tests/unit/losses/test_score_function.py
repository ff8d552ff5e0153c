"""REINFORCE, RLOO and GPG."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from distmatch.losses.score_function import GPGLoss, ReinforceLoss, RLOOLoss
from distmatch.ops import flat_groups
from tests.builders import make_batch, make_policy, take_rows

EVERY = {
    "reinforce": ReinforceLoss,
    "reinforce, baseline": lambda: ReinforceLoss(group_baseline=True),
    "rloo": RLOOLoss,
    "gpg": GPGLoss,
    "gpg, scaled": lambda: GPGLoss(scale_rewards=True),
    "gpg, verl": lambda: GPGLoss(alpha_by="nonzero_rewards"),
    "gpg, one": lambda: GPGLoss(alpha_by="one"),
}
WITH_BASELINE = [name for name in EVERY if name != "reinforce"]
BLIND_TO_SHIFTS = [
    name for name in WITH_BASELINE if name != "gpg, verl"
]  # that one counts rewards other than 0


def gradient(loss, batch, policy=None) -> Tensor:
    policy = policy or make_policy(batch)
    return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]


@pytest.mark.parametrize("name", EVERY)
def test_needs_nothing_but_rewards_and_log_probabilities(name: str) -> None:
    loss = EVERY[name]()
    assert loss.requires == frozenset() and list(loss.parameters()) == []


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_does_not_depend_on_the_log_probabilities(name: str) -> None:
    batch = make_batch()
    first, second = make_policy(batch), make_policy(batch, drift=5.0, seed=9)
    torch.testing.assert_close(gradient(EVERY[name](), batch, first), gradient(EVERY[name](), batch, second))


@pytest.mark.parametrize("name", WITH_BASELINE)
def test_equal_rewards_push_nowhere(name: str) -> None:
    batch = make_batch(rewards=[0.7] * 12)
    assert (gradient(EVERY[name](), batch) == 0).all()


@pytest.mark.parametrize("name", BLIND_TO_SHIFTS)
def test_a_constant_added_to_rewards_changes_nothing(name: str) -> None:
    batch = make_batch()
    moved = dataclasses.replace(batch, rewards=batch.rewards + 3.0)
    policy = make_policy(batch)
    torch.testing.assert_close(gradient(EVERY[name](), moved, policy), gradient(EVERY[name](), batch, policy))


def test_plain_reinforce_pushes_whatever_was_sampled_up() -> None:
    batch = make_batch(rewards=[0.7] * 12)
    grad = gradient(ReinforceLoss(), batch)
    torch.testing.assert_close(grad, torch.where(batch.loss_mask, torch.tensor(-0.7 / 12), 0.0))


@pytest.mark.parametrize("name", EVERY)
def test_one_live_row_in_a_group(name: str) -> None:
    batch = make_batch(masked_rows=[0, 1, 2])
    grad = gradient(EVERY[name](), batch)
    assert (grad[:3] == 0).all() and grad[4:].abs().max() > 0
    assert (grad[3] == 0).all() == (name != "reinforce")


def test_the_group_mean_shrinks_leave_one_out() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    mean, others = gradient(ReinforceLoss(group_baseline=True), batch, policy), RLOOLoss()
    torch.testing.assert_close(mean * 4 / 3, gradient(others, batch, policy))


def test_groups_of_one() -> None:
    batch = make_batch(12, 1)
    assert gradient(ReinforceLoss(), batch).abs().max() > 0
    for loss in (ReinforceLoss(group_baseline=True), RLOOLoss(), GPGLoss()):
        with pytest.raises(ValueError, match="group_size=1"):
            loss(batch, make_policy(batch))


def test_dropped_groups_leave_the_denominator() -> None:
    loss = RLOOLoss(zero_signal="drop")
    assert loss.drops_zero_signal_groups and not RLOOLoss().drops_zero_signal_groups
    batch = make_batch(2, 4, rewards=[1, 1, 1, 1, 0, 1, 0, 1])
    policy = make_policy(batch)
    flat = flat_groups(batch.rewards, 4).repeat_interleave(4)
    narrowed = dataclasses.replace(batch, loss_mask=batch.loss_mask & ~flat[:, None], totals=None)
    alone = batch.select_groups(torch.tensor([1]))
    expected = gradient(loss, alone, take_rows(policy, torch.arange(4, 8)))
    torch.testing.assert_close(gradient(loss, narrowed, policy)[4:], expected)


# ---- GPG's alpha ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "by_signal", "by_rewards"),
    [
        ([1, 0, 1, 0, 1, 0], 1.0, 2.0),
        ([1, 0, 1, 1, 0, 0], 3.0, 2.0),
        ([0, 0, 0, 0, 0, 0], 1.0, 6.0),  # nothing to make up for, and no division by zero
        ([1, 1, 1, 1, 1, 1], 1.0, 1.0),
    ],
)
def test_alpha_makes_up_for_groups_without_signal(rewards, by_signal: float, by_rewards: float) -> None:
    batch = make_batch(3, 2, rewards=rewards)
    policy = make_policy(batch)
    assert GPGLoss()(batch, policy).metrics["alpha"] == by_signal
    assert GPGLoss(alpha_by="nonzero_rewards")(batch, policy).metrics["alpha"] == by_rewards
    assert GPGLoss(alpha_by="one")(batch, policy).metrics["alpha"] == 1.0


def test_with_alpha_flat_groups_do_not_dilute() -> None:
    """Equal lengths: the gradient of the group with signal is the one that it has alone."""
    batch = make_batch(3, 2, rewards=[1, 0, 1, 1, 0, 0], lengths=[3] * 6)
    policy = make_policy(batch)
    alone = batch.select_groups(torch.tensor([0]))
    expected = gradient(GPGLoss(), alone, take_rows(policy, torch.arange(2)))
    torch.testing.assert_close(gradient(GPGLoss(), batch, policy)[:2], expected)
    diluted = gradient(GPGLoss(alpha_by="one"), batch, policy)
    torch.testing.assert_close(diluted[:2] * 3, expected)


def test_alpha_counts_the_groups_of_all_ranks() -> None:
    """Three ranks with two groups, one and one; three of the four have signal."""
    batch = make_batch(2, 2, rewards=[1, 0, 0, 1])
    totals = dataclasses.replace(batch.totals, groups=4 / 3, signal_groups=3 / 3)
    spread = dataclasses.replace(batch, totals=totals)
    assert GPGLoss()(spread, make_policy(batch)).metrics["alpha"] == pytest.approx(4 / 3)


def test_unknown_alpha_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of signal, nonzero_rewards, one"):
        GPGLoss(alpha_by="verl")
