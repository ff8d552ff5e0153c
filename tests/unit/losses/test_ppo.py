"""PPOLoss and its critic: worked by hand, gradients, masks, and the way through PolicyModule."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.gae import generalized_advantages
from distmatch.losses.log_z import LearnedLogZ
from distmatch.losses.ppo import PPOLoss, ValueHead, whitened
from distmatch.losses.projection import FixedProjection
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.policy import PolicyModule
from distmatch.sampling.base import SamplingParams
from tests.builders import make_batch, make_policy


def two_rows() -> tuple[RolloutBatch, PolicyOutput]:
    """Two and three tokens, every position with a value of its own.

    gamma 1, lambda 1/2. Row 1, reward 1, V 0.5 0.2: delta -0.3 0.8, A 0.1 0.8, R 0.6 1. Row 2, reward 0,
    V 0.1 0.3 0.6: delta 0.2 0.3 -0.6, A 0.2 0 -0.6, R 0.3 0.3 0.
    """
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[2, 3], dtype=torch.float64)
    old = -torch.ones(2, 3, dtype=torch.float64)
    gaps = torch.tensor([[math.log(1.5), 0, 9], [0, 0, math.log(0.5)]]).double()
    batch = dataclasses.replace(
        batch, old_logprobs=old, old_values=torch.tensor([[0.5, 0.2, 9], [0.1, 0.3, 0.6]]).double()
    )
    values = torch.tensor([[0.9, 0.3, 9], [0.1, 0.3, 0.2]]).double().requires_grad_()
    return batch, dataclasses.replace(make_policy(batch, logprobs=old + gaps), values=values)


def test_advantages_by_hand() -> None:
    batch, _ = two_rows()
    rewards = torch.tensor([[0.0, 1, 9], [0, 0, 0]]).double()
    for gae_lambda, expected in {
        0.5: [[0.1, 0.8, 0], [0.2, 0.0, -0.6]],
        1.0: [[0.5, 0.8, 0], [-0.1, -0.3, -0.6]],
        0.0: [[-0.3, 0.8, 0], [0.2, 0.3, -0.6]],
    }.items():
        found = generalized_advantages(rewards, batch.old_values, batch.loss_mask, 1.0, gae_lambda)
        torch.testing.assert_close(found, torch.tensor(expected).double())


def test_losses_and_metrics_by_hand() -> None:
    """Surrogates 0.1 * 1.2 (clipped), 0.8, 0.2, 0, and -0.6 * 0.8 (clipped): 0.64 over five tokens.

    Squared errors 0.09 (clipping would make it 0.01), 0.49, 0.04, 0, and 0.16 (0.2 kept at 0.4): 0.78.
    """
    batch, policy = two_rows()
    output = PPOLoss(gae_lambda=0.5, value_coef=2.0)(batch, policy)
    assert output.loss.item() == pytest.approx(-0.64 / 5 + 2 * 0.78 / 10)
    figures = {name: float(value) for name, value in output.metrics.items()}
    expected = {
        "value_loss": 0.078,
        "value_clip_fraction": 0.2,
        "value_mean": 1.8 / 5,
        "clip_fraction_high": 0.2,
        "clip_fraction_low": 0.2,
        "dual_clip_fraction": 0.0,
        "ratio_mean": 5 / 5,
        "ratio_max": 1.5,
        "approx_kl": (0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 5,
        "adv_mean": 0.5 / 5,
        "adv_abs_mean": 1.7 / 5,
        "adv_std": math.sqrt((0.01 + 0.64 + 0.04 + 0.36 - 0.05) / 4),
        "return_mean": 2.2 / 5,
        "explained_variance": 1 - 1.0 / (0.36 + 1 + 0.09 + 0.09 - 2.2**2 / 5),
    }
    assert figures == pytest.approx(expected)


def test_gradients_stop_where_clipped() -> None:
    batch, policy = two_rows()
    loss = PPOLoss(gae_lambda=0.5).forward(batch, policy).loss
    by_logprobs, by_values = torch.autograd.grad(loss, (policy.logprobs, policy.values))
    torch.testing.assert_close(by_logprobs, -torch.tensor([[0, 0.8, 0], [0.2, 0, 0]]).double() / 5)
    torch.testing.assert_close(by_values, torch.tensor([[0.3, -0.7, 0], [-0.2, 0, 0]]).double() / 5)
    (free,) = torch.autograd.grad(PPOLoss(gae_lambda=0.5, value_clip=None)(batch, policy).loss, policy.values)
    torch.testing.assert_close(free, torch.tensor([[0.3, -0.7, 0], [-0.2, 0, 0.2]]).double() / 5)


def test_the_kl_penalty_is_part_of_the_reward() -> None:
    """log pi_old - log pi_ref is 0.4 a token, kl_coef 0.5: each token costs 0.2. lambda 1: A = R - V."""
    batch, policy = two_rows()
    batch = dataclasses.replace(batch, ref_logprobs=batch.old_logprobs - 0.4)
    output = PPOLoss(kl_coef=0.5)(batch, policy)
    returns = [1 - 0.4, 1 - 0.2, -0.6, -0.4, -0.2]
    assert output.metrics["return_mean"].item() == pytest.approx(sum(returns) / 5)
    assert output.metrics["kl"].item() == pytest.approx(0.4)
    assert "ref_logprobs" not in PPOLoss().requires and "ref_logprobs" in PPOLoss(kl_coef=0.5).requires


@pytest.mark.parametrize("options", [{}, {"gae_lambda": 0.9, "dual_clip": 1.5, "value_clip": None}])
def test_finite_differences(options: dict) -> None:
    batch = make_batch(2, 4, masked_rows=[5], dtype=torch.float64)
    policy = make_policy(batch, drift=0.5)
    loss = PPOLoss(whiten=True, **options)

    def value(logprobs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return loss(batch, PolicyOutput(logprobs, values=values)).loss

    torch.autograd.gradcheck(value, (policy.logprobs, policy.values))


def test_the_reward_lies_on_the_last_live_token_and_later_ones_count_for_nothing() -> None:
    batch = make_batch(1, 1, rewards=[1.0], lengths=[5], dtype=torch.float64)
    mask = torch.tensor([[True, False, True, False, False]])
    values = torch.tensor([[0.5, 7, 0.2, 7, 7]]).double()
    batch = dataclasses.replace(batch, loss_mask=mask, old_values=values, totals=None)
    policy = make_policy(batch, logprobs=batch.old_logprobs)
    (grad,) = torch.autograd.grad(PPOLoss(gae_lambda=0.5)(batch, policy).loss, policy.logprobs)
    torch.testing.assert_close(grad, -torch.tensor([[0.1, 0, 0.8, 0, 0]]).double() / 2)


def test_whitening_is_over_live_tokens() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    values = torch.tensor([[1.0, 2.0, torch.nan], [3.0, torch.inf, 50.0]])
    torch.testing.assert_close(whitened(values, mask), torch.tensor([[-1.0, 0, 0], [1.0, 0, 0]]))
    for alone in (torch.zeros_like(mask), mask & (values == 3)):
        assert (whitened(values, alone) == 0).all()


def test_equal_rewards_teach_as_long_as_the_critic_is_wrong() -> None:
    batch = make_batch(rewards=[0.5] * 12)
    loss = PPOLoss()
    for value, learns in ((0.0, True), (0.5, False)):
        known = dataclasses.replace(batch, old_values=torch.full_like(batch.old_values, value))
        policy = make_policy(known)
        (grad,) = torch.autograd.grad(loss(known, policy).loss, policy.logprobs)
        assert bool(grad.abs().max() > 1e-3) is learns


def test_missing_old_values_are_named() -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match="old_values"):
        PPOLoss()(dataclasses.replace(batch, old_values=None), make_policy(batch))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 1.0}, "clip_low=1.0"),
        ({"dual_clip": 1.1}, "dual_clip=1.1"),
        ({"gae_lambda": 1.1}, "gae_lambda=1.1"),
        ({"gamma": 0.0}, "gamma=0.0"),
        ({"value_clip": 0.0}, "value_clip=0.0"),
        ({"value_coef": -1.0}, "value_coef=-1.0"),
        ({"critic_lr": 0.0}, "critic_lr=0.0"),
        ({"critic_width": 0}, "width=0"),
        ({"kl_coef": -0.1}, "kl_coef=-0.1"),
        ({"aggregation": "mean"}, "aggregation='mean'"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPOLoss(**settings)


# ---- the critic --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("detach", [True, False])
def test_the_critic_only_reads_unless_told_otherwise(detach: bool) -> None:
    head = ValueHead(8, detach)
    hidden = torch.randn(2, 3, 5, requires_grad=True)
    assert (head(hidden) == 0).all()  # no opinion to begin with
    torch.nn.init.normal_(head.layers[-1].weight)
    grads = torch.autograd.grad(head(hidden).sum(), [hidden, *head.parameters()], allow_unused=True)
    assert (grads[0] is None) is detach
    assert all(grad is not None for grad in grads[1:])


def test_the_critic_has_a_rate_of_its_own() -> None:
    assert PPOLoss(critic_lr=0.5).param_groups(0.1)[0]["lr"] == 0.5
    assert PPOLoss(critic_lr=None).param_groups(0.1)[0]["lr"] == 0.1


def test_the_projection_is_one_for_all_and_never_saved() -> None:
    hidden = torch.randn(6, 300)
    here, there = FixedProjection(16), FixedProjection(16)
    torch.testing.assert_close(here(hidden), there(hidden), rtol=0, atol=0)
    assert here(hidden[:, :16]) is not None and torch.equal(here(hidden[:, :16]), hidden[:, :16])
    assert 0.5 < float(here(hidden).square().mean()) < 1.5
    for owner in (ValueHead(16), LearnedLogZ(16)):
        assert not [name for name in owner.state_dict() if "projection" in name]
    half = here(hidden.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16


# ---- through PolicyModule ----------------------------------------------------------------------------------


def rollouts() -> RolloutBatch:
    """Made-up completions of the small model's vocabulary."""
    batch = make_batch(3, 4, hidden=5)
    return dataclasses.replace(batch, old_logprobs=None, old_values=None, ref_logprobs=None)


