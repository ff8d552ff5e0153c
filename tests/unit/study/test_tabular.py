"""The table, and the loop that trains it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from distmatch.batch import LossOutput
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.base import Loss
from distmatch.losses.dmpo import DMPOLoss
from distmatch.losses.log_z import GroupMeanLogZ, ScalarLogZ
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.losses.ppo import PPOLoss
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, tabular_batch, train_tabular
from distmatch.tasks.lab import Lab
from tests.unit.study.walking import walked

SMALL = Lab(alphabet=3, length=3, modes=4, near=6)
VARIED = Lab(alphabet=3, length=3, min_length=1, landscape="lengths", modes=3, near=3)
SHAPES = [(2, 1, 1), (2, 5, 5), (3, 3, 3), (5, 2, 2), (2, 4, 1), (3, 3, 2), (5, 2, 1)]
"""Alphabet, length, shortest length."""


def balance(log_z) -> BalanceLoss:
    return BalanceLoss(log_z, beta=6.0, length_normalize=False, reward_source="raw", importance_weight="none")


# ---- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alphabet", "length", "shortest"), SHAPES)
def test_probabilities_are_those_of_a_walk_and_add_up(alphabet: int, length: int, shortest: int) -> None:
    policy = TabularPolicy(alphabet, length, seed=3, min_length=shortest)
    p = policy.logprobs().exp()
    assert p.dtype == torch.float64 and p.sum().item() == pytest.approx(1, abs=1e-12)
    assert p.tolist() == pytest.approx(list(walked(policy).values()), rel=1e-12)


@pytest.mark.parametrize(("alphabet", "length", "shortest"), SHAPES)
def test_without_scale_all_strings_are_equally_likely(alphabet: int, length: int, shortest: int) -> None:
    policy = TabularPolicy(alphabet, length, scale=0.0, min_length=shortest)
    size = sum(alphabet**level for level in range(shortest, length + 1))
    assert policy.logprobs().tolist() == pytest.approx([-math.log(size)] * size, rel=1e-12)


@pytest.mark.parametrize("lab", [SMALL, VARIED], ids=["fixed", "varied"])
def test_token_figures_of_chosen_strings(lab: Lab) -> None:
    policy, strings = TabularPolicy.of(Landscape.of(lab), seed=1), torch.tensor([5, 0, 5, 26])
    torch.testing.assert_close(policy.token_logprobs(strings), policy.token_logprobs()[strings])
    assert bool((policy.token_logprobs()[~policy.mask] == 0).all())
    spread = policy.token_entropy(strings)
    first = policy.choice_logprobs()[0]
    first = first[first > -torch.inf]
    torch.testing.assert_close(spread[:, 0], -(first.exp() * first).sum().expand(4))
    assert bool((spread[~policy.mask[strings]] == 0).all())


def test_a_certain_end_is_a_token_without_surprise() -> None:
    """Strings of 3 letters have 4 tokens, the last of log-probability and entropy 0; others choose it."""
    policy = TabularPolicy.of(Landscape.of(VARIED), seed=2)
    long, short = torch.tensor([38]), torch.tensor([0])
    assert policy.mask[[0, 38]].sum(dim=1).tolist() == [2, 4]
    assert policy.token_logprobs(long)[0, 3] == 0 and policy.token_entropy(long)[0, 3] == 0
    assert policy.token_logprobs(short)[0, 1] < 0 < policy.token_entropy(short)[0, 1]


@pytest.mark.parametrize("lab", [SMALL, VARIED], ids=["fixed", "varied"])
def test_gradients_are_finite_differences(lab: Lab) -> None:
    """Also through entropies, and with choices that are barred."""
    policy = TabularPolicy.of(Landscape.of(lab), seed=4)
    strings = torch.tensor([1, 7, 20, 26])

    def figure(logits: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(_Figures(policy), {"policy.logits": logits}, (strings,))

    start = policy.logits.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(figure, (start,))


class _Figures(nn.Module):
    def __init__(self, policy: TabularPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, strings: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.policy.token_logprobs(strings), self.policy.token_entropy(strings)])


@pytest.mark.parametrize("lab", [SMALL, VARIED], ids=["fixed", "varied"])
def test_a_linear_head_is_a_table_of_values(lab: Lab) -> None:
    policy = TabularPolicy.of(Landscape.of(lab))
    head = nn.Linear(policy.tree.nodes, 1)
    strings = torch.tensor([3, 9, 3])
    expected = (head.weight[0] + head.bias)[policy.tree.before[strings]].double()
    torch.testing.assert_close(policy.values(head, strings), expected * policy.mask[strings])


# ---- training ----------------------------------------------------------------------------------------------


def test_a_batch_is_what_was_sampled() -> None:
    landscape, policy = Landscape.of(SMALL), TabularPolicy(3, 3)
    strings, logp = torch.tensor([5, 0, 26, 5]), policy.token_logprobs().detach()
    batch = tabular_batch(strings, 2, landscape, logp[strings], logp[strings])
    assert batch.completion_ids.tolist() == [[0, 1, 2], [0, 0, 0], [2, 2, 2], [0, 1, 2]]
    assert batch.group_ids.tolist() == [0, 0, 1, 1]
    assert batch.rewards.tolist() == landscape.rewards[strings].tolist()


def test_a_batch_of_several_lengths_is_padded_after_eos() -> None:
    landscape = Landscape.of(VARIED)
    policy = TabularPolicy.of(landscape)
    strings, logp = torch.tensor([2, 3, 38, 12]), policy.token_logprobs().detach()  # c, aa, ccc, aaa
    batch = tabular_batch(strings, 2, landscape, logp[strings], logp[strings])
    assert batch.completion_ids.tolist() == [[2, 3, 0, 0], [0, 0, 3, 0], [2, 2, 2, 3], [0, 0, 0, 3]]
    assert batch.completion_mask.sum(dim=1).tolist() == [2, 3, 4, 4]
    assert batch.totals.tokens == 13


@pytest.mark.parametrize("lab", [SMALL, VARIED], ids=["fixed", "varied"])
@pytest.mark.parametrize(
    "make", [GRPOLoss, lambda: DMPOLoss(GRPOLoss()), lambda: balance(ScalarLogZ()), lambda: PPOLoss()]
)
def test_runs_are_repeatable_and_measured(make, lab: Lab) -> None:
    runs, landscape = [], Landscape.of(lab)
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        settings = {"iterations": 25, "groups": 2, "group_size": 4, "measure_every": 10}
        runs.append(train_tabular(make(), TabularPolicy.of(landscape), landscape, seed=seed, **settings))
    assert runs[0] == runs[1] != runs[2]
    assert [x["iteration"] for x in runs[0]] == [0, 10, 20, 25]
    assert runs[0][-1]["reward"] > runs[0][0]["reward"]


class _Spy(Loss):
    """Pushes everything up by the mean, and keeps the batches that it saw."""

    drops_zero_signal_groups = True
    requires = frozenset({"entropy", "prompt_hidden", "ref_prompt_hidden"})

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, batch, policy) -> LossOutput:
        self.seen.append((batch, policy))
        return LossOutput((batch.rewards[:, None] * policy.logprobs).mean(), {"log_z_mean": len(self.seen)})


def test_the_loop_serves_what_losses_ask_for() -> None:
    """Several updates on a batch keep its old log-probabilities; flat groups leave if the loss says so."""
    loss, policy = _Spy(), TabularPolicy(3, 3)
    options = {"iterations": 3, "groups": 6, "group_size": 2, "updates_per_rollout": 2}
    train_tabular(loss, policy, Landscape.of(SMALL), **options)
    assert len(loss.seen) == 6
    (one, first), (again, second) = loss.seen[:2]
    assert one is again and not torch.equal(first.logprobs, second.logprobs)
    torch.testing.assert_close(one.old_logprobs, first.logprobs.detach())
    assert first.entropy.shape == (12, 3) and first.prompt_hidden.shape == (12, 1)
    flat = (one.rewards.view(6, 2).diff(dim=1) == 0).squeeze(1)
    assert one.loss_mask.view(6, -1).any(dim=1).tolist() == (~flat).tolist()
    assert one.totals.groups == (~flat).sum()


def test_the_history_has_what_the_loss_believed_at_the_rollouts_before() -> None:
    """The spy believes the number of updates so far; of two on a rollout, the first counts."""
    history = train_tabular(
        _Spy(), TabularPolicy(3, 3), Landscape.of(SMALL), iterations=5, measure_every=2, updates_per_rollout=2
    )
    assert [(x["iteration"], x["log_z_mean"]) for x in history] == [(0, 1), (2, 3), (4, 7), (5, 9)]


@pytest.mark.parametrize("lab", [SMALL, VARIED], ids=["fixed", "varied"])
def test_strings_are_drawn_as_often_as_they_are_likely(lab: Lab) -> None:
    """Chi-square of 38,400 draws from a policy that does not move, within 5 of its deviations."""
    landscape, loss = Landscape.of(lab), _Spy()
    loss.drops_zero_signal_groups = False
    policy = TabularPolicy.of(landscape, seed=8)
    train_tabular(loss, policy, landscape, iterations=60, groups=80, lr=0.0)
    counts = torch.zeros(len(landscape.rewards))
    number = {tuple(row): i for i, row in enumerate(landscape.tree.tokens.tolist())}
    for batch, _ in loss.seen:
        for row in batch.completion_ids.tolist():
            counts[number[tuple(row)]] += 1
    expected = torch.tensor(list(walked(policy).values())) * 38_400
    chi = float(((counts - expected).square() / expected).sum())
    free = len(counts) - 1
    assert abs(chi - free) < 5 * math.sqrt(2 * free)


def test_a_critic_sees_values_from_before_the_updates() -> None:
    class Critic(_Spy):
        requires = frozenset({"values"})
        drops_zero_signal_groups = False

        def __init__(self) -> None:
            super().__init__()
            self.value_head = nn.Linear(13, 1)

        def forward(self, batch, policy) -> LossOutput:
            self.seen.append((batch.old_values.clone(), policy.values.detach()))
            return LossOutput((policy.values - 1).square().mean() + 0 * policy.logprobs.sum(), {})

    loss = Critic()
    train_tabular(loss, TabularPolicy(3, 3), Landscape.of(SMALL), iterations=2, updates_per_rollout=2, lr=0.1)
    (old, one), (still, two), (then, three), _ = loss.seen
    assert torch.equal(old, one) and torch.equal(old, still) and torch.equal(then, three)
    assert not torch.equal(one, two)


def test_needs_that_cannot_be_met_are_refused() -> None:
    loss = _Spy()
    loss.requires = frozenset({"values"})
    with pytest.raises(ValueError, match="_Spy requires values, but has no value_head"):
        train_tabular(loss, TabularPolicy(3, 3), Landscape.of(SMALL), iterations=1)
    with pytest.raises(ValueError, match="group_size=1 must be at least 2"):
        train_tabular(
            balance(GroupMeanLogZ()), TabularPolicy(3, 3), Landscape.of(SMALL), iterations=1, group_size=1
        )
