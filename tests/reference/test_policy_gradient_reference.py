"""GRPO's relatives against plain Python from the papers, its finite differences, and expected gradients."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics

import pytest
import torch

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.clip_cov import ClipCovLoss
from distmatch.losses.gspo import GSPOLoss
from distmatch.losses.pass_at_k import BestOfGroupLoss, PassAtKLoss
from distmatch.losses.score_function import GPGLoss, ReinforceLoss, RLOOLoss
from tests.builders import make_batch, make_policy

# ---- plain Python from the formulas -----------------------------------------------------------------------


class Plain:
    """One batch as nested lists; `new` may be changed freely."""

    def __init__(self, batch: RolloutBatch, policy: PolicyOutput) -> None:
        self.size = batch.group_size
        self.rewards = batch.rewards.tolist()
        self.lengths = batch.loss_mask.sum(dim=1).tolist()  # rows are right-padded or masked altogether
        self.old, self.new = batch.old_logprobs.tolist(), policy.logprobs.tolist()
        self.live = [row for row, length in enumerate(self.lengths) if length]
        self.tokens = [(row, t) for row in self.live for t in range(self.lengths[row])]

    def group(self, row: int) -> list[int]:
        """The live rows of a row's group."""
        return [i for i in self.live if i // self.size == row // self.size]

    def others(self, row: int) -> list[float]:
        return [self.rewards[i] for i in self.group(row) if i != row]

    def zscore(self, row: int) -> float:
        rewards = [self.rewards[i] for i in self.group(row)]
        if len(set(rewards)) < 2:
            return 0.0
        return (self.rewards[row] - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-6)

    def ppo(self, row: int, t: int, advantage: float, low: float = 0.2, high: float = 0.2) -> float:
        ratio = math.exp(self.new[row][t] - self.old[row][t])
        return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)

    def token_mean(self, objective) -> float:
        return -sum(objective(row, t) for row, t in self.tokens) / len(self.tokens)

    def row_mean(self, objective) -> float:
        return -sum(objective(row) for row in self.live) / len(self.live)


def gspo(plain: Plain) -> float:
    def objective(row: int) -> float:
        gaps = [plain.new[row][t] - plain.old[row][t] for t in range(plain.lengths[row])]
        ratio, advantage = math.exp(statistics.mean(gaps)), plain.zscore(row)
        return min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage)

    return plain.row_mean(objective)


def sequence(plain: Plain, row: int) -> float:
    return sum(plain.new[row][: plain.lengths[row]])


def reinforce(plain: Plain) -> float:
    return plain.row_mean(lambda row: plain.rewards[row] * sequence(plain, row))


def reinforce_baseline(plain: Plain) -> float:
    def objective(row: int) -> float:
        mean = statistics.mean(plain.rewards[i] for i in plain.group(row))
        return (plain.rewards[row] - mean) * sequence(plain, row)

    return plain.row_mean(objective)


def rloo(plain: Plain) -> float:
    def objective(row: int) -> float:
        others = plain.others(row)
        return (plain.rewards[row] - statistics.mean(others)) * sequence(plain, row) if others else 0.0

    return plain.row_mean(objective)


