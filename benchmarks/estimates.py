"""Normalised quality with bootstrap intervals over instances; see `reads_the_instance`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distmatch.study.comparison.report import number

Array = np.ndarray
RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A figure, its 95 % interval, and the number of instances that it stands on; nan if there are none."""

    value: float
    low: float
    high: float
    instances: int

    def __str__(self) -> str:
        if not self.instances:
            return "–"
        return f"{number(self.value)} [{number(self.low)}, {number(self.high)}]"


UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"), 0)


def normalised(ratios: Array, baseline: Array, weights: Array) -> Array:
    """The normalised quality of each resample.

    Args:
        ratios: Quality by instance, (m,).
        baseline: Quality of random answers, (m,).
        weights: How often each instance counts, (resamples, m).
    """
    room = weights.sum(axis=1) - weights @ baseline
    return np.divide(
        weights @ (ratios - baseline), room, out=np.full(len(weights), np.nan), where=room > 1e-12
    )


def estimate(baseline: Array, plus: Array, minus: Array | None = None) -> Estimate:
    """Normalised quality of `plus`, or its excess over that of `minus`, on the instances where all are known.

    Args:
        baseline: Quality of random answers by instance, (m,).
        plus: Quality by instance, nan where unknown, (m,).
        minus: The same of what it is compared with.
    """
    parts = [plus] if minus is None else [plus, minus]
    known = ~np.isnan(parts).any(axis=0)
    m = int(known.sum())
    if not m:
        return UNKNOWN
    resampled = np.random.default_rng(0).multinomial(m, np.full(m, 1 / m), size=RESAMPLES)
    weights = np.vstack([np.ones(m), resampled])  # the first row is the sample itself
    values = [normalised(part[known], baseline[known], weights) for part in parts]
    figures = values[0] if minus is None else values[0] - values[1]
    low, high = np.nanpercentile(figures[1:], [2.5, 97.5])
    return Estimate(float(figures[0]), float(low), float(high), m)
