"""BalanceLoss and its log Z heads: what they require, how they learn, what they refuse."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from distmatch.batch import PolicyOutput
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.log_z import FrozenLogZ, GroupMeanLogZ, LearnedLogZ, LogZ, ScalarLogZ, TableLogZ
from distmatch.study.exact import exact_target, kl
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, tabular_batch
from distmatch.tasks.lab import Lab
from tests.builders import make_batch, make_policy


def balance(log_z: LogZ, **changes) -> BalanceLoss:
    """Raw reward, token sums, no weight."""
    plain = {"beta": 6.0, "length_normalize": False, "reward_source": "raw", "importance_weight": "none"}
    return BalanceLoss(log_z, **(plain | changes))


def test_the_group_mean_shortens_the_expected_gradient_and_does_not_turn_it() -> None:
    """Over all pairs of samples of pi, VarGrad's expected gradient is (n - 1) / n = 1/2 of 2 grad KL."""
    landscape, policy = Landscape.of(Lab(alphabet=3, length=2, modes=2, near=2)), TabularPolicy(3, 2)
    reference = TabularPolicy(3, 2, seed=1).token_logprobs().detach()
    strings = torch.cartesian_prod(torch.arange(9), torch.arange(9)).reshape(-1)
    logp = policy.token_logprobs()
    rows = logp[strings].detach().requires_grad_()
    batch = tabular_batch(strings, 2, landscape, rows.detach(), reference[strings])
    (slope,) = torch.autograd.grad(balance(GroupMeanLogZ())(batch, PolicyOutput(rows)).loss, rows)
    pair = logp.detach().sum(1)[strings].view(81, 2).sum(1).exp().repeat_interleave(2)  # P(both)
    (found,) = torch.autograd.grad(logp[strings], policy.logits, 81 * pair[:, None] * slope)
    target = exact_target(reference.sum(1), landscape.rewards, 6.0)
    (expected,) = torch.autograd.grad(kl(policy.logprobs(), target), policy.logits)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


def test_a_learned_number_takes_the_mean_residual_away() -> None:
    batch = make_batch(2, 4, dtype=torch.float64)
    policy = make_policy(batch)
    head = ScalarLogZ(0.0, lr=0.1)
    loss = balance(head)
    optimizer = torch.optim.Adam(loss.param_groups(1e-9))
    for _ in range(400):
        optimizer.zero_grad()
        loss(batch, policy).loss.backward()
        optimizer.step()
    assert abs(float(loss(batch, policy).metrics["residual_mean"])) < 1e-3


def test_heads_have_their_own_rate() -> None:
    learned, number = LearnedLogZ(width=4, lr=0.5), ScalarLogZ(lr=0.2)
    (group,) = balance(learned).param_groups(1e-3)
    assert group["lr"] == 0.5 and len(group["params"]) == len(list(learned.parameters())) == 10
    assert balance(LearnedLogZ(width=4)).param_groups(1e-3)[0]["lr"] == 1e-3
    (group,) = balance(number).param_groups(1e-3)
    assert (group["lr"], group["weight_decay"]) == (0.2, 0.0)
    assert balance(GroupMeanLogZ()).param_groups(1e-3) == []
    assert balance(FrozenLogZ(1.0)).param_groups(1e-3) == []


def test_where_the_gradient_of_a_learned_head_goes() -> None:
    batch = make_batch(2, 4)
    for head, flows in ((LearnedLogZ(5), True), (LearnedLogZ(5, detach=True), False)):
        policy = make_policy(batch)
        balance(head)(batch, policy).loss.backward()
        assert (policy.prompt_hidden.grad is not None) is flows
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
    head = LearnedLogZ(5, from_reference=True)
    assert balance(head).requires == {"ref_logprobs", "ref_prompt_hidden"}
    policy = make_policy(batch)
    balance(head)(batch, policy).loss.backward()
    assert policy.prompt_hidden.grad is None


def test_a_head_of_another_width_projects_and_keeps_nothing_of_it() -> None:
    """Same projection in every process, nothing in the checkpoint, all shapes known from the start."""
    batch = make_batch(2, 4)
    policy = make_policy(batch)
    torch.manual_seed(0)
    head = LearnedLogZ(width=16)
    twin = LearnedLogZ(width=16)
    twin.load_state_dict(head.state_dict())
    residual = torch.zeros(8)
    one, other = head(batch, policy, residual), twin(batch, policy, residual)
    torch.testing.assert_close(one, other)
    assert not torch.equal(one[0], one[4]) and torch.equal(one[0], one[3])
    assert all(name.startswith("layers.") for name in head.state_dict())


def test_known_values_by_group_and_by_prompt() -> None:
    batch = make_batch(2, 4)
    policy = make_policy(batch)
    residual = torch.zeros(8, dtype=torch.float64)
    values = FrozenLogZ(lambda batch: batch.rewards.view(2, 4).mean(dim=1))(batch, policy, residual)
    torch.testing.assert_close(values.float(), batch.rewards.view(2, 4).mean(1).repeat_interleave(4))
    with pytest.raises(ValueError, match=r"shape \(8,\), expected one a group: \(2,\)"):
        FrozenLogZ(lambda batch: batch.rewards)(batch, policy, residual)
    mask = batch.prompt_mask.clone()
    mask[4:, 0] = False  # the second prompt is one token shorter
    prompts = dataclasses.replace(batch, prompt_mask=mask)
    table = TableLogZ({(1, 1, 1): 0.5, (1, 1): -2.0})
    assert table(prompts, policy, residual).tolist() == [0.5] * 4 + [-2.0] * 4
    with pytest.raises(ValueError, match=r"2 prompts lacks token ids \(7, 7, 7\)"):
        table(dataclasses.replace(batch, prompt_ids=batch.prompt_ids * 7), policy, residual)


def test_only_what_is_used_is_required() -> None:
    assert balance(GroupMeanLogZ()).requires == {"ref_logprobs"}
    assert balance(GroupMeanLogZ(), importance_weight="capped").requires == {"ref_logprobs", "old_logprobs"}
    assert balance(LearnedLogZ()).requires == {"ref_logprobs", "prompt_hidden"}
    assert balance(ScalarLogZ()).min_group_size == 1
    assert balance(GroupMeanLogZ()).min_group_size == 2
    assert balance(ScalarLogZ(), reward_source="group_zscore").min_group_size == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.0}, "beta=0.0"),
        ({"beta": math.inf}, "beta=inf"),
        ({"coefficient": 0.0}, "coefficient=0.0"),
        ({"clip_low": 1.5}, "clip_low=1.5"),
        ({"reward_source": "advantage"}, "choose one of raw, group_zscore"),
        ({"importance_weight": "clip"}, "choose one of none, clipped, capped, unclipped"),
    ],
)
def test_wrong_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balance(ScalarLogZ(), **changes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LearnedLogZ(width=0), "width=0"),
        (lambda: LearnedLogZ(dropout=1.0), "dropout=1.0"),
        (lambda: LearnedLogZ(lr=0.0), "lr=0.0"),
        (lambda: ScalarLogZ(lr=-1.0), "lr=-1.0"),
    ],
)
def test_wrong_settings_of_heads_are_named(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
