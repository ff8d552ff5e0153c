"""The group statistics that losses are made of, and the counts that they divide by."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from distmatch.batch import Totals
from distmatch.losses.base import Loss
from distmatch.ops import flat_groups, group_centred, group_log_softmax, group_zscore
from tests.builders import make_batch, make_policy


def test_zscore_of_known_numbers() -> None:
    scores = group_zscore(torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 4.0, 6.0, 8.0]), 4, eps=0.0)
    torch.testing.assert_close(scores[:4], torch.tensor([1.5, -0.5, -0.5, -0.5]))
    torch.testing.assert_close(scores[4:], torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 2.5819889)


def test_zscore_over_live_rows_is_that_of_the_smaller_group() -> None:
    rewards, live = torch.tensor([1.0, 99.0, 0.0, 0.5]), torch.tensor([True, False, True, True])
    scores = group_zscore(rewards, 4, live)
    torch.testing.assert_close(scores[live], group_zscore(rewards[live], 3))
    assert scores[1] == 0 and group_centred(rewards, 4, live).sum() == 0


@pytest.mark.parametrize("size", [1, 3])
def test_equal_rewards_and_groups_of_one_give_exactly_zero(size: int) -> None:
    rewards = torch.full((3,), 0.1)
    assert (group_zscore(rewards, size) == 0).all() and (group_centred(rewards, size) == 0).all()


def test_flat_groups_look_at_live_rows() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0])
    assert flat_groups(rewards, 3).tolist() == [False, True, False]
    live = torch.tensor([True, True, False] * 2 + [False] * 3)
    assert flat_groups(rewards, 3, live).tolist() == [True, True, True]


def test_log_softmax_leaves_dead_rows_out() -> None:
    scores = torch.tensor([[0.0, 5.0, 1.0], [-torch.inf, 0.0, 0.0], [1.0, 2.0, 3.0]], requires_grad=True)
    live = torch.tensor([[True, False, True], [True, True, True], [False, False, False]])
    logs = group_log_softmax(scores, live)
    torch.testing.assert_close(logs[0, [0, 2]], torch.tensor([0.0, 1.0]).log_softmax(0))
    assert logs.exp()[0, 1] == 0 and logs.exp()[1].tolist() == pytest.approx([0, 0.5, 0.5])
    (grad,) = torch.autograd.grad(logs.exp()[:2].square().sum() + 0 * logs.sum(), scores)
    assert torch.isfinite(grad).all() and grad[0, 1] == 0


def test_totals_count_after_the_mask() -> None:
    """Groups of 2: with signal; flat after masking; all masked; flat."""
    rewards = [0, 1, 0, 1, 0, 1, 1, 1]
    batch = make_batch(4, 2, rewards=rewards, lengths=[1, 2, 3, 4, 5, 6, 1, 1], masked_rows=[3, 4, 5])
    assert batch.totals == Totals(tokens=8, rows=5, groups=3, signal_groups=1)
    assert batch.select_groups(torch.tensor([0, 3])).totals == Totals(5, 4, 2, 1)


def test_unknown_needs_are_refused() -> None:
    class Dreamer(Loss):
        requires = frozenset({"logits"})

        def forward(self, batch, policy):
            raise NotImplementedError

    batch = make_batch()
    with pytest.raises(ValueError, match="requires logits, which nobody computes"):
        Dreamer()(batch, make_policy(batch))


def test_rewards_of_the_wrong_shape_are_refused() -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match=r"shape \(12,\)"):
        dataclasses.replace(batch, rewards=batch.rewards[:, None])
