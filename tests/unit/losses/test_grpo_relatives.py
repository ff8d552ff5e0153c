"""Dr. GRPO and DAPO: settings of GRPO, as their YAML files say them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from distmatch.losses.policy_gradient import GRPOLoss
from tests.builders import make_batch, make_policy

CONFIGS = Path(__file__).parents[3] / "configs"


def shipped(*overrides: str) -> GRPOLoss:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return instantiate(compose("train", overrides=list(overrides)).algo)


def gradient(loss: GRPOLoss, batch) -> Tensor:
    policy = make_policy(batch, drift=0.0)
    return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]


def test_dr_grpo_divides_by_the_completion_limit_of_the_run() -> None:
    batch = make_batch()
    short, long = shipped("algo=dr_grpo", "data.max_tokens=7"), shipped("algo=dr_grpo", "data.max_tokens=14")
    torch.testing.assert_close(gradient(short, batch), 2 * gradient(long, batch))
    as_base = shipped("algo=dmpo", "algo@algo.base=dr_grpo", "data.max_tokens=14")
    torch.testing.assert_close(gradient(as_base.base, batch), gradient(long, batch))


def test_dr_grpo_weighs_no_token_by_length_or_spread() -> None:
    """Same gradient a token in short and long answers; twice the spread of rewards, twice the gradient."""
    loss = shipped("algo=dr_grpo")
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[1, 6])
    grad = gradient(loss, batch)
    torch.testing.assert_close(grad[batch.loss_mask].abs(), torch.full((7,), 0.5 / (2 * 14)))
    doubled = dataclasses.replace(batch, rewards=batch.rewards * 2)
    torch.testing.assert_close(gradient(loss, doubled), 2 * grad)
    assert loss.requires == {"old_logprobs"}


def test_dr_grpo_spares_flat_and_masked_groups() -> None:
    loss = shipped("algo=dr_grpo")
    for batch in (make_batch(rewards=[0.1] * 12), make_batch(masked_rows=range(12))):
        assert (gradient(loss, batch) == 0).all()


def test_dapo_clips_higher_and_drops_flat_groups() -> None:
    loss = shipped("algo=dapo")
    assert (loss.clip_low, loss.clip_high, loss.kl_coef) == (0.2, 0.28, 0.0)
    assert loss.drops_zero_signal_groups and loss.requires == {"old_logprobs"}


@pytest.mark.parametrize(("ratio", "learns"), [(1.27, True), (1.29, False)])
def test_dapo_lets_good_tokens_rise_further(ratio: float, learns: bool) -> None:
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[1, 1])
    policy = make_policy(batch, logprobs=batch.old_logprobs + torch.tensor(ratio).log())
    (grad,) = torch.autograd.grad(shipped("algo=dapo")(batch, policy).loss, policy.logprobs)
    assert bool(grad[0] != 0) is learns


def test_dapo_weighs_answers_by_length() -> None:
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[1, 6])
    grad = gradient(shipped("algo=dapo"), batch)
    torch.testing.assert_close(grad[batch.loss_mask].abs(), grad[0, 0].abs().expand(7))
