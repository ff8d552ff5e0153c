"""MismatchCorrection: a no-op where engine and trainer agree, weights on gradients where they do not."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.base import Loss
from distmatch.losses.dmpo import DMPOLoss
from distmatch.losses.gspo import GSPOLoss
from distmatch.losses.log_z import LearnedLogZ
from distmatch.losses.mismatch import MismatchCorrection
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.losses.ppo import PPOLoss
from tests.builders import make_batch, make_policy

BASES = [
    GRPOLoss(kl_coef=0.1),
    GSPOLoss(),
    DMPOLoss(base=GRPOLoss()),
    BalanceLoss(LearnedLogZ()),
    PPOLoss(),
]


def gradient(loss: Loss, batch: RolloutBatch, policy: PolicyOutput) -> tuple[LossOutput, Tensor]:
    output = loss(batch, policy)
    return output, torch.autograd.grad(output.loss, policy.logprobs)[0]


def shifted(batch: RolloutBatch, gap: Tensor | float) -> RolloutBatch:
    """An engine whose log-probabilities are `gap` below the trainer's."""
    return dataclasses.replace(batch, sampler_logprobs=batch.old_logprobs - gap)


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("bound", ["truncate", "mask"])
def test_agreement_changes_nothing_bit_for_bit(base: Loss, level: str, bound: str) -> None:
    batch = shifted(make_batch(masked_rows=[2]), 0.0)
    policy = make_policy(batch)
    plain, plain_grad = gradient(base, batch, policy)
    output, grad = gradient(MismatchCorrection(base, level, bound), batch, policy)
    assert torch.equal(output.loss, plain.loss) and torch.equal(grad, plain_grad)
    for name, value in plain.metrics.items():
        assert torch.equal(torch.as_tensor(output.metrics[name]), torch.as_tensor(value)), name
    found = {k: float(v) for k, v in output.metrics.items() if k.startswith("mismatch_")}
    assert found.pop("mismatch_clip_fraction") == 0
    assert found == pytest.approx(dict.fromkeys(found, 1.0), rel=1e-6) and len(found) == 4


@pytest.mark.parametrize("base", BASES, ids=lambda base: type(base).__name__)
def test_any_base_keeps_its_value_and_gets_weights_on_its_gradient(base: Loss) -> None:
    """An engine 0.1 nats below: every token has weight e^0.1, every row of n tokens e^(0.1 n)."""
    batch = shifted(make_batch(dtype=torch.float64), 0.1)
    policy = make_policy(batch)
    plain, plain_grad = gradient(base, batch, policy)
    rows = torch.exp(0.1 * batch.loss_mask.sum(dim=1, keepdim=True))
    for level, weight in (("token", math.exp(0.1)), ("sequence", rows)):
        output, grad = gradient(MismatchCorrection(base, level), batch, policy)
        torch.testing.assert_close(output.loss, plain.loss, rtol=0, atol=0)
        torch.testing.assert_close(grad, weight * plain_grad)


@pytest.mark.parametrize("bound", ["truncate", "mask"])
def test_it_is_the_weight_on_every_tokens_loss(bound: str) -> None:
    """As in TRL: sum over tokens of w_t * loss_t over all tokens, masked ones in the denominator too."""
    batch, gaps = make_batch(dtype=torch.float64), torch.linspace(-2, 2, 7, dtype=torch.float64)
    batch = shifted(batch, gaps[: batch.loss_mask.shape[1]])
    policy = make_policy(batch)
    base = GRPOLoss()
    weight = gaps.exp().clamp(0.5, 2.0) if bound == "truncate" else gaps.exp() * (gaps.abs() <= math.log(2.0))
    advantages = base.advantages(batch)[:, None]
    ratio = (policy.logprobs - batch.old_logprobs).exp()
    per_token = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    expected = (per_token * weight * batch.loss_mask).sum() / batch.loss_mask.sum()
    (by_hand,) = torch.autograd.grad(expected, policy.logprobs)
    loss = MismatchCorrection(base, "token", bound, limit=2.0, limit_low=0.5)
    output, grad = gradient(loss, batch, policy)
    torch.testing.assert_close(grad, by_hand)
    outside = (batch.loss_mask & (gaps.abs() > math.log(2.0))).sum() / batch.loss_mask.sum()
    assert output.metrics["mismatch_clip_fraction"].item() == pytest.approx(float(outside))


def test_by_hand() -> None:
    """Weights of rows: 1.5 * 4 = 6, and 0.5. Limit 3 masks the first, truncates it to 3; 0.5 stays."""
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[2, 1], dtype=torch.float64)
    batch = shifted(batch, torch.tensor([[math.log(1.5), math.log(4)], [math.log(0.5), 7.0]]).double())
    policy = make_policy(batch, logprobs=batch.old_logprobs)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    for bound, first, ess in (("mask", 0.0, 0.5**2 / (3 * 0.25)), ("truncate", 3.0, 6.5**2 / (3 * 18.25))):
        output, grad = gradient(MismatchCorrection(GRPOLoss(), bound=bound), batch, policy)
        expected = torch.tensor([[-first * a, -first * a], [0.5 * a, 0.0]]).double() / 3
        torch.testing.assert_close(grad, expected)
        figures = {k: float(v) for k, v in output.metrics.items() if k.startswith("mismatch_")}
        assert figures == pytest.approx(
            {
                "mismatch_weight_mean": 12.5 / 3,
                "mismatch_weight_min": 0.5,
                "mismatch_weight_max": 6.0,
                "mismatch_clip_fraction": 2 / 3,
                "mismatch_weight_ess": ess,
            }
        )
    tokens = MismatchCorrection(GRPOLoss(), "token", "mask", limit=3.0, limit_low=0.9)
    _, grad = gradient(tokens, batch, policy)
    torch.testing.assert_close(grad, torch.tensor([[-1.5 * a, 0.0], [0.0, 0.0]]).double() / 3)


