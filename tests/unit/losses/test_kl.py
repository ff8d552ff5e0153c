"""KL estimators and losses on a three-token softmax, where every expectation is a sum."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from distmatch.losses.kl import (
    KL_ESTIMATORS,
    KL_LOSSES,
    choose_kl_estimator,
    choose_kl_loss,
    clamped,
    k1,
    k2,
    k3,
)
from distmatch.ops import log_ratio

LOGITS = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64)
REF = torch.tensor([-0.5, 0.4, 0.1], dtype=torch.float64).log_softmax(0)
MASK = torch.ones(1, 3, dtype=torch.bool)


def expected_gradient(token_loss, logits: Tensor) -> Tensor:
    """Mean over pi of the gradient of each token's loss."""
    leaf = logits.clone().requires_grad_()
    logp = leaf.log_softmax(0)
    losses = token_loss(logp[None], REF[None], MASK)[0]
    return torch.autograd.grad((logp.exp().detach() * losses).sum(), leaf)[0]


def exact_gradient(kl, logits: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(kl(leaf.log_softmax(0)), leaf)[0]


def reverse(logp: Tensor) -> Tensor:
    return (logp.exp() * (logp - REF)).sum()


def forward(logp: Tensor) -> Tensor:
    return (REF.exp() * (REF - logp)).sum()


@pytest.mark.parametrize("name", ["reverse_kl_score", "k2"])
def test_reverse_losses_have_the_gradient_of_reverse_kl(name: str) -> None:
    torch.testing.assert_close(expected_gradient(KL_LOSSES[name], LOGITS), exact_gradient(reverse, LOGITS))


def test_k3_loss_has_the_gradient_of_forward_kl() -> None:
    gradient = expected_gradient(KL_LOSSES["k3"], LOGITS)
    torch.testing.assert_close(gradient, exact_gradient(forward, LOGITS))
    assert not torch.allclose(gradient, exact_gradient(reverse, LOGITS), rtol=0.1)


def test_k1_as_a_loss_would_train_nothing_and_is_refused() -> None:
    torch.testing.assert_close(expected_gradient(log_ratio, LOGITS), torch.zeros_like(LOGITS))
    with pytest.raises(ValueError, match="would train nothing"):
        choose_kl_loss("k1")


def test_estimators_are_three_known_numbers() -> None:
    args = (torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), torch.ones(1, 1, dtype=torch.bool))
    values = [float(f(*args)) for f in (k1, k2, k3)]
    assert values == pytest.approx([0.5, 0.125, 0.10653066])


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_divergence(name: str) -> None:
    logp = LOGITS.log_softmax(0)
    mean = (logp.exp() * KL_ESTIMATORS[name](logp[None], REF[None], MASK)[0]).sum()
    torch.testing.assert_close(mean, reverse(logp))


def test_the_reported_value_of_the_score_form_is_the_divergence() -> None:
    logp = LOGITS.log_softmax(0)
    mean = (logp.exp() * KL_LOSSES["reverse_kl_score"](logp[None], REF[None], MASK)[0]).sum()
    torch.testing.assert_close(mean, reverse(logp))


@pytest.mark.parametrize("name", KL_LOSSES)
def test_one_step_lowers_the_divergence(name: str) -> None:
    moved = LOGITS - 0.1 * expected_gradient(KL_LOSSES[name], LOGITS)
    for divergence in (reverse, forward):
        assert divergence(moved.log_softmax(0)) < divergence(LOGITS.log_softmax(0))


@pytest.mark.parametrize("name", KL_LOSSES)
def test_more_weight_never_ends_further_away(name: str) -> None:
    reward, ends = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), []
    for coef in (0.0, 0.1, 1.0):
        logits = REF.clone()
        for _ in range(300):
            pull = exact_gradient(lambda logp: -(logp.exp() * reward).sum(), logits)
            logits = logits - 0.3 * (pull + coef * expected_gradient(KL_LOSSES[name], logits))
        ends.append(float(reverse(logits.log_softmax(0))))
    assert all(a >= b for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("gap", [30.0, -30.0, 90.0, -90.0])
@pytest.mark.parametrize("kind", [*KL_LOSSES.values(), *KL_ESTIMATORS.values()])
def test_extreme_tokens_stay_finite(kind, gap: float) -> None:
    leaf = torch.full((1, 3), -1.0, requires_grad=True)
    value = kind(leaf, leaf.detach() - gap, MASK)
    assert torch.isfinite(value).all()
    if value.requires_grad:
        assert torch.isfinite(torch.autograd.grad(value.sum(), leaf)[0]).all()
    assert clamped(leaf, leaf.detach() - gap, MASK).all()


def test_the_clamp_does_not_switch_the_reverse_gradient_off() -> None:
    leaf = torch.full((1, 3), -1.0, requires_grad=True)
    value = KL_LOSSES["reverse_kl_score"](leaf, leaf.detach() - 90, MASK)
    assert (torch.autograd.grad(value.sum(), leaf)[0] == 20).all()


@pytest.mark.parametrize("choose", [choose_kl_loss, choose_kl_estimator])
def test_unknown_names_list_the_choices(choose) -> None:
    with pytest.raises(ValueError, match=r"'k4' is unknown; choose one of .*k3"):
        choose("k4")
