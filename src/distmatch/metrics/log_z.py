"""log Z by importance sampling, and how far one estimate may be trusted.

A prompt's N trajectories o_i, drawn from a proposal p, give log-weights l_i. The estimate g solves

    mean over i of exp(l_i - s_i * g) = 1

With scales s_i = 1 (the default, `scale=None`) that is g = logsumexp(l) - log N; with l = log pi_ref - log p
+ beta * r it estimates the log of Z = sum over o of pi_ref(o) exp(beta * r(o)), without bias in Z and with a
bias of order 1/N in log Z (Jensen). Other scales are for `token_mean_fixed_point` of
`distmatch.data.proposal_records`. At g the terms of the mean are called the relative weights: w_i, of mean 1.

Everything is in nats and float64, over the last dimension, (..., N) -> (...,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

MAX_STEPS = 200
"""Newton steps; a dozen do, and the worst case of very different lengths stays far below this."""

FLOOR = -700.0
"""Relative log-weights below this count as this: exp stays above zero, and no figure changes."""


def log_z(log_weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """The estimate g, (..., N) -> (...,); -inf if every weight is zero.

    With scales the log of the mean is convex and falls in g, so a Newton step never overshoots the root to
    the right, and from the left the steps rise to it.

    Args:
        log_weights: Finite or -inf.
        scale: Above zero, of the same shape; None for ones.

    Raises:
        ValueError: A log-weight is nan or +inf, or a scale is not above zero.
    """
    log_weights = _checked(log_weights)
    count = math.log(log_weights.shape[-1])
    if scale is None:
        return log_weights.logsumexp(dim=-1) - count
    if not bool((scale > 0).all()):
        raise ValueError("scales (lengths) must be above 0: an answer has at least one token")
    scale = scale.double()
    root = (log_weights / scale).amax(dim=-1)
    for _ in range(MAX_STEPS):
        moved = log_weights - scale * root[..., None]
        excess = moved.logsumexp(dim=-1) - count
        slope = (moved.softmax(dim=-1) * scale).sum(dim=-1)
        step = torch.where(root.isneginf(), 0, excess / slope)  # no weight at all: there is no root
        root = root + step
        if bool((step.abs() <= 1e-13 * (1 + root.abs())).all()):
            break
    return root


def relative_log_weights(log_weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """Logs of the relative weights, which have mean 1, (..., N) -> (..., N)."""
    value = log_z(log_weights, scale)[..., None]
    shift = value if scale is None else scale.double() * value
    return (log_weights.double() - shift).clamp(min=FLOOR)


def effective_sample_size(log_weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """ESS = (sum of w)^2 / sum of w^2, between 1 and N (Kong 1992), (..., N) -> (...,)."""
    relative = relative_log_weights(log_weights, scale)
    return (2 * relative.logsumexp(dim=-1) - (2 * relative).logsumexp(dim=-1)).exp()


def largest_weight(log_weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """The share of the largest weight in the sum of all, between 1/N and 1, (..., N) -> (...,)."""
    return relative_log_weights(log_weights, scale).softmax(dim=-1).amax(dim=-1)


def variance(log_weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """Var(w) / (N * mean(s * w)^2): the delta method's variance of log Z, in nats squared.

    Without scales it is Var(w) / (N * Zbar^2) of the plain weights. Var has N - 1 below.

    Raises:
        ValueError: N is 1.
    """
    weights, slope = _weights_and_slope(log_weights, scale)
    return weights.var(dim=-1) / (weights.shape[-1] * slope.square())


def bias(log_weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """The delta method's bias of log Z in nats, of order 1/N; -Var(w) / (2 N * Zbar^2) without scales.

    With scales it is the second-order bias of a root: with h = w - 1 as a function of g,
    E[h h'] / E[h']^2 - E[h''] E[h^2] / (2 E[h']^3), over N.
    """
    if scale is None:
        return -variance(log_weights) / 2
    weights, slope = _weights_and_slope(log_weights, scale)
    scale, count = scale.double(), weights.shape[-1]
    cross = ((weights - 1) * scale * weights).sum(dim=-1) / (count - 1)
    curvature = (scale.square() * weights).mean(dim=-1)
    spread = weights.var(dim=-1)
    return (curvature * spread / (2 * slope**3) - cross / slope.square()) / count


def jackknife(log_weights: Tensor, scale: Tensor | None = None) -> Tensor:
    """The estimate without its bias of order 1/N: N * g - (N - 1) * mean of the N estimates without one.

    Raises:
        ValueError: N is 1.
    """
    log_weights, count = _checked(log_weights), log_weights.shape[-1]
    if count < 2:
        raise ValueError("a jackknife needs at least 2 weights")
    # Estimates without one in full, N logsumexps of N - 1: a difference of sums would lose a dominant weight.
    others = torch.arange(count).expand(count, count)[~torch.eye(count, dtype=torch.bool)]
    others = others.view(count, count - 1).to(log_weights.device)
    left_out = log_z(log_weights[..., others], None if scale is None else scale[..., others])
    return count * log_z(log_weights, scale) - (count - 1) * left_out.mean(dim=-1)


def bootstrap_interval(
    log_weights: Tensor,
    scale: Tensor | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """A studentised bootstrap interval of log Z for one prompt's weights, (N,).

    In every resample the distance of its estimate from the full one is divided by its own standard error
    (delta method); the quantiles of these ratios scale the full one's. The weights are skewed, and
    percentiles of the resampled estimates alone hold the truth too rarely.

    Args:
        log_weights: (N,), N at least 2.
        scale: (N,) or None.
        level: Chance that the interval should hold the truth.
        resamples: Number of resamples; the same ones for every prompt of the same N.
        seed: Of the resamples.
    """
    value, error = log_z(log_weights, scale), variance(log_weights, scale).sqrt()
    if not bool(error > 0):
        return float(value), float(value)
    weights = relative_log_weights(log_weights, scale).exp()
    counts = _resamples(len(weights), resamples, seed)
    moved, own = _mean_errors(weights, counts) if scale is None else _root_errors(weights, counts, scale)
    tail = (1 - level) / 2
    # A resample of equal weights has no error of its own; its distance then counts in the full one's.
    ratio = moved / torch.where(own > 1e-9 * error, own, error)
    high, low = torch.quantile(ratio, torch.tensor([tail, 1 - tail], dtype=ratio.dtype)).tolist()
    return float(value - low * error), float(value - high * error)


def subsample_variance(
    log_weights: Tensor, size: int, scale: Tensor | None = None, *, rounds: int = 16, seed: int = 0
) -> Tensor:
    """Variance of log Z from `size` weights, by cutting shuffled ones into parts, (..., N) -> (...,).

    Args:
        log_weights: (..., N).
        size: At most N / 2.
        scale: (..., N) or None.
        rounds: Shuffles that are averaged over.
        seed: Of the shuffles.

    Raises:
        ValueError: There are no two parts of that size.
    """
    count = log_weights.shape[-1]
    parts = count // size
    if parts < 2:
        raise ValueError(f"{count} weights cannot be cut into two parts of {size}")
    rng = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(rounds):
        chosen = torch.randperm(count, generator=rng)[: parts * size].view(parts, size)
        value = log_z(log_weights[..., chosen], None if scale is None else scale[..., chosen])
        found.append(value.var(dim=-1))
    return torch.stack(found).mean(dim=0)


def halvings(count: int, smallest: int = 4) -> Sequence[int]:
    """Sample sizes count/2, count/4, ... of at least `smallest`, rising."""
    sizes = []
    while (count := count // 2) >= smallest:
        sizes.append(count)
    return sizes[::-1]


def _checked(log_weights: Tensor) -> Tensor:
    if bool(torch.isnan(log_weights).any()) or bool((log_weights == torch.inf).any()):
        raise ValueError("a log-weight is nan or infinite: the proposal gave a trajectory no probability")
    return log_weights.double()


def _weights_and_slope(log_weights: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Relative weights (..., N) and the mean of s * w, (...,)."""
    if log_weights.shape[-1] < 2:
        raise ValueError("the variance of one weight is not known: draw at least 2 samples a prompt")
    weights = relative_log_weights(log_weights, scale).exp()
    slope = weights.mean(dim=-1) if scale is None else (scale.double() * weights).mean(dim=-1)
    return weights, slope


@lru_cache(maxsize=4)
def _resamples(count: int, resamples: int, seed: int) -> Tensor:
    """How often each of `count` places is drawn in each resample, (resamples, count) float64."""
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (resamples, count), generator=rng)
    counts = torch.zeros(resamples, count, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts))


def _mean_errors(weights: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of every resample: its log Z minus the full one, and its standard error, both (R,)."""
    count = len(weights)
    mean = counts @ weights / count
    spread = (counts @ weights.square() / count - mean.square()).clamp(min=0) / (count - 1)
    return mean.log(), spread.sqrt() / mean


def _root_errors(weights: Tensor, counts: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a root: every resample is a mean over places with `counts` as further weights."""
    logs = counts.log() + weights.log()  # (R, N)
    wide = scale.double().expand_as(logs)
    moved = log_z(logs, wide)
    terms = (weights.log() - wide * moved[:, None]).exp()
    count = len(weights)
    mean, square = (counts * terms).mean(dim=1), (counts * terms.square()).mean(dim=1)
    spread = (square - mean.square()).clamp(min=0) / (count - 1)
    return moved, spread.sqrt() / (counts * wide * terms).mean(dim=1)