def test_sequence_weights_make_the_engines_samples_the_policys() -> None:
    """All nine strings of two letters, weighted by the engine: the gradient as if sampled from the policy."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    engine = (logits.detach() + 0.3 * torch.randn(3, 3, generator=rng, dtype=torch.float64)).log_softmax(1)
    first, second = torch.cartesian_prod(torch.arange(3), torch.arange(3)).unbind(1)

    def tokens(table: Tensor) -> Tensor:
        """A first letter from row 0, a second from the row of the first: (9, 2)."""
        return torch.stack([table[0, first], table[first, second]], dim=1)

    logprobs = tokens(logits.log_softmax(1))
    batch = make_batch(9, 1, lengths=[2] * 9, dtype=torch.float64)
    batch = dataclasses.replace(
        batch, old_logprobs=logprobs.detach(), sampler_logprobs=tokens(engine), old_values=torch.zeros(9, 2)
    )
    base = PPOLoss(aggregation="seq_mean_token_sum")

    def mean_gradient(loss: Loss, sampled_from: Tensor) -> Tensor:
        output = loss(batch, PolicyOutput(logprobs, values=torch.zeros(9, 2, dtype=torch.float64)))
        (by_token,) = torch.autograd.grad(output.loss, logprobs, retain_graph=True)
        share = sampled_from.sum(1, keepdim=True).exp()
        return torch.autograd.grad(logprobs, logits, by_token * share, retain_graph=True)[0]

    right = mean_gradient(base, logprobs.detach())
    corrected = MismatchCorrection(base, "sequence", limit=1e6)
    torch.testing.assert_close(mean_gradient(corrected, tokens(engine)), right)
    errors = [
        float((mean_gradient(loss, tokens(engine)) - right).norm())
        for loss in (MismatchCorrection(base, "token", limit=1e6), base)
    ]
    assert 1e-4 < errors[0] < errors[1]


def test_a_shift_by_one_position_is_visible() -> None:
    batch = make_batch()
    moved = dataclasses.replace(batch, sampler_logprobs=batch.old_logprobs.roll(1, dims=1))
    policy = make_policy(batch)
    metrics = MismatchCorrection(GRPOLoss(), "token")(moved, policy).metrics
    assert metrics["mismatch_weight_max"] > 2 and metrics["mismatch_weight_ess"] < 0.9


def test_it_is_to_the_module_what_its_base_is() -> None:
    base = PPOLoss(kl_coef=0.5)
    loss = MismatchCorrection(base)
    assert loss.value_head is base.value_head and loss.target_beta == 2.0
    assert loss.requires == {"old_logprobs", "old_values", "values", "ref_logprobs"}
    assert loss.param_groups(0.1)[0]["lr"] == 1e-3
    assert set(loss.state_dict()) == {f"base.{name}" for name in base.state_dict()}
    assert loss.to(torch.float64).value_head.layers[1].weight.dtype == torch.float64
    dropping = MismatchCorrection(GRPOLoss(zero_signal="drop"))
    assert dropping.drops_zero_signal_groups and dropping.min_group_size == 2
    assert MismatchCorrection(Needy()).requires == {"old_logprobs", "entropy"}


class Needy(Loss):
    """Has no use for old log-probabilities itself."""

    def __init__(self) -> None:
        super().__init__()
        self.requires = frozenset({"entropy"})
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        return LossOutput(self.scale * policy.logprobs.sum() + policy.entropy.sum(), {})


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_impossible_tokens_stay_finite(level: str) -> None:
    batch = make_batch()
    engine, new = batch.sampler_logprobs.clone(), batch.old_logprobs.clone()
    engine[0, 0] = new[3, 0] = -torch.inf
    policy = make_policy(batch, logprobs=new)
    batch = dataclasses.replace(batch, sampler_logprobs=engine)
    output, grad = gradient(MismatchCorrection(GRPOLoss(), level, "truncate"), batch, policy)
    assert torch.isfinite(output.loss) and torch.isfinite(grad).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": "row"}, "level='row' must be one of token, sequence"),
        ({"bound": "clip"}, "bound='clip' one of truncate, mask"),
        ({"limit": 1.0}, "limit=1.0"),
        ({"limit": math.inf}, "limit=inf"),
        ({"limit_low": 1.0}, "limit_low=1.0"),
        ({"limit_low": -0.1}, "limit_low=-0.1"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MismatchCorrection(GRPOLoss(), **settings)
