"""The landscapes of the exact lab: which strings of a language are worth how much.

A landscape is a frozen recipe: a pure function of a language and a random generator that gives the planted
strings and their values. Every string that is not planted is worth 0, and the best are worth 1.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from distmatch.tasks.strings import Language, ball, hamming, within

Values = dict[str, float]
"""Planted strings, in the order of planting, and their values."""
MAX_PLANTED = 100_000  # landscapes that grade a whole neighbourhood hold every string of it


class Recipe(Protocol):
    """How a landscape is planted."""

    name: ClassVar[str]

    def check(self, language: Language) -> None:
        """Raise ValueError, naming key and value, unless any generator can plant this in the language."""

    def plant(self, language: Language, rng: random.Random) -> Values:
        """Planted strings and values, using `random`, `randrange` and `getrandbits` of `rng` only."""


# ---- the landscapes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EqualModes:
    """Best strings anywhere, and others half as good: how many does a policy keep?

    Args:
        modes: Strings of value 1.
        near: Strings of value 0.5.
    """

    name: ClassVar[str] = "equal_modes"
    modes: int = 8
    near: int = 32

    def check(self, language: Language) -> None:
        """See `Recipe.check`."""
        _at_least("modes", self.modes, 1)
        _at_least("near", self.near, 0)
        if self.modes + self.near > language.size:
            raise ValueError(
                f"modes={self.modes} and near={self.near} strings cannot be planted among {language.size}"
            )

    def plant(self, language: Language, rng: random.Random) -> Values:
        """See `Recipe.plant`."""
        planted: Values = {}
        while len(planted) < self.modes + self.near:
            planted.setdefault(language.draw(rng), 1.0 if len(planted) < self.modes else 0.5)
        return planted


@dataclass(frozen=True)
class BroadAndNarrow:
    """One best string on a hill and others alone on a plain, equally good: does a policy take only the hill?

    The hill has the full length. A string that differs from its top in d letters is worth
    1 - d / (radius + 1). Nothing next to a narrow one, at Hamming distance 1, is worth anything.

    Args:
        modes: Strings of value 1: the top of the hill and `modes - 1` narrow ones.
        radius: Hamming distance up to which the hill reaches.
    """

    name: ClassVar[str] = "broad_and_narrow"
    modes: int = 4
    radius: int = 2

    def check(self, language: Language) -> None:
        """See `Recipe.check`."""
        _at_least("modes", self.modes, 2)
        if not 1 <= self.radius <= language.length:
            raise ValueError(f"radius={self.radius} must be between 1 and length={language.length}")
        _affordable(ball(language, self.radius), f"radius={self.radius}")
        plain = language.size - ball(language, self.radius + 1)
        if self.modes - 1 > plain // ball(language, 1):
            raise ValueError(
                f"modes={self.modes} with radius={self.radius} leaves no room for {self.modes - 1} isolated "
                f"strings off the hill ({plain} are free of it); lower modes or radius, or raise length"
            )

    def plant(self, language: Language, rng: random.Random) -> Values:
        """See `Recipe.plant`."""
        top = language.draw(rng, language.length)
        values = {top: 1.0}

        def is_free(string: str) -> bool:
            return _far(string, top, self.radius + 2)

        values |= dict.fromkeys(isolated(language, rng, self.modes - 1, is_free), 1.0)
        hill = within(language, top, self.radius)
        return values | {s: 1 - d / (self.radius + 1) for s, d in hill if d > 0}


@dataclass(frozen=True)
class Deceptive:
    """A slope over all strings of full length leads to a worse optimum; the best are farthest from it, alone.

    A string that differs from the top of the slope in d letters is worth trap * (1 - d / length). The best
    strings differ from it in every letter.

    Args:
        modes: Strings of value 1.
        trap: Value at the top of the slope, between 0 and 1.
    """

    name: ClassVar[str] = "deceptive"
    modes: int = 2
    trap: float = 0.8

    def check(self, language: Language) -> None:
        """See `Recipe.check`."""
        _at_least("modes", self.modes, 1)
        if not 0 < self.trap < 1:
            raise ValueError(f"trap={self.trap} must be above 0 and below 1, the value of the best strings")
        alphabet = len(language.letters)
        _affordable(alphabet**language.length, f"length={language.length}")
        room = (alphabet - 1) ** language.length // (1 + language.length * (alphabet - 2))
        if self.modes > max(1, room):
            raise ValueError(
                f"modes={self.modes} isolated strings cannot differ from the trap in all "
                f"{language.length} letters of an alphabet of {alphabet}; at most {max(1, room)} surely can"
            )

    def plant(self, language: Language, rng: random.Random) -> Values:
        """See `Recipe.plant`."""
        top = language.draw(rng, language.length)

        def is_free(string: str) -> bool:
            return hamming(string, top) == language.length

        values = dict.fromkeys(isolated(language, rng, self.modes, is_free), 1.0)
        slope = within(language, top, language.length - 1)
        return values | {s: self.trap * (1 - d / language.length) for s, d in slope}


@dataclass(frozen=True)
class Needle:
    """One best string and nothing else: is it found at all, and is the rest left as it was?"""

    name: ClassVar[str] = "needle"

    def check(self, language: Language) -> None:
        """See `Recipe.check`; every language has room."""

    def plant(self, language: Language, rng: random.Random) -> Values:
        """See `Recipe.plant`."""
        return {language.draw(rng): 1.0}


@dataclass(frozen=True)
class Lengths:
    """Best strings of every length, as many of each: does a policy keep the long and the short?

    Args:
        modes: Strings of value 1, dealt to the lengths in turn from the shortest.
        near: Strings of value 0.5, dealt likewise.
    """

    name: ClassVar[str] = "lengths"
    modes: int = 8
    near: int = 8

    def check(self, language: Language) -> None:
        """See `Recipe.check`."""
        if language.min_length == language.length:
            raise ValueError(
                f"landscape=lengths needs min_length={language.min_length} below length={language.length}"
            )
        _at_least("modes", self.modes, 2)
        _at_least("near", self.near, 0)
        for length in language.lengths:
            wanted = sum(
                x == length for x in (*self._deal(language, self.modes), *self._deal(language, self.near))
            )
            if wanted > len(language.letters) ** length:
                raise ValueError(
                    f"modes={self.modes} and near={self.near} ask for {wanted} strings of length {length}, "
                    f"and there are {len(language.letters) ** length}; lower them or raise min_length"
                )

    def plant(self, language: Language, rng: random.Random) -> Values:
        """See `Recipe.plant`."""
        planted: Values = {}
        for value, count in ((1.0, self.modes), (0.5, self.near)):
            for length in self._deal(language, count):
                string = language.draw(rng, length)
                while string in planted:
                    string = language.draw(rng, length)
                planted[string] = value
        return planted

    def _deal(self, language: Language, count: int) -> list[int]:
        return list(itertools.islice(itertools.cycle(language.lengths), count))


LANDSCAPES: Mapping[str, type[Recipe]] = {
    recipe.name: recipe for recipe in (EqualModes, BroadAndNarrow, Deceptive, Needle, Lengths)
}
"""Every landscape by its name."""


# ---- neighbourhoods ----------------------------------------------------------------------------------------


def isolated(language: Language, rng: random.Random, count: int, is_free: Callable[[str], bool]) -> list[str]:
    """Random strings among the free ones of which no two differ in one letter only."""
    candidates = [string for string in language.strings() if is_free(string)]
    chosen: list[str] = []
    while len(chosen) < count:
        chosen.append(candidates[rng.randrange(len(candidates))])
        candidates = [string for string in candidates if _far(string, chosen[-1], 2)]
    return chosen


def _far(one: str, other: str, distance: int) -> bool:
    """Whether two strings differ in at least so many letters, or are not equally long."""
    found = hamming(one, other)
    return found is None or found >= distance


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{key}={value} must be at least {least}")


def _affordable(planted: int, what: str) -> None:
    if planted > MAX_PLANTED:
        raise ValueError(f"{what} would plant {planted} strings, more than {MAX_PLANTED}; lower it")
