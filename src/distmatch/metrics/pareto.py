"""Pareto-k: how heavy the tail of importance weights is.

A generalised Pareto distribution is fitted to the largest weights (Pareto-smoothed importance sampling,
Vehtari et al., arXiv 1507.02646). Its shape k says how many moments the weights seem to have, 1/k of them:
above 1/2 their variance, and above 1 the mean that log Z is made of, cannot be told from this sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST_TAIL = 5
"""Fewer different exceedances cannot be fitted."""


def pareto_k(log_weights: Tensor) -> float:
    """Shape of the tail of one prompt's weights, (N,); nan if there is no tail to fit.

    The tail is the largest min(0.2 N, 3 sqrt(N)) weights; what counts is by how much each exceeds the largest
    weight outside. The fitted shape is drawn towards 1/2 as if ten further exceedances had that shape.
    """
    count = log_weights.shape[-1]
    size = math.ceil(min(0.2 * count, 3 * math.sqrt(count)))
    ordered = (log_weights - log_weights.max()).double().exp().sort().values
    if size >= count:
        return math.nan
    excess = ordered[-size:] - ordered[-size - 1]
    excess = excess[excess > 1e-12 * ordered[-1]]  # weights equal to the threshold exceed nothing
    if len(excess) < LEAST_TAIL:
        return math.nan
    shape, _ = fit_generalized_pareto(excess)
    return (len(excess) * shape + 10 * 0.5) / (len(excess) + 10)


def largest_reliable_k(count: int) -> float:
    """Up to this k an estimate from N = `count` weights is reliable: min(1 - 1/log10(N), 0.7), ibid."""
    return min(1 - 1 / math.log10(count), 0.7) if count > 1 else 0.0


def fit_generalized_pareto(values: Tensor) -> tuple[float, float]:
    """Shape k and scale sigma of the density (1 + k x / sigma)^(-1/k - 1) / sigma of positive `values`, (n,).

    The quasi-Bayesian estimate of Zhang and Stephens (Technometrics 51, 2009): with theta = -k / sigma the
    shape that fits best is k(theta) = mean of log(1 - theta * x), so there is one unknown; it is averaged
    over a grid by the profile likelihood. The grid has 30 + sqrt(n) points and starts from the first
    quartile.
    """
    x = values.double().sort().values
    count = len(x)
    points = 30 + int(math.sqrt(count))
    place = torch.arange(1, points + 1, dtype=torch.float64) - 0.5
    quartile = x[max(int(count / 4 + 0.5) - 1, 0)]
    theta = 1 / x[-1] + (1 - (points / place).sqrt()) / (3 * quartile)  # (points,)
    theta = torch.where(theta == 0, 1e-12 / x[-1], theta)
    shape = torch.log1p(-theta[:, None] * x).mean(dim=1)
    likelihood = count * ((-theta / shape).log() - shape - 1)
    mean = (likelihood.softmax(dim=0) * theta).sum()
    k = torch.log1p(-mean * x).mean()
    return float(k), float(-k / mean)
