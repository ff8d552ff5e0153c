"""The record that every held-out metric reads: how the n answers to one prompt did."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

Ratio = tuple[float, float]
"""A numerator and a denominator, to be summed over prompts before they are divided."""


@dataclass(frozen=True)
class GroupScore:
    """The n answers to one prompt, scored.

    Attributes:
        task: Name of the prompt's task.
        category: The task's category in the benchmark.
        successes: Whether each answer is feasible (or right), n of them.
        qualities: Quality ratio of each answer, 1 for one as good as the reference; 0 for an infeasible one.
        keys: Canonical form of each answer's solution, None if it has none.

    Raises:
        ValueError: No answers, unequal lengths, a quality that is not finite, or quality without success.
    """

    task: str
    category: str
    successes: Sequence[bool]
    qualities: Sequence[float]
    keys: Sequence[str | None]

    def __post_init__(self) -> None:
        sizes = {len(self.successes), len(self.qualities), len(self.keys)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"{self.task}: successes, qualities and keys must be of one length above 0, got {sizes}"
            )
        if not all(math.isfinite(q) for q in self.qualities):
            raise ValueError(f"{self.task}: qualities must be finite, got {list(self.qualities)}")
        if any(q != 0 and not s for s, q in zip(self.successes, self.qualities, strict=True)):
            raise ValueError(f"{self.task}: an answer without success must have quality 0")

    @property
    def n(self) -> int:
        """Number of answers."""
        return len(self.successes)

    @property
    def feasible(self) -> int:
        """Number of successful answers."""
        return sum(map(bool, self.successes))

    @property
    def solutions(self) -> list[str]:
        """Keys of the successful answers that have one, with repeats."""
        return [
            key for success, key in zip(self.successes, self.keys, strict=True) if success and key is not None
        ]


def _ratio_compute(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The other half of every `_<metric>_update` of this package; nan where nothing was counted."""
    return torch.where(denominator == 0, torch.nan, numerator / denominator)


class RatioMetric(Metric):
    """Sum of numerators over sum of denominators of prompts. Two ranks give what one gives.

    Subclasses say what a prompt contributes. `compute` is nan where there is nothing to divide by.
    """

    full_state_update = False
    numerator: Tensor
    denominator: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("numerator", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("denominator", torch.zeros(()), dist_reduce_fx="sum")

    @abstractmethod
    def contribution(self, score: GroupScore) -> Ratio:
        """What one prompt adds."""

    def update(self, *scores: GroupScore) -> None:
        """Add prompts."""
        for score in scores:
            numerator, denominator = self.contribution(score)
            self.numerator += numerator
            self.denominator += denominator

    def compute(self) -> Tensor:
        """The ratio over all prompts of all ranks, a scalar."""
        return _ratio_compute(self.numerator, self.denominator)
