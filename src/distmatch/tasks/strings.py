"""The strings of the exact lab's languages, and how far they are from each other."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """All strings of `min_length` to `length` letters.

    Attributes:
        letters: The alphabet.
        length: The longest string.
        min_length: The shortest; equal to `length` if all strings are equally long.
    """

    letters: str
    length: int
    min_length: int

    @property
    def lengths(self) -> range:
        """Shortest to longest."""
        return range(self.min_length, self.length + 1)

    @property
    def size(self) -> int:
        """How many strings there are."""
        return sum(len(self.letters) ** length for length in self.lengths)

    def strings(self) -> Iterator[str]:
        """Every string, short ones first, alphabetically among equally long ones."""
        for length in self.lengths:
            yield from map("".join, itertools.product(self.letters, repeat=length))

    def draw(self, rng: random.Random, length: int | None = None) -> str:
        """A uniformly random string, of one length if that is given."""
        if length is None:
            length = self._draw_length(rng)
        return "".join(self.letters[rng.randrange(len(self.letters))] for _ in range(length))

    def _draw_length(self, rng: random.Random) -> int:
        """By the number of strings; a language of one length draws nothing."""
        if self.min_length == self.length:
            return self.length
        place = rng.randrange(self.size)
        for length in self.lengths:
            place -= len(self.letters) ** length
            if place < 0:
                return length
        raise AssertionError("place is below the size of the language")


def hamming(one: str, other: str) -> int | None:
    """Places in which two strings differ; None if they are not equally long."""
    return sum(a != b for a, b in zip(one, other, strict=True)) if len(one) == len(other) else None


def ball(language: Language, radius: int) -> int:
    """How many strings of full length are within Hamming distance `radius` of one."""
    others = len(language.letters) - 1
    return sum(math.comb(language.length, d) * others**d for d in range(min(radius, language.length) + 1))


def within(language: Language, centre: str, radius: int) -> Iterator[tuple[str, int]]:
    """Strings up to `radius` letters different from `centre`, with that distance, nearest first."""
    for distance in range(radius + 1):
        for places in itertools.combinations(range(len(centre)), distance):
            others = [[x for x in language.letters if x != centre[place]] for place in places]
            for letters in itertools.product(*others):
                changed = list(centre)
                for place, letter in zip(places, letters, strict=True):
                    changed[place] = letter
                yield "".join(changed), distance
