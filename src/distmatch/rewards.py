"""From verdict to scalar: reward definitions, and the one place where quality and reward are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from distmatch.tasks.base import Instance, Task, Verdict, quality


class Reward(Protocol):
    """A scalar for one verdict."""

    def __call__(self, verdict: Verdict, quality: float, length: int = 0) -> float:
        """The reward of one completion.

        Args:
            verdict: What the verifier found.
            quality: Ratio to the reference, 0 if infeasible.
            length: Sampled tokens, EOS included; 0 where they were not counted.
        """


@dataclass(frozen=True)
class NPPaper:
    """0.1 if formatted, plus the quality ratio if feasible (DMPO, section 4.3).

    Args:
        clip_quality: Cut quality at 1, which an answer better than a heuristic reference exceeds. The papers
            do not.
    """

    clip_quality: bool = False

    def __call__(self, verdict: Verdict, quality: float, length: int = 0) -> float:
        """The reward of one completion."""
        bonus = 0.1 if verdict.formatted else 0.0
        return bonus + (_cut(quality, self.clip_quality) if verdict.feasible else 0.0)


@dataclass(frozen=True)
class NPCode:
    """+1 if formatted and -1 if not, plus the quality ratio if feasible and -1.5 if not (NP-Engine's code).

    "Formatted" is the same claim in all rewards: an answer in an accepted shape follows `Answer:`. NP-Engine
    pays for the bare marker.

    Args:
        clip_quality: Cut quality at 1.
    """

    clip_quality: bool = False

    def __call__(self, verdict: Verdict, quality: float, length: int = 0) -> float:
        """The reward of one completion."""
        form = 1.0 if verdict.formatted else -1.0
        return form + (_cut(quality, self.clip_quality) if verdict.feasible else -1.5)


@dataclass(frozen=True)
class NPGated:
    """The quality ratio if formatted and feasible, else 0: form alone never pays.

    Args:
        clip_quality: Cut quality at 1.
    """

    clip_quality: bool = False

    def __call__(self, verdict: Verdict, quality: float, length: int = 0) -> float:
        """The reward of one completion."""
        return _cut(quality, self.clip_quality) if verdict.formatted and verdict.feasible else 0.0


@dataclass(frozen=True)
class Binary:
    """1 for success, a feasible answer, else 0."""

    def __call__(self, verdict: Verdict, quality: float, length: int = 0) -> float:
        """The reward of one completion."""
        return 1.0 if verdict.feasible else 0.0


@dataclass(frozen=True)
class Overlong:
    """Any reward plus a soft penalty on length: DAPO's overlong shaping (arXiv 2503.14476, eq. 13).

        penalty = 0                                      up to limit - buffer tokens
        penalty = -weight (length - limit + buffer) / buffer    from there, down to -weight at the limit

    It is part of what is trained on only: success and quality stay what they are. A loss that matches a
    distribution matches the one of the penalised reward.

    Args:
        base: The reward that is added to.
        limit: The length limit of completions in tokens (`data.max_tokens`).
        buffer: Tokens below the limit in which the penalty grows; None is a fifth of the limit, as in the
            paper (4,096 of 20,480).
        weight: Penalty at the limit; 1 in the paper, whose rewards are 1 and -1.

    Raises:
        ValueError: A value is out of range.
    """

    base: Reward
    limit: int
    buffer: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.limit < 1 or (self.buffer is not None and not 1 <= self.buffer <= self.limit):
            raise ValueError(
                f"reward.buffer={self.buffer} must be null or between 1 and reward.limit={self.limit}"
            )
        if self.weight < 0:
            raise ValueError(f"reward.weight={self.weight} must not be negative: that would pay for length")

    def __call__(self, verdict: Verdict, quality: float, length: int = 0) -> float:
        """The reward of one completion."""
        return self.base(verdict, quality, length) + self.penalty(length)

    def penalty(self, length: int) -> float:
        """What a completion of so many tokens loses, from -weight to 0."""
        buffer = self.buffer or max(1, self.limit // 5)
        excess = min(length, self.limit) - (self.limit - buffer)
        return -self.weight * max(0, excess) / buffer


def _cut(quality: float, clip: bool) -> float:
    return min(quality, 1.0) if clip else quality


@dataclass(frozen=True)
class Outcome:
    """All that is recorded about one completion.

    Attributes:
        verdict: What the verifier found.
        success: Whether the answer is feasible.
        quality: Ratio to the reference, 0 if infeasible; above 1 where a heuristic reference was beaten.
        reward: What the policy is trained on.
        reference: Value of the reference solution.
    """

    verdict: Verdict
    success: bool
    quality: float
    reward: float
    reference: float


def score(task: Task, instance: Instance, completion: str, reward: Reward, length: int = 0) -> Outcome:
    """Verify a completion and compute success, quality and reward.

    Args:
        task: The task, or a mixture that holds the instance's task.
        instance: The question.
        completion: What the model wrote, any text.
        reward: One of the definitions of this module.
        length: Tokens of the completion as sampled, for rewards that look at them; 0 if not counted.

    Raises:
        RuntimeError: The answer beats a proved optimum (verifier or solver is wrong), or the reward is not
            finite.
    """
    verdict = task.verify(instance, completion)
    reference = task.reference(instance)
    ratio = 0.0
    if verdict.feasible:
        ratio = quality(verdict.value, reference.value, task.problem(instance).sense)  # type: ignore[arg-type]
        if reference.proved and ratio > 1 + 1e-9:
            raise RuntimeError(f"{instance.id}: {verdict.value} beats the proved optimum {reference.value}")
    scalar = float(reward(verdict, ratio, length))
    if not math.isfinite(scalar):
        raise RuntimeError(f"{instance.id}: reward {scalar} of {reward} is not finite")
    return Outcome(verdict, verdict.feasible, ratio, scalar, reference.value)
