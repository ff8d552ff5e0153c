"""From easy to hard: the level of a training prompt follows from its place in the run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from distmatch.tasks.base import Instance, Split, Task
from distmatch.tasks.forwarding import ForwardingTask
from distmatch.tasks.mixture import Mixture

STREAM = 10**9
"""As in `distmatch.data.rollouts`: run seed s trains on instances s*STREAM, s*STREAM + 1, ..."""


class Curriculum(ForwardingTask):
    """A mixture whose training prompts get harder.

    Prompt p of a run, counted from 0 whatever the run's seed, has the last level that starts at or before p:
    a pure function of the index, so a resumed run goes on where it stood. Held-out prompts stay at one level,
    so that evaluations are comparable throughout.

    Args:
        tasks: Makers of the members by name: each is called with `level=...`.
        starts: First prompt of each level, in ascending order from 0.
        held_out: Level of `val` and `test`.
        weights: As in `Mixture`.
        categories: As in `Mixture`.

    Raises:
        ValueError: Starts are not ascending from 0, or as in `Mixture`.
    """

    name = "curriculum"

    def __init__(
        self,
        tasks: Mapping[str, Callable[..., Task]],
        starts: Mapping[str, int],
        held_out: str,
        weights: Mapping[str, float] | None = None,
        categories: Mapping[str, str] | None = None,
    ) -> None:
        _check_starts(starts)
        self.starts = dict(starts)
        self.held_out = held_out
        self.stages = {
            level: Mixture({name: make(level=level) for name, make in tasks.items()}, weights, categories)
            for level in {**self.starts, held_out: 0}
        }

    def level_of(self, split: Split, index: int) -> str:
        """The level of the instance at that place."""
        if split != "train":
            return self.held_out
        prompt = index % STREAM
        return [level for level, start in self.starts.items() if start <= prompt][-1]

    def instance(self, split: Split, index: int) -> Instance:
        """What the mixture at the level of that place has there."""
        return self.stages[self.level_of(split, index)].instance(split, index)

    def categories(self) -> dict[str, str]:
        """As in the mixtures, which agree."""
        return self.stages[self.held_out].categories()

    def problem(self, instance: Instance) -> Task:
        """The member that made the instance."""
        if instance.level not in self.stages:
            raise ValueError(f"level {instance.level!r} is not of this curriculum: {', '.join(self.stages)}")
        return self.stages[instance.level].problem(instance)


def _check_starts(starts: Mapping[str, int]) -> None:
    places = list(starts.values())
    if not all(isinstance(place, int) and not isinstance(place, bool) for place in places):
        raise ValueError(f"starts={dict(starts)}: the first prompt of each level must be a whole number")
    if not places or places[0] != 0 or any(a >= b for a, b in itertools.pairwise(places)):
        raise ValueError(f"starts={dict(starts)}: levels must start at ascending prompts, the first at 0")
