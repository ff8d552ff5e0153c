"""Random draws that are the same on every machine: built on `random`, `randrange` and `getrandbits` only.

`random.Random.shuffle`, `sample` and `choice` may change between Python versions; these three methods may
not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def between(rng: random.Random, bounds: tuple[int, int]) -> int:
    """A uniform integer between two bounds, both included."""
    low, high = bounds
    return low + rng.randrange(high - low + 1)


def uniform(rng: random.Random, bounds: tuple[float, float]) -> float:
    """A uniform real number between two bounds."""
    low, high = bounds
    return low + (high - low) * rng.random()


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One item, uniformly."""
    return items[rng.randrange(len(items))]


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    """The items in a uniformly random order (Fisher-Yates)."""
    order = list(items)
    for last in range(len(order) - 1, 0, -1):
        other = rng.randrange(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def gumbel(rng: random.Random) -> float:
    """A standard Gumbel variate: the largest of `score + gumbel` is a draw from softmax(score)."""
    # Strictly inside (0, 1): 52 bits plus a half is exact in a double, so that neither logarithm meets zero.
    u = (rng.getrandbits(52) + 0.5) / 2**52
    return -math.log(-math.log(u))