def gpg(plain: Plain, *, by_rewards: bool) -> float:
    groups = {row // plain.size: plain.group(row) for row in plain.live}
    signal = [rows for rows in groups.values() if len({plain.rewards[i] for i in rows}) > 1]
    alpha = len(groups) / len(signal)
    if by_rewards:
        alpha = len(plain.live) / sum(plain.rewards[i] != 0 for i in plain.live)

    def objective(row: int, t: int) -> float:
        mean = statistics.mean(plain.rewards[i] for i in plain.group(row))
        return alpha * (plain.rewards[row] - mean) * plain.new[row][t]

    return plain.token_mean(objective)


def best_of_group(plain: Plain, *, scale: bool) -> float:
    def advantage(row: int) -> float:
        everyone = [plain.rewards[i] for i in plain.group(row)]
        if len(everyone) < 2:
            return 0.0
        gain = max(everyone) - max(plain.others(row))
        return gain / (statistics.stdev(everyone) + 1e-6) if scale and gain else gain

    return plain.token_mean(lambda row, t: plain.ppo(row, t, advantage(row)))


def pass_at_k(plain: Plain, k: int) -> float:
    """By enumeration of every set of k answers, not with binomials."""

    def advantage(row: int) -> float:
        sets = list(itertools.combinations(plain.group(row), k))
        passes = {s: float(any(plain.rewards[i] >= 0.5 for i in s)) for s in sets}
        if len(set(passes.values())) < 2:
            return 0.0
        own = [value for s, value in passes.items() if row in s]
        return (statistics.mean(own) - statistics.mean(passes.values())) / statistics.pstdev(passes.values())

    return plain.token_mean(lambda row, t: plain.ppo(row, t, advantage(row)))


def clip_cov(plain: Plain, low: float, high: float) -> float:
    """Every candidate is left out (share 1), so that nothing is random."""
    mean_adv = statistics.mean(plain.zscore(row) for row, _ in plain.tokens)
    mean_logp = statistics.mean(plain.new[row][t] for row, t in plain.tokens)

    def objective(row: int, t: int) -> float:
        advantage, ratio = plain.zscore(row), math.exp(plain.new[row][t] - plain.old[row][t])
        cov = (advantage - mean_adv) * (plain.new[row][t] - mean_logp)
        clipped = (advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8)
        return 0.0 if low < cov < high and not clipped else plain.ppo(row, t, advantage)

    return plain.token_mean(objective)


CASES = {
    "gspo": (lambda: GSPOLoss(clip_low=0.1, clip_high=0.1), gspo),
    "reinforce": (ReinforceLoss, reinforce),
    "reinforce, baseline": (lambda: ReinforceLoss(group_baseline=True), reinforce_baseline),
    "rloo": (RLOOLoss, rloo),
    "gpg": (GPGLoss, lambda plain: gpg(plain, by_rewards=False)),
    "gpg, verl": (lambda: GPGLoss(alpha_by="nonzero_rewards"), lambda plain: gpg(plain, by_rewards=True)),
    "best of group": (BestOfGroupLoss, lambda plain: best_of_group(plain, scale=False)),
    "best of group, scaled": (
        lambda: BestOfGroupLoss(scale_rewards=True),
        lambda plain: best_of_group(plain, scale=True),
    ),
    "pass@1": (lambda: PassAtKLoss(1, 0.5), lambda plain: pass_at_k(plain, 1)),
    "pass@2": (lambda: PassAtKLoss(2, 0.5), lambda plain: pass_at_k(plain, 2)),
    "pass@3": (lambda: PassAtKLoss(3, 0.5), lambda plain: pass_at_k(plain, 3)),
    "clip_cov": (
        lambda: ClipCovLoss(share=1.0, cov_low=0.1, cov_high=0.6),
        lambda plain: clip_cov(plain, 0.1, 0.6),
    ),
}
MASKED = [(), (1, 6, 8, 9, 10)]  # the last group keeps one row


def mixed_batch(seed: int, masked) -> tuple[RolloutBatch, PolicyOutput]:
    """Three groups of four with signal in some, a flat one, and rewards that are exactly zero."""
    rewards = torch.rand(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rewards[4:8], rewards[1], rewards[9] = 0.7, 0.0, 0.0
    batch = make_batch(rewards=rewards, seed=seed, masked_rows=masked, dtype=torch.float64)
    return batch, make_policy(batch, drift=0.3, seed=seed + 10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("masked", MASKED, ids=["all rows", "masked rows"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_loops(case: str, masked, seed: int) -> None:
    make, reference = CASES[case]
    batch, policy = mixed_batch(seed, masked)
    assert make()(batch, policy).loss.item() == pytest.approx(
        reference(Plain(batch, policy)), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize("case", CASES)
def test_gradient_agrees_with_finite_differences_of_the_loops(case: str) -> None:
    """Of the loops, not of the loss: GSPO's token form has its gradient through stop-gradients only."""
    make, reference = CASES[case]
    batch, policy = mixed_batch(5, (2, 3))
    (grad,) = torch.autograd.grad(make()(batch, policy).loss, policy.logprobs)
    plain = Plain(batch, policy)
    assert (grad[~batch.loss_mask] == 0).all()
    for row, t in plain.tokens:
        here, sides = plain.new[row][t], []
        for step in (1e-6, -1e-6):
            plain.new[row][t] = here + step
            sides.append(reference(plain))
        plain.new[row][t] = here
        assert grad[row, t].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-8), (row, t)


# ---- what the expected gradient is ------------------------------------------------------------------------


def rewards_of(answers) -> torch.Tensor:
    return torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)[list(answers)]


EXPECTATIONS = {
    "reinforce": (ReinforceLoss, lambda rewards: rewards.mean()),
    "rloo": (RLOOLoss, lambda rewards: rewards.mean()),
    "best of group": (BestOfGroupLoss, lambda rewards: rewards.max() / 3),
    # The gradient of pass@2 over sets of the group, divided by sigma, has no such form.
}


@pytest.mark.parametrize("case", EXPECTATIONS)
def test_expected_gradient_is_that_of_the_objective(case: str) -> None:
    """Three answers of one token, every group of three enumerated under a softmax policy."""
    make, objective = EXPECTATIONS[case]
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    table = logits.log_softmax(dim=0)
    expected_loss, expected_value = 0.0, 0.0
    for answers in itertools.product(range(3), repeat=3):
        chosen = table[list(answers)]
        batch = make_batch(1, 3, rewards=rewards_of(answers), lengths=[1] * 3, dtype=torch.float64)
        batch = dataclasses.replace(batch, old_logprobs=chosen.detach()[:, None])
        chance = chosen.sum().exp()
        expected_loss = expected_loss + chance.detach() * make()(batch, PolicyOutput(chosen[:, None])).loss
        expected_value = expected_value + chance * objective(rewards_of(answers))
    (got,) = torch.autograd.grad(expected_loss, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(-expected_value, logits)
    torch.testing.assert_close(got, wanted)
