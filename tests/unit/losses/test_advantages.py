"""Advantages one by one: worked figures, dead rows, and groups that cannot be compared."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from distmatch.losses.advantages import analytic_pass_at_k, best_minus_second, leave_one_out
from distmatch.ops import group_zscore

EXAMPLE = torch.tensor([1.0, 0.5, 0.0, 0.0])
ALL = {
    "leave_one_out": leave_one_out,
    "best_minus_second": best_minus_second,
    "analytic_pass_at_k": partial(analytic_pass_at_k, k=2, threshold=0.5),
}


def pass_at_k(rewards: list[float], k: int, live: Tensor | None = None) -> list[float]:
    return analytic_pass_at_k(torch.tensor(rewards), len(rewards), live, k=k, threshold=0.5).tolist()


def test_the_worked_example_of_the_module() -> None:
    assert leave_one_out(EXAMPLE, 4).tolist() == pytest.approx([5 / 6, 1 / 6, -0.5, -0.5])
    assert best_minus_second(EXAMPLE, 4).tolist() == [0.5, 0.0, 0.0, 0.0]
    assert pass_at_k([1.0, 0.5, 0.0, 0.0], 1) == pytest.approx([1.0, 1.0, -1.0, -1.0])
    assert pass_at_k([1.0, 0.5, 0.0, 0.0], 2) == pytest.approx([0.447, 0.447, -0.447, -0.447], abs=1e-3)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, -1.5, 1e6])
def test_equal_rewards_give_exactly_zero(name: str, reward: float) -> None:
    assert (ALL[name](torch.full((6,), reward), 3) == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_one_live_row_and_none(name: str) -> None:
    rewards = torch.tensor([0.0, 1.0, 0.3, 0.2, 1.0, 0.0])
    live = torch.tensor([False, True, False, False, False, False])
    assert (ALL[name](rewards, 3, live) == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_groups_of_one(name: str) -> None:
    assert (ALL[name](torch.tensor([0.0, 1.0]), 1) == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_dead_rows_count_for_nothing(name: str) -> None:
    """The live rows get what they have in a group of their own, whatever the dead rows' rewards."""
    rewards = torch.tensor([9.0, 1.0, 0.2, -5.0, 0.7, 0.0])
    live = torch.tensor([False, True, True, False, True, True])
    found = ALL[name](rewards, 6, live)
    torch.testing.assert_close(found[live], ALL[name](rewards[live], 4))
    assert (found[~live] == 0).all() and found.dtype == rewards.dtype


@pytest.mark.parametrize("name", ALL)
def test_groups_do_not_mix(name: str) -> None:
    rewards = torch.tensor([1.0, 0.0, 0.4, 0.6, 0.2, 0.1])
    parts = [ALL[name](part, 3) for part in rewards.split(3)]
    torch.testing.assert_close(ALL[name](rewards, 3), torch.cat(parts))


def test_leave_one_out_sums_to_zero_and_spares_no_row() -> None:
    assert leave_one_out(EXAMPLE, 4).sum() == pytest.approx(0.0, abs=1e-6)
    assert leave_one_out(torch.tensor([1.0, 0.0]), 2).tolist() == [1.0, -1.0]


def test_a_shared_maximum_gets_nothing() -> None:
    assert best_minus_second(torch.tensor([1.0, 0.2, 1.0]), 3).tolist() == [0.0, 0.0, 0.0]
    assert best_minus_second(torch.tensor([-3.0, -1.0, -7.0]), 3).tolist() == [0.0, 2.0, 0.0]


def test_k_of_one_is_the_z_score_of_successes_with_ddof_0() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0])
    expected = group_zscore(rewards, 5) * math.sqrt(5 / 4)
    torch.testing.assert_close(torch.tensor(pass_at_k(rewards.tolist(), 1)), expected)


@pytest.mark.parametrize("k", [4, 5, 100])
@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0] * 4, [1.0] * 4])
def test_sets_as_large_as_the_group_have_no_spread(rewards: list[float], k: int) -> None:
    assert pass_at_k(rewards, k) == [0.0] * 4


@pytest.mark.parametrize("k", [1, 2, 3])
def test_all_failures_and_all_successes_give_zero(k: int) -> None:
    assert pass_at_k([0.0] * 4, k) == [0.0] * 4
    assert pass_at_k([1.0] * 4, k) == [0.0] * 4


def test_fewer_failures_than_k_means_that_every_set_passes() -> None:
    assert pass_at_k([1.0, 1.0, 0.0, 1.0], 2) == [0.0] * 4
    assert any(pass_at_k([1.0, 0.0, 0.0, 1.0], 2))


def test_the_threshold_itself_is_a_success() -> None:
    below = torch.tensor([0.5, 0.49, 0.0])
    got = analytic_pass_at_k(below, 3, k=1, threshold=0.5)
    assert got[0] > 0 and got[1] == got[2] < 0


def test_large_groups_do_not_overflow() -> None:
    rewards = torch.zeros(1024)
    rewards[0] = 1.0
    found = analytic_pass_at_k(rewards, 1024, k=512, threshold=0.5)
    assert torch.isfinite(found).all()
    assert found[0] == pytest.approx(1.0) and found[1] == pytest.approx(-1 / 1023, rel=1e-3)
