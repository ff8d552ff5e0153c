"""Maximum likelihood on rows that are good enough: by hand, over ranks, and where it ends."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from distmatch.batch import PolicyOutput
from distmatch.losses.sft import SFTLoss
from tests.builders import make_batch, make_policy


def test_the_mean_over_tokens_by_hand() -> None:
    """Rows of 2, 1, 3 and 4 tokens; the second is too bad, the last one truncated."""
    rewards, lengths = [1.0, 0.4, 0.5, 1.0], [2, 1, 3, 4]
    batch = make_batch(1, 4, rewards=rewards, lengths=lengths, masked_rows=[3])
    logprobs = torch.full((4, 4), -2.0)
    logprobs[2] = -5.0
    policy = make_policy(batch, logprobs=logprobs)
    output = SFTLoss(min_reward=0.5)(batch, policy)
    assert output.loss.item() == pytest.approx((2 * 2 + 3 * 5) / 6)
    assert float(output.metrics["kept_rows"]) == pytest.approx(2 / 3)
    (grad,) = torch.autograd.grad(output.loss, policy.logprobs)
    assert grad[0].tolist() == pytest.approx([-1 / 6, -1 / 6, 0, 0])
    assert grad[2].tolist() == pytest.approx([-1 / 6] * 3 + [0])
    assert (grad[[1, 3]] == 0).all()


def test_answers_weigh_alike_if_sums_are_averaged() -> None:
    batch = make_batch(2, 1, rewards=[1.0, 1.0], lengths=[1, 6])
    policy = make_policy(batch, logprobs=torch.full((2, 6), -1.0))
    assert SFTLoss(aggregation="seq_mean_token_sum")(batch, policy).loss.item() == pytest.approx(7 / 2)


def test_a_batch_of_bad_answers_changes_nothing() -> None:
    batch = make_batch(rewards=[0.49] * 12)
    policy = make_policy(batch)
    output = SFTLoss(min_reward=0.5)(batch, policy)
    (grad,) = torch.autograd.grad(output.loss, policy.logprobs)
    assert output.loss.item() == 0 and (grad == 0).all()
    assert float(output.metrics["kept_rows"]) == 0


def test_on_policy_it_is_the_gradient_of_the_success_rate() -> None:
    """Five answers of one token: the mean gradient over them is minus that of P(r >= min_reward)."""
    rewards = torch.tensor([0.0, 1.0, 0.2, 0.6, 0.1])
    logits = torch.tensor([0.3, -0.5, 1.0, 0.2, -1.0], dtype=torch.float64, requires_grad=True)
    chance = logits.softmax(dim=0)
    (wanted,) = torch.autograd.grad(-chance[rewards >= 0.5].sum(), logits)
    found = torch.zeros(5, dtype=torch.float64)
    for answer in range(5):
        batch = make_batch(1, 1, rewards=rewards[[answer]], lengths=[1])
        logprobs = logits.log_softmax(dim=0)[answer].view(1, 1)
        loss = SFTLoss(0.5, "seq_mean_token_sum")(batch, PolicyOutput(logprobs)).loss
        found += chance[answer].item() * torch.autograd.grad(loss, logits)[0]
    torch.testing.assert_close(found, wanted)


def test_on_stored_answers_it_ends_at_their_shares() -> None:
    """The fixed point that the docstring states: all kept solutions, as often as they are stored."""
    answers = torch.tensor([0, 0, 0, 1, 1, 3, 4, 4])
    rewards = torch.tensor([1.0, 1.0, 1.0, 0.7, 0.7, 0.6, 0.1, 0.1])
    logits = torch.zeros(5, requires_grad=True)
    batch = make_batch(8, 1, rewards=rewards, lengths=[1] * 8)
    optimizer = torch.optim.SGD([logits], lr=2.0)
    for _ in range(3000):
        optimizer.zero_grad()
        SFTLoss(0.5)(batch, PolicyOutput(logits.log_softmax(dim=0)[answers][:, None])).loss.backward()
        optimizer.step()
    shares = torch.tensor([3 / 6, 2 / 6, 0, 1 / 6, 0])
    torch.testing.assert_close(logits.softmax(dim=0), shares, atol=2e-3, rtol=0)


def test_rewards_beside_the_limit_do_not_matter_but_for_the_side() -> None:
    batch = make_batch(rewards=[0.5, 0.4] * 6)
    other = dataclasses.replace(batch, rewards=torch.tensor([9.0, -9.0] * 6))
    policy = make_policy(batch)
    assert SFTLoss(0.5)(batch, policy).loss.item() == SFTLoss(0.5)(other, policy).loss.item() != 0
