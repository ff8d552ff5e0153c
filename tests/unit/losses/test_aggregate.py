"""Aggregations against hand-computed numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from distmatch.batch import Totals
from distmatch.losses.aggregate import make_aggregation
from tests.builders import make_batch

WORKED = {
    "token_mean": 20 / 8,
    "group_mean_token_mean": 20 / 8,
    "seq_mean_token_mean": (1 + 3) / 2,
    "seq_mean_token_sum": 20 / 2,
    "constant": 20 / (2 * 10),
}


def aggregate(name: str, batch, values) -> float:
    return float(make_aggregation(name, 10 if name == "constant" else None)(values, batch))


@pytest.mark.parametrize(("name", "expected"), WORKED.items())
def test_worked_example(name: str, expected: float) -> None:
    batch = make_batch(1, 2, lengths=[2, 6])
    values = torch.tensor([1.0, 3.0])[:, None].expand(2, 6)
    assert aggregate(name, batch, values) == pytest.approx(expected)


def test_two_groups_tell_token_means_apart() -> None:
    batch = make_batch(2, 2, lengths=[1, 1, 6, 2])
    values = torch.tensor([2.0, 4.0, 1.0, 5.0])[:, None].expand(4, 6)
    assert aggregate("token_mean", batch, values) == pytest.approx((2 + 4 + 6 + 10) / 10)
    assert aggregate("group_mean_token_mean", batch, values) == pytest.approx((6 / 2 + 16 / 8) / 2)


@pytest.mark.parametrize("name", WORKED)
def test_truncated_rows_leave_numerator_and_denominator(name: str) -> None:
    """25 of 30 tokens train: a constant token loss keeps its mean."""
    whole = make_batch(1, 3, lengths=[10, 15, 5], masked_rows=[2])
    without = make_batch(1, 2, lengths=[10, 15])
    assert aggregate(name, whole, torch.ones(3, 15)) == pytest.approx(
        aggregate(name, without, torch.ones(2, 15))
    )


@pytest.mark.parametrize("name", WORKED)
def test_empty_mask_gives_zero_with_a_graph(name: str) -> None:
    batch = make_batch(1, 2, masked_rows=[0, 1])
    values = torch.full(batch.loss_mask.shape, torch.nan, requires_grad=True)
    loss = make_aggregation(name, 10 if name == "constant" else None)(values, batch)
    loss.backward()
    assert loss == 0 and (values.grad == 0).all()


def test_totals_below_one_are_not_rounded_up() -> None:
    """One token on one of four ranks: totals are a quarter, and the mean over ranks is still the mean."""
    batch = dataclasses.replace(make_batch(1, 1, lengths=[1]), totals=Totals(0.25, 0.25, 0.25, 0.0))
    assert aggregate("token_mean", batch, torch.tensor([[3.0]])) / 4 == 3


@pytest.mark.parametrize(
    ("name", "length", "message"),
    [
        (
            "mean",
            None,
            "choose one of token_mean, group_mean_token_mean, .*, constant",
        ),
        ("constant", None, "needs a constant_length"),
        ("token_mean", 8, "nothing else takes one"),
        ("constant", 0, "at least 1"),
    ],
)
def test_bad_settings_are_refused(name: str, length: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_aggregation(name, length)
