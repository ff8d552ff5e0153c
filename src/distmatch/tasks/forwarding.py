"""What the tasks have in common whose instances belong to other tasks."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping

from distmatch.batch import Prompt, Style
from distmatch.tasks.base import Instance, Solution, Split, Task, Verdict


class ForwardingTask(Task):
    """A task whose instances are those of its members: `problem(instance)` answers for each.

    It has no `sense`, `category` or `level` of its own.
    """

    levels = ()

    @abstractmethod
    def instance(self, split: Split, index: int) -> Instance:
        """The instance at a place, as its member makes it."""

    @abstractmethod
    def categories(self) -> dict[str, str]:
        """The category of every member, by the member's name."""

    @abstractmethod
    def problem(self, instance: Instance) -> Task:
        """The member that the instance belongs to.

        Raises:
            ValueError: It belongs to none.
        """

    def reference(self, instance: Instance) -> Solution:
        """The member's reference, memoised there."""
        return self.problem(instance).reference(instance)

    def render(self, instance: Instance, style: Style) -> Prompt:
        """The question as the member asks it."""
        return self.problem(instance).render(instance, style)

    def verify(self, instance: Instance, completion: str) -> Verdict:
        """The member's verdict."""
        return self.problem(instance).verify(instance, completion)

    def solve(self, instance: Instance) -> Solution:
        """The member's heuristic."""
        return self.problem(instance).solve(instance)

    def solve_exact(self, instance: Instance) -> Solution:
        """The member's exact solver."""
        return self.problem(instance).solve_exact(instance)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """The member's demonstration."""
        return self.problem(instance).demonstrate(instance, rng)

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Refused: the members generate."""
        raise TypeError(f"task {self.name} generates nothing itself: use instance(split, index)")

    def format(self, answer: object) -> str:
        """Refused: an answer alone does not say whose it is."""
        raise TypeError(f"task {self.name} formats nothing itself: use problem(instance).format(answer)")
