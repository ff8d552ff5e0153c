"""Mismatch figures: exact numbers for an engine whose log-probabilities are off in a known way."""

from __future__ import annotations

import math

import pytest
import torch

from distmatch.modules.mismatch import mismatch_figures


def figures(gap: list[list[float]], lengths: list[int]) -> dict[str, float]:
    """Of an engine whose log-probabilities are the trainer's plus `gap`."""
    shift = torch.tensor(gap)
    trainer = -torch.rand(shift.shape, generator=torch.Generator().manual_seed(0)) - 0.5
    mask = torch.arange(shift.shape[1])[None] < torch.tensor(lengths)[:, None]
    garbage = torch.full_like(shift, float("nan"))
    engine = torch.where(mask, trainer + shift, garbage)
    found = mismatch_figures(torch.where(mask, trainer, -garbage), engine, mask)
    return {name: float(value) for name, value in found.items()}


def test_an_honest_engine() -> None:
    assert figures([[0.0] * 4] * 3, [4, 1, 2]) == {
        "mismatch_max": 0,
        "mismatch_ratio_max": 1,
        "mismatch_kl": 0,
        "mismatch_ess": 1,
    }


def test_a_tenth_of_a_nat_more_on_every_token() -> None:
    found = figures([[0.1] * 3] * 2, [3, 3])
    assert found["mismatch_max"] == pytest.approx(0.1, abs=1e-6)
    assert found["mismatch_ratio_max"] == pytest.approx(math.exp(-0.1), abs=1e-6)
    assert found["mismatch_kl"] == pytest.approx(math.exp(-0.1) - 1 + 0.1, abs=1e-6)
    assert found["mismatch_ess"] == pytest.approx(1, abs=1e-6)  # all sequences weigh the same


def test_unequal_sequences_weigh_by_all_their_tokens() -> None:
    """Two rows of two tokens and one: weights exp(-0.4), exp(0.3) and 1."""
    found = figures([[0.5, -0.1], [-0.3, 9.0], [0.0, 9.0]], [2, 1, 1])
    weights = [math.exp(-0.4), math.exp(0.3), 1.0]
    assert found["mismatch_max"] == pytest.approx(0.5, abs=1e-6)
    assert found["mismatch_ratio_max"] == pytest.approx(math.exp(0.3), abs=1e-6)
    assert found["mismatch_ess"] == pytest.approx(sum(weights) ** 2 / (3 * sum(w * w for w in weights)))
    gaps = [-0.5, 0.1, 0.3, 0.0]
    assert found["mismatch_kl"] == pytest.approx(sum(math.exp(g) - 1 - g for g in gaps) / 4, abs=1e-6)


def test_one_sequence_with_all_the_weight() -> None:
    assert figures([[15.0], [15.0], [15.0], [-15.0]], [1, 1, 1, 1])["mismatch_ess"] == pytest.approx(0.25)


def test_the_kl_estimates_the_kl_of_the_engine_to_the_trainer() -> None:
    engine = torch.tensor([0.7, 0.2, 0.1]).log()
    trainer = torch.tensor([0.5, 0.2, 0.3]).log()
    tokens = torch.tensor([0] * 7 + [1] * 2 + [2])  # as often as the engine draws them
    found = mismatch_figures(trainer[tokens][None], engine[tokens][None], torch.ones(1, 10, dtype=torch.bool))
    assert float(found["mismatch_kl"]) == pytest.approx(float((engine.exp() * (engine - trainer)).sum()))


def test_a_batch_without_tokens() -> None:
    assert figures([[1.0], [2.0]], [0, 0]) == {
        "mismatch_max": 0,
        "mismatch_kl": 0,
        "mismatch_ratio_max": 1,
        "mismatch_ess": 1,
    }
