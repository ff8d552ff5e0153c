"""Several tasks as one: prompts of all members in fixed shares, without randomness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from distmatch.tasks.base import Instance, Split, Task
from distmatch.tasks.forwarding import ForwardingTask

LONGEST_CYCLE = 1000


class Mixture(ForwardingTask):
    """A weighted mixture of named tasks.

    Position t goes to the member that lags most behind its share, so any stretch of the stream holds every
    member in its share to within about one (equal weights: round robin), and each member's own instances 0,
    1, 2, ... appear in order without gaps. The pattern repeats, so any position is found at once. Instances
    are the members' own and carry their task, level, seed and index; a mixture has no `sense`, `category` or
    `level` of its own: ask `problem(instance)`.

    Args:
        tasks: Members by name.
        weights: Shares by the same names, any positive scale; equal if None.
        categories: Categories by the same names, for members that this suite sorts otherwise.

    Raises:
        ValueError: No members, two members of the same task, or weights or categories that do not fit.
    """

    name = "mixture"

    def __init__(
        self,
        tasks: Mapping[str, Task],
        weights: Mapping[str, float] | None = None,
        categories: Mapping[str, str] | None = None,
    ) -> None:
        if not tasks:
            raise ValueError("empty task: a mixture needs at least one member")
        self.tasks: dict[str, Task] = {}
        for member in tasks.values():
            if member.name in self.tasks:
                raise ValueError(
                    f"two members are the task {member.name!r}; each task may appear once in a mixture"
                )
            self.tasks[member.name] = member
        self._categories = _checked_categories(tasks, categories or {})
        self._cycle = _cycle(_checked_weights(tasks, weights))

    def instance(self, split: Split, index: int) -> Instance:
        """The next instance of the member that position `index` belongs to."""
        member, own_index = self._assignment(index)
        return member.instance(split, own_index)

    def categories(self) -> dict[str, str]:
        """The categories of the suite, or else the members' own, by the members' names."""
        return dict(self._categories)

    def problem(self, instance: Instance) -> Task:
        """The member that made the instance."""
        if instance.task not in self.tasks:
            raise ValueError(
                f"task {instance.task!r} is not a member of the mixture of {', '.join(self.tasks)}"
            )
        return self.tasks[instance.task]

    def _assignment(self, index: int) -> tuple[Task, int]:
        if index < 0:
            raise ValueError(f"index={index} must not be negative")
        rounds, place = divmod(index, len(self._cycle))
        chosen = self._cycle[place]
        own_index = rounds * self._cycle.count(chosen) + self._cycle[:place].count(chosen)
        return list(self.tasks.values())[chosen], own_index


def _cycle(weights: list[float]) -> list[int]:
    """The members' positions in the shortest pattern that holds their shares exactly, or to a thousandth."""
    exact = [Fraction(weight).limit_denominator(1000) for weight in weights]
    period = math.lcm(*((weight / sum(exact)).denominator for weight in exact))
    if min(exact) == 0 or period > LONGEST_CYCLE:
        exact = [Fraction(max(1, round(LONGEST_CYCLE * weight / sum(weights)))) for weight in weights]
        period = int(sum(exact))
    counts, order = [0] * len(weights), []
    for due in range(1, period + 1):
        lag = [weight * due - count * sum(exact) for weight, count in zip(exact, counts, strict=True)]
        order.append(lag.index(max(lag)))
        counts[order[-1]] += 1
    return order


def _checked_categories(tasks: Mapping[str, Task], given: Mapping[str, str]) -> dict[str, str]:
    unknown = [name for name in given if name not in tasks]
    if unknown:
        raise ValueError(f"categories name {', '.join(unknown)}; members are {', '.join(tasks)}")
    for name, category in given.items():
        if not isinstance(category, str) or not category:
            raise ValueError(f"category {category!r} of {name!r} must be a name")
    return {member.name: given.get(name, member.category) for name, member in tasks.items()}


def _checked_weights(tasks: Mapping[str, Task], weights: Mapping[str, float] | None) -> list[float]:
    if weights is None:
        return [1.0] * len(tasks)
    if set(weights) != set(tasks):
        raise ValueError(f"weights name {', '.join(weights)}; members are {', '.join(tasks)}")
    for name, weight in weights.items():
        if not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"weight {weight} of {name!r} must be positive and finite")
    return [float(weights[name]) for name in tasks]
