"""DMPOLoss against plain Python written from arXiv 2605.19461: formulas, gradient, propositions, numbers."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from distmatch.batch import PolicyOutput
from distmatch.losses.dmpo import DIVERGENCES, DMPOLoss
from distmatch.losses.policy_gradient import GRPOLoss
from tests.builders import make_batch, make_policy


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(s - max(scores)) for s in scores]
    return [w / sum(weights) for w in weights]


def divergence_of(kind: str, p: list[float], q: list[float]) -> float:
    size = len(p)
    if kind == "mse":
        return sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) / size
    if kind == "forward_kl":
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    if kind == "js":
        middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        return 0.5 * divergence_of("forward_kl", p, middle) + 0.5 * divergence_of("forward_kl", q, middle)
    gaps = [math.log(b / a) for a, b in zip(p, q, strict=True)]
    return statistics.pvariance(gaps)


def matching(
    batch, logprobs, *, kind: str, temperature: float, source: str, normalize: bool, drop: bool
) -> float:
    """Eq. 5 to 7, group by group, and the mean over groups."""
    found = []
    for first in range(0, batch.rows, batch.group_size):
        rows = [i for i in range(first, first + batch.group_size) if bool(batch.loss_mask[i].any())]
        rewards = [float(batch.rewards[i]) for i in rows]
        if not rows or (drop and len(set(rewards)) == 1):
            continue
        scores = rewards
        if source == "advantage":
            mean, spread = statistics.mean(rewards), statistics.stdev(rewards)
            scores = [(r - mean) / (spread + 1e-6) for r in rewards]
        phi = []
        for i in rows:
            tokens = [x.item() for x, on in zip(logprobs[i], batch.loss_mask[i], strict=True) if on]
            phi.append(sum(tokens) / (len(tokens) if normalize else 1))
        found.append(divergence_of(kind, softmax([s / temperature for s in scores]), softmax(phi)))
    return statistics.mean(found)


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("source", ["reward", "advantage"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("masked", [(), (1, 6, 12, 13, 14, 15)])
def test_agrees_with_loops(kind: str, source: str, normalize: bool, drop: bool, masked) -> None:
    rewards = torch.rand(16, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    rewards[8:12] = 0.5
    batch = make_batch(4, 4, rewards=rewards, masked_rows=masked, dtype=torch.float64)
    policy = make_policy(batch)
    loss = DMPOLoss(
        weight=1.5,
        temperature=0.3,
        target_source=source,
        divergence=kind,
        length_normalize=normalize,
        zero_signal="drop" if drop else "keep",
    )
    options = {"kind": kind, "temperature": 0.3, "source": source, "normalize": normalize, "drop": drop}
    expected = 1.5 * matching(batch, policy.logprobs, **options)
    assert loss(batch, policy).loss.item() == pytest.approx(expected, rel=1e-9)


def one_group(rewards: list[float], phi: list[float]):
    """One-token answers whose log-probability is phi."""
    batch = make_batch(1, len(rewards), rewards=rewards, lengths=[1] * len(rewards), dtype=torch.float64)
    return batch, make_policy(batch, logprobs=torch.tensor(phi, dtype=torch.float64)[:, None])


def test_hand_worked_example() -> None:
    """alpha 1, rewards log 3 and 0: p = 3/4, 1/4. Equal phi: q = 1/2. ((1/4)^2 + (1/4)^2) / 2 = 1/16."""
    batch, policy = one_group([math.log(3), 0.0], [-1.0, -1.0])
    assert DMPOLoss(weight=1.0, temperature=1.0)(batch, policy).loss.item() == pytest.approx(1 / 16)
    assert DMPOLoss(weight=2.0, temperature=1.0)(batch, policy).loss.item() == pytest.approx(1 / 8)


def test_gradient_is_equation_8() -> None:
    batch = make_batch(1, 5, dtype=torch.float64)
    policy = make_policy(batch)
    (grad,) = torch.autograd.grad(DMPOLoss(weight=1.0, temperature=0.2)(batch, policy).loss, policy.logprobs)
    lengths = batch.loss_mask.sum(1).tolist()
    phi = [row.sum().item() / n for row, n in zip(policy.logprobs, lengths, strict=True)]
    p, q = softmax([r / 0.2 for r in batch.rewards.tolist()]), softmax(phi)
    for j in range(5):
        slope = sum(2 / 5 * (q[i] - p[i]) * q[i] * ((i == j) - q[j]) for i in range(5))
        torch.testing.assert_close(
            grad[j, : lengths[j]], torch.full((lengths[j],), slope / lengths[j], dtype=torch.float64)
        )


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_finite_differences(kind: str) -> None:
    batch = make_batch(2, 4, masked_rows=[5], dtype=torch.float64)
    policy = make_policy(batch, drift=0.5)
    loss = DMPOLoss(GRPOLoss(), divergence=kind, temperature=0.3)

    def value(logprobs: torch.Tensor) -> torch.Tensor:
        return loss(batch, PolicyOutput(logprobs)).loss

    torch.autograd.gradcheck(value, policy.logprobs)


@pytest.mark.parametrize("seed", range(20))
def test_proposition_3_1_a_small_loss_covers_every_answer(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rewards, phi = torch.rand(8, generator=rng).tolist(), (-3 * torch.rand(8, generator=rng)).tolist()
    batch, policy = one_group(rewards, phi)
    delta = DMPOLoss(weight=1.0)(batch, policy).loss.item()
    p, q = softmax([r * 15 for r in rewards]), softmax(phi)
    assert all(b >= a - math.sqrt(8 * delta) - 1e-9 for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_proposition_3_2_the_matching_term_alone_reaches_the_tempered_rewards(kind: str) -> None:
    """A tabular policy over four answers of equal length, the group being all of them."""
    batch, _ = one_group([1.0, 0.9, 0.5, 0.0], [0.0] * 4)
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    loss = DMPOLoss(divergence=kind, temperature=0.25)
    for _ in range(800):
        optimizer.zero_grad()
        loss(batch, PolicyOutput(logits.log_softmax(0)[:, None])).loss.backward()
        optimizer.step()
    target = torch.tensor(softmax([4.0, 3.6, 2.0, 0.0]), dtype=torch.float64)
    torch.testing.assert_close(logits.softmax(0).detach(), target, atol=2e-3, rtol=0)


def test_a_constant_added_to_all_answers_changes_nothing() -> None:
    batch, policy = one_group([1.0, 0.5, 0.0], [-1.0, -2.0, -3.0])
    _, lower = one_group([1.0, 0.5, 0.0], [-6.0, -7.0, -8.0])
    torch.testing.assert_close(DMPOLoss()(batch, policy).loss, DMPOLoss()(batch, lower).loss)


ALMOST_UNIFORM = [-0.5, -0.45, -0.55, -0.5, -0.4, -0.6, -0.52, -0.48]
"""Per-token means of eight answers to one prompt, as a language model gives them."""

GRADED = [1.1, 0.7, 0.6, 0.6, 0.5, 0.1, 0.1, 0.0]


@pytest.mark.parametrize(
    ("rewards", "temperature", "loss", "largest_slope"),
    [
        ([1.0, 0, 0, 0, 0, 0, 0, 0], 1 / 15, 0.109, 0.027),  # one best answer
        ([1.0, 1, 1, 1, 0, 0, 0, 0], 1 / 15, 0.0156, 0.0045),  # four of eight tie
        (GRADED, 1.0, 0.002, 0.003),  # alpha 1: almost no effect
    ],
)
def test_numbers_of_a_group_of_eight(rewards, temperature: float, loss: float, largest_slope: float) -> None:
    batch, policy = one_group(rewards, ALMOST_UNIFORM)
    value = DMPOLoss(weight=1.0, temperature=temperature)(batch, policy).loss
    (slope,) = torch.autograd.grad(value, policy.logprobs)
    assert value.item() == pytest.approx(loss, rel=0.15)
    assert float(slope.abs().max()) == pytest.approx(largest_slope, rel=0.3)


def test_published_temperature_is_almost_greedy_on_raw_rewards() -> None:
    batch, policy = one_group(GRADED, ALMOST_UNIFORM)
    assert float(DMPOLoss()(batch, policy).metrics["target_max"]) == pytest.approx(0.996, abs=1e-3)


@pytest.mark.parametrize("best", [1, 4])
def test_published_weight_is_a_fraction_of_the_policy_gradient(best: int) -> None:
    batch, policy = one_group([1.0] * best + [0.0] * (8 - best), ALMOST_UNIFORM)
    ratio = float(DMPOLoss(GRPOLoss())(batch, policy).metrics["grad_norm_ratio"])
    assert 0.01 < ratio < 0.3