@pytest.mark.parametrize("updates", [1, 3])
def test_old_values_are_those_at_sampling_time(small_policy: LanguageModel, updates: int) -> None:
    made = PolicyModule(small_policy, PPOLoss(), SamplingParams(n=4, max_tokens=9))
    made.updates_per_rollout = updates
    torch.nn.init.normal_(made.loss.value_head.layers[-1].weight)
    batch = made.annotate(rollouts())
    now = made(batch)
    torch.testing.assert_close(batch.old_values, now.values.detach())
    assert (batch.old_values[~batch.completion_mask] == 0).all()
    assert batch.old_values[batch.completion_mask].std() > 0
    assert not batch.old_values.requires_grad and batch.ref_logprobs is None


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("tokens", [1, 40])
def test_chunked_gradients_of_policy_and_critic(
    small_policy: LanguageModel, detach: bool, tokens: int
) -> None:
    def gradients(micro_batch_tokens: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        loss = PPOLoss(detach_critic=detach)
        torch.nn.init.normal_(loss.value_head.layers[-1].weight)
        made = PolicyModule(
            small_policy,
            loss,
            SamplingParams(n=4, max_tokens=9),
            micro_batch_tokens=micro_batch_tokens,
        )
        made.zero_grad()
        batch = made.annotate(rollouts())
        policy = made(batch)
        batch = dataclasses.replace(batch, old_logprobs=policy.logprobs.detach() - 0.1)
        made.loss(batch, policy).loss.backward()
        return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}

    whole, chunked = gradients(10**6), gradients(tokens)
    assert {name for name in whole if name.startswith("loss.")} == {
        f"loss.{name}" for name, _ in PPOLoss().named_parameters()
    }
    assert whole.keys() == chunked.keys()
    for name, expected in whole.items():
        torch.testing.assert_close(chunked[name], expected, atol=1e-6, rtol=1e-4, msg=name)


def test_the_critic_learns_what_states_are_worth() -> None:
    """Rewards depend on a linear function of the first state: most of their variance is foreseen."""
    torch.manual_seed(0)
    loss = PPOLoss(value_clip=None)
    states = torch.randn(200, 1, 128)
    rewards = (states[:, 0, :4].sum(dim=1) > 0).float()
    batch = make_batch(200, 1, rewards=rewards, lengths=[1] * 200)
    optimizer = torch.optim.Adam(loss.param_groups(1e-3))
    shares = []
    for _ in range(60):
        values = loss.value_head(states).squeeze(-1)
        batch = dataclasses.replace(batch, old_values=values.detach())
        output = loss(batch, PolicyOutput(batch.old_logprobs, values=values))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        shares.append(float(output.metrics["explained_variance"]))
    assert shares[0] == 0 and shares[-1] > 0.8
