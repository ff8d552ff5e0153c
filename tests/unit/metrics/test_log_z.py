"""Estimates of log Z and their diagnostics, against the formulas written out in plain Python."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from distmatch.metrics.log_z import (
    bias,
    bootstrap_interval,
    effective_sample_size,
    halvings,
    jackknife,
    largest_weight,
    log_z,
    relative_log_weights,
    subsample_variance,
    variance,
)
from distmatch.metrics.pareto import fit_generalized_pareto, largest_reliable_k, pareto_k

WEIGHTS = [0.5, 2.0, 1.0, 4.0, 0.25]
LOGS = torch.tensor(WEIGHTS, dtype=torch.float64).log()


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return spread * torch.randn(*shape, generator=rng, dtype=torch.float64)


def test_figures_are_the_formulas() -> None:
    n, total, squares = len(WEIGHTS), sum(WEIGHTS), sum(w * w for w in WEIGHTS)
    spread = statistics.variance(WEIGHTS) / (n * (total / n) ** 2)
    assert float(log_z(LOGS)) == pytest.approx(math.log(total / n))
    assert float(effective_sample_size(LOGS)) == pytest.approx(total**2 / squares)
    assert float(largest_weight(LOGS)) == pytest.approx(4.0 / total)
    assert float(variance(LOGS)) == pytest.approx(spread)
    assert float(bias(LOGS)) == pytest.approx(-spread / 2)


def test_jackknife_is_its_definition() -> None:
    n, full = len(WEIGHTS), math.log(sum(WEIGHTS) / len(WEIGHTS))
    without = [math.log((sum(WEIGHTS) - w) / (n - 1)) for w in WEIGHTS]
    assert float(jackknife(LOGS)) == pytest.approx(n * full - (n - 1) * sum(without) / n)


def test_jackknife_survives_one_weight_that_has_all() -> None:
    logs = torch.tensor([0.0, 500.0, 1.0], dtype=torch.float64)
    without = [math.log((math.exp(1.0 - 500) + 1) / 2) + 500, math.log((1 + math.e) / 2), 500 - math.log(2)]
    expected = 3 * (500 - math.log(3)) - 2 * sum(without) / 3
    assert float(jackknife(logs)) == pytest.approx(expected)


def test_a_factor_moves_log_z_and_nothing_else() -> None:
    logs = drawn(3, 40)
    assert torch.allclose(log_z(logs + 1000), log_z(logs) + 1000)
    assert torch.allclose(jackknife(logs - 2000), jackknife(logs) - 2000)
    for figure in (effective_sample_size, largest_weight, variance, bias):
        assert torch.allclose(figure(logs + 1000), figure(logs))


def test_leading_dimensions_are_prompts() -> None:
    logs = drawn(4, 3, 17)
    for figure in (log_z, effective_sample_size, largest_weight, variance, bias, jackknife):
        assert torch.allclose(figure(logs)[2, 1], figure(logs[2, 1]))
    assert torch.allclose(subsample_variance(logs, 8)[2, 1], subsample_variance(logs[2, 1], 8))


@pytest.mark.parametrize(
    "figure", [log_z, effective_sample_size, largest_weight, variance, bias, jackknife, bootstrap_interval]
)
def test_scales_of_one_are_no_scales(figure: object) -> None:
    logs = drawn(30, spread=2.0)
    one, none = figure(logs, torch.ones_like(logs)), figure(logs)  # type: ignore[operator]
    assert torch.allclose(torch.as_tensor(one), torch.as_tensor(none), atol=1e-9)


@pytest.mark.parametrize("longest", [2, 14, 4000])
def test_the_root_is_one(longest: int) -> None:
    rng = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, longest + 1, (50, 60), generator=rng).double()
    logs = drawn(50, 60, spread=5.0) + 15 * lengths * torch.rand(50, 60, generator=rng, dtype=torch.float64)
    value = log_z(logs, lengths)
    residual = (logs - lengths * value[:, None]).exp().mean(dim=1)
    assert torch.allclose(residual, torch.ones(50, dtype=torch.float64), atol=1e-8)


def test_variance_and_bias_of_a_root_are_those_of_many_samples() -> None:
    """20,000 samples of 200 from a known population: exact first and second order, to Monte-Carlo error."""
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 6, (40,), generator=rng).double()
    logs = drawn(40, seed=1)
    exact = log_z(logs, lengths)
    chosen = torch.randint(40, (20_000, 200), generator=rng)
    values = log_z(logs[chosen], lengths[chosen])
    assert float(values.var()) == pytest.approx(float(variance(logs, lengths)) * (40 - 1) / 200, rel=0.05)
    error = 3 * float(values.std()) / math.sqrt(len(values))
    assert float(values.mean() - exact) == pytest.approx(float(bias(logs, lengths)) * 39 / 200, abs=error)


def test_nothing_is_made_of_broken_weights() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="no probability"):
            log_z(torch.tensor([0.0, bad]))
    assert float(log_z(torch.tensor([0.0, -math.inf]))) == pytest.approx(-math.log(2))
    none = torch.tensor([[-math.inf, -math.inf], [0.0, 0.0]], dtype=torch.float64)
    for scale in (None, torch.ones(2, 2)):
        assert log_z(none, scale).tolist() == [-math.inf, 0.0]
    with pytest.raises(ValueError, match="at least 2"):
        variance(torch.tensor([0.0]))
    with pytest.raises(ValueError, match="at least 2"):
        jackknife(torch.tensor([0.0]))
    with pytest.raises(ValueError, match="above 0"):
        log_z(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))


def test_equal_weights_leave_no_doubt() -> None:
    logs = torch.full((64,), 3.0)
    assert bootstrap_interval(logs) == (3.0, 3.0)
    assert float(effective_sample_size(logs)) == pytest.approx(64)
    assert float(variance(logs)) == pytest.approx(0)


def test_the_interval_holds_the_estimate_and_widens_with_its_level() -> None:
    logs = drawn(100, spread=1.5)
    narrow, wide = bootstrap_interval(logs, level=0.5), bootstrap_interval(logs, level=0.99)
    assert wide[0] < narrow[0] < float(log_z(logs)) < narrow[1] < wide[1]
    assert bootstrap_interval(logs) == bootstrap_interval(logs)


def test_an_interval_of_one_heavy_weight_is_wide_and_finite() -> None:
    logs = torch.zeros(64, dtype=torch.float64)
    logs[0] = 30.0
    low, high = bootstrap_interval(logs)
    assert -math.inf < low < float(log_z(logs)) - 1 and high < math.inf


def test_subsamples_vary_like_fresh_samples_of_their_size() -> None:
    many = drawn(400, 256)
    fresh = log_z(drawn(400, 50, 32, seed=5)).var(dim=1).mean()
    assert float(subsample_variance(many, 32).mean()) == pytest.approx(float(fresh), rel=0.1)
    assert halvings(64) == [4, 8, 16, 32]
    with pytest.raises(ValueError, match="two parts"):
        subsample_variance(many, 129)


# ---- tails -------------------------------------------------------------------------------------------------


def generalized_pareto(k: float, sigma: float, count: int, seed: int) -> torch.Tensor:
    """Samples by inverting the distribution function 1 - (1 + k x / sigma)^(-1/k)."""
    u = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return -sigma * torch.log1p(-u) if k == 0 else sigma / k * ((1 - u) ** -k - 1)


@pytest.mark.parametrize("k", [-0.4, 0.0, 0.3, 0.7, 1.2])
def test_the_fit_finds_shape_and_scale(k: float) -> None:
    fits = [fit_generalized_pareto(generalized_pareto(k, 2.5, 2000, seed)) for seed in range(20)]
    assert statistics.mean(shape for shape, _ in fits) == pytest.approx(k, abs=0.03)
    assert statistics.mean(scale for _, scale in fits) == pytest.approx(2.5, rel=0.04)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_pareto_k_of_pareto_weights(k: float) -> None:
    """Weights u^-k have exactly a tail of shape k; the prior draws 190 exceedances little towards 1/2."""
    rng = torch.Generator().manual_seed(0)
    found = [
        pareto_k(-k * torch.rand(4000, generator=rng, dtype=torch.float64).log() + 700) for _ in range(20)
    ]
    assert statistics.mean(found) == pytest.approx((190 * k + 5) / 200, abs=0.04)


def test_there_is_no_k_without_a_tail() -> None:
    assert math.isnan(pareto_k(torch.zeros(100)))
    assert math.isnan(pareto_k(torch.tensor([0.0, 1.0, 2.0])))
    few = torch.zeros(200, dtype=torch.float64)
    few[:4] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert math.isnan(pareto_k(few))


def test_the_limit_of_k_rises_to_seven_tenths() -> None:
    assert largest_reliable_k(100) == pytest.approx(0.5)
    assert largest_reliable_k(10**6) == 0.7


def test_relative_weights_have_mean_one() -> None:
    logs = drawn(5, 30) + 40
    assert torch.allclose(relative_log_weights(logs).exp().mean(dim=1), torch.ones(5, dtype=torch.float64))
