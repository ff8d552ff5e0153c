"""Both published forms of pass@k training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distmatch.losses.pass_at_k import BestOfGroupLoss, PassAtKLoss
from distmatch.ops import group_zscore
from tests.builders import make_batch, make_policy


def gradient(loss, batch) -> Tensor:
    policy = make_policy(batch, drift=0.0)
    return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]


def pushes(loss, rewards: list[float]) -> list[float]:
    """Sign of what one-token answers of one group feel: 1 up, -1 down."""
    batch = make_batch(1, len(rewards), rewards=rewards, lengths=[1] * len(rewards))
    return (-gradient(loss, batch).sign()).reshape(-1).tolist()


def test_analytic_form_pushes_while_k_fail() -> None:
    loss = PassAtKLoss(k=2, threshold=0.5)
    assert pushes(loss, [1.0, 0.0, 0.0, 0.0]) == [1, -1, -1, -1]
    assert pushes(loss, [1.0, 0.9, 0.2, 0.0]) == [1, 1, -1, -1]  # graded rewards are cut
    assert pushes(loss, [1.0, 1.0, 1.0, 0.0]) == [0, 0, 0, 0]  # any two hold a success
    assert pushes(loss, [0.4, 0.3, 0.2, 0.0]) == [0, 0, 0, 0]  # all fail
    assert pushes(loss, [1.0, 0.9, 0.8, 0.7]) == [0, 0, 0, 0]  # all succeed


def test_a_rare_success_weighs_more_than_at_k_of_one() -> None:
    """One success in eight against four in eight: k = 4 favours the rare one three times as much."""
    rare, common = ([1.0] * n + [0.0] * (8 - n) for n in (1, 4))
    favour = {}
    for k in (1, 4):
        push = [PassAtKLoss(k, 0.5).advantages(make_batch(1, 8, rewards=r))[0] for r in (rare, common)]
        favour[k] = push[0] / push[1]
    assert favour[1] == pytest.approx(7**0.5) and favour[4] > 3 * favour[1]


@pytest.mark.parametrize("k", [4, 5])
def test_groups_no_larger_than_k_are_refused(k: int) -> None:
    batch = make_batch(group_size=4)
    with pytest.raises(ValueError, match=f"group_size=4 must be at least {k + 1}"):
        PassAtKLoss(k, 0.5)(batch, make_policy(batch))


def test_a_group_with_k_live_rows_or_fewer_is_left_alone() -> None:
    batch = make_batch(2, 4, rewards=[1, 0, 0, 1, 1, 0, 0, 1], masked_rows=[0, 1])
    grad = gradient(PassAtKLoss(2, 0.5), batch)
    assert (grad[:4] == 0).all() and grad[4:].abs().max() > 0


def test_best_of_group_pushes_the_best_alone() -> None:
    assert pushes(BestOfGroupLoss(), [0.3, 1.0, 0.0, 0.9]) == [0, 1, 0, 0]
    assert pushes(BestOfGroupLoss(), [1.0, 1.0, 0.0, 0.0]) == [0, 0, 0, 0]
    assert pushes(BestOfGroupLoss(), [0.0, 0.0, 0.0, 0.0]) == [0, 0, 0, 0]
    assert pushes(BestOfGroupLoss(), [-1.0, -1.5]) == [1, 0]


def test_scaled_is_divided_by_the_deviation() -> None:
    rewards = torch.tensor([0.3, 1.0, 0.0, 0.9])
    batch = make_batch(1, 4, rewards=rewards)
    expected = (1.0 - 0.9) / (rewards.std() + 1e-6)
    found = BestOfGroupLoss(scale_rewards=True).advantages(batch)
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 0.0, 0.0]) * expected)
    zscores = group_zscore(rewards, 4)
    torch.testing.assert_close(found[1], zscores[1] - zscores[3])


def test_metrics_tell_groups_without_push_from_groups_without_signal() -> None:
    rewards = [1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0.2, 0.1, 0.1, 0.1]
    batch = make_batch(4, 4, rewards=rewards, masked_rows=[12, 13, 14, 15])  # the last group is masked
    policy = make_policy(batch)
    best, analytic = BestOfGroupLoss()(batch, policy), PassAtKLoss(3, 0.5)(batch, policy)
    assert best.metrics["frac_groups_no_signal"] == pytest.approx(1 / 3)
    assert best.metrics["frac_groups_no_push"] == pytest.approx(2 / 3)
    assert analytic.metrics["frac_groups_no_push"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("make", [lambda: PassAtKLoss(2, 0.5), BestOfGroupLoss], ids=["analytic", "best"])
def test_masked_batches_and_single_live_rows_do_nothing(make) -> None:
    for masked in (range(12), [0, 1, 2, 4, 5, 6, 8, 9, 10]):
        batch = make_batch(masked_rows=masked)
        assert (gradient(make(), batch) == 0).all()


def test_k_is_checked() -> None:
    with pytest.raises(ValueError, match="k=0"):
        PassAtKLoss(0, 0.5)
    assert PassAtKLoss(1, 0.5).min_group_size == 2 and BestOfGroupLoss.min_group_size == 2
