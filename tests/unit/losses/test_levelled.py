"""Levelled balance: by hand, against the plain balance loss, and its stated fixed point by enumeration."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from distmatch.losses.balance import BalanceLoss
from distmatch.losses.levelled import LevelledBalanceLoss
from distmatch.losses.log_z import FrozenLogZ, GroupMeanLogZ
from distmatch.study.exact import kl, log_partition
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, tabular_batch, train_tabular
from distmatch.tasks.lab import Lab
from tests.builders import make_batch, make_policy


def test_hand_worked_example() -> None:
    batch = make_batch(1, 2, rewards=[1.0, 0.5], lengths=[1, 2], dtype=torch.float64)
    ref = torch.tensor([[-3.0, 0.0], [-1.0, -2.0]], dtype=torch.float64)
    batch = dataclasses.replace(batch, ref_logprobs=ref)
    logprobs = torch.tensor([[-1.0, 0.0], [-2.0, -2.0]], dtype=torch.float64)
    out = LevelledBalanceLoss(FrozenLogZ(0.5), level=0.5, beta=2.0)(
        batch, make_policy(batch, logprobs=logprobs)
    )
    first = 0.5 - 1 - (1 - 0.5) * -3 - 2 * 1  # log Z + log pi - (1 - level g) log pi_ref - beta r
    second = 0.5 - 4 - (1 - 0.25) * -3 - 2 * 0.5
    assert out.loss.item() == pytest.approx((first**2 + second**2) / 2)


@pytest.mark.parametrize("length_normalize", [True, False])
def test_level_zero_is_the_plain_balance_loss(length_normalize: bool) -> None:
    batch = make_batch(masked_rows=[3])
    policy = make_policy(batch)
    ours = LevelledBalanceLoss(GroupMeanLogZ(), 0.0, 6.0, length_normalize)
    plain = BalanceLoss(GroupMeanLogZ(), 6.0, length_normalize, "raw", "none")
    assert torch.equal(ours(batch, policy).loss, plain(batch, policy).loss)
    assert ours.target_beta == plain.target_beta


def levelled_target(log_ref: torch.Tensor, rewards: torch.Tensor, level: float, beta: float) -> torch.Tensor:
    return ((1 - level * rewards) * log_ref + beta * rewards).log_softmax(dim=0)


@pytest.mark.parametrize("level", [0.5, 1.0])
def test_the_stated_fixed_point_has_no_residual(level: float) -> None:
    landscape = Landscape.of(Lab(alphabet=3, length=3, modes=3, near=5))
    policy = TabularPolicy.of(landscape, scale=1.0, seed=0)
    reference = policy.token_logprobs().detach()
    log_ref = policy.logprobs().detach()
    target = levelled_target(log_ref, landscape.rewards, level, 4.0)
    log_z = float(log_partition((1 - level * landscape.rewards) * log_ref, landscape.rewards, 4.0))
    strings = torch.arange(27).repeat_interleave(2)
    shares = (target[strings] / 3)[:, None].expand(-1, 3)  # any token log-probabilities with this sum
    batch = tabular_batch(strings, 2, landscape, shares, reference[strings])
    policy_out = make_policy(batch, logprobs=shares)
    out = LevelledBalanceLoss(FrozenLogZ(log_z), level, 4.0)(batch, policy_out)
    assert float(out.metrics["residual_abs_mean"]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_training_reaches_the_stated_fixed_point(seed: int) -> None:
    landscape = Landscape.of(Lab())
    policy = TabularPolicy.of(landscape, scale=1.0, seed=seed)
    log_ref = policy.logprobs().detach()
    loss = LevelledBalanceLoss(GroupMeanLogZ(), level=0.5, beta=3.0)
    train_tabular(loss, policy, landscape, iterations=3000, groups=32, seed=seed)
    target = levelled_target(log_ref, landscape.rewards, 0.5, 3.0)
    assert float(kl(target, policy.logprobs().detach())) <= 0.05


@pytest.mark.parametrize("level", [-0.1, 1.5])
def test_bad_levels_are_refused(level: float) -> None:
    with pytest.raises(ValueError, match="level="):
        LevelledBalanceLoss(GroupMeanLogZ(), level=level)
