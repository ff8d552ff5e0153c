"""The exact lab: a language so small that all its strings, and distributions over them, can be enumerated."""

from __future__ import annotations

import dataclasses
import random
import string
from collections.abc import Iterator, Mapping
from typing import ClassVar

from distmatch.batch import Prompt, Style
from distmatch.tasks.base import SPLITS, Instance, Solution, Split, Task, Verdict, instance_rng
from distmatch.tasks.landscapes import LANDSCAPES, EqualModes, Recipe
from distmatch.tasks.strings import Language

MAX_TEXT = 10_000  # longer completions are not read: no string of the lab needs it


class Lab(Task):
    """Strings over a small alphabet, of which a few planted ones are worth something.

    Values go from 0, feasible but worthless, to 1. A string that is too short or too long, or with a foreign
    letter, is infeasible. The answer is the whole completion, `a c b`, white space ignored.

    Args:
        alphabet: Number of letters, from 2 to 26.
        length: Letters in the longest strings.
        min_length: Letters in the shortest; None for strings of one length.
        landscape: A name of `distmatch.tasks.landscapes.LANDSCAPES`.
        modes: Strings of value 1. This and the next three are settings of some landscapes; None for the
            landscape's own.
        near: Strings of value 0.5.
        radius: Hamming distance that a hill reaches.
        trap: Value of a worse optimum.
        prompts: Number of different landscapes.
        seed: Seed of the landscapes.

    Raises:
        ValueError: A number is out of range, more is planted than there is room for, or the landscape does
            not know a setting.
    """

    name: ClassVar[str] = "lab"
    category: ClassVar[str] = "lab"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = ("tiny",)

    def __init__(
        self,
        alphabet: int = 4,
        length: int = 5,
        min_length: int | None = None,
        landscape: str = "equal_modes",
        modes: int | None = None,
        near: int | None = None,
        radius: int | None = None,
        trap: float | None = None,
        prompts: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__("tiny", seed)
        if not 2 <= alphabet <= 26:
            raise ValueError(f"alphabet={alphabet} must be between 2 and 26")
        shortest = length if min_length is None else min_length
        if length < 1 or prompts < 1:
            raise ValueError(f"length={length} and prompts={prompts} must be at least 1")
        if not 1 <= shortest <= length:
            raise ValueError(f"min_length={shortest} must be between 1 and length={length}")
        self.language = Language(string.ascii_lowercase[:alphabet], length, shortest)
        settings = {"modes": modes, "near": near, "radius": radius, "trap": trap}
        self.landscape = _recipe(landscape, settings)
        self.landscape.check(self.language)
        self.prompts = prompts

    @property
    def letters(self) -> str:
        """The alphabet."""
        return self.language.letters

    @property
    def length(self) -> int:
        """Letters in the longest strings."""
        return self.language.length

    def instance(self, split: Split, index: int) -> Instance:
        """Landscape `index` modulo `prompts`, the same in all splits.

        The lab asks which distribution a loss reaches, not whether it generalises: it must be measured on the
        very prompts that were trained on, so the splits are equal on purpose.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
        prompt = index % self.prompts
        landscape = self.generate(instance_rng(self.name, *self._shape(), self.seed, prompt))
        return Instance(self.name, self.level, split, self.seed, prompt, {"prompt": prompt, **landscape})

    def _shape(self) -> tuple[object, ...]:
        """What besides seed and number decides a landscape; its oldest form for the oldest landscape."""
        shape = (len(self.letters), self.length, *dataclasses.astuple(self.landscape))
        if isinstance(self.landscape, EqualModes) and self.language.min_length == self.length:
            return shape
        return (self.landscape.name, self.language.min_length, *shape)

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Plant one landscape: `modes` and `near` as lists where there are but two values, else `values`."""
        values = self.landscape.plant(self.language, rng)
        if not isinstance(self.landscape, EqualModes):
            return {"values": values}
        return {
            "modes": [text for text, value in values.items() if value == 1.0],
            "near": [text for text, value in values.items() if value < 1.0],
        }

    def render(self, instance: Instance, style: Style) -> Prompt:
        """`lab 3`, or the same in a sentence; the prompt tells nothing of what is planted."""
        name = f"lab {instance.data['prompt']}"
        if style == "compact":
            return Prompt(name, "compact")
        if style != "natural":
            raise ValueError(f"style={style!r} is unknown; choose natural or compact")
        letters = " ".join(self.letters)
        shortest = self.language.min_length
        count = str(self.length) if shortest == self.length else f"{shortest} to {self.length}"
        text = f"Write {count} letters out of {letters} and nothing else, for the problem {name}."
        return Prompt(text, "natural")

    def strings(self) -> Iterator[str]:
        """Every string of the language, short ones first, then in alphabetical order."""
        return self.language.strings()

    def planted(self, instance: Instance) -> Mapping[str, float]:
        """The strings of an instance that are not worth 0, and their values."""
        data = instance.data
        if "values" in data:
            return data["values"]
        return dict.fromkeys(data["modes"], 1.0) | dict.fromkeys(data["near"], 0.5)

    def value_of(self, instance: Instance, string: str) -> float:
        """Value of a string of the language."""
        return self.planted(instance).get(string, 0.0)

    def verify(self, instance: Instance, completion: str) -> Verdict:
        """Read the whole completion as one string."""
        if len(completion) > MAX_TEXT:
            return Verdict(False, False, reason="too long")
        text = "".join(completion.split())
        if not text or not set(text) <= set(string.ascii_lowercase):
            return Verdict(False, False, reason="not a string of letters")
        if not set(text) <= set(self.letters):
            return Verdict(True, False, formatted=True, reason="foreign letter")
        if len(text) not in self.language.lengths:
            return Verdict(True, False, formatted=True, reason="wrong length")
        return Verdict(True, True, self.value_of(instance, text), text, formatted=True)

    def format(self, answer: object) -> str:
        """The letters of a string, spaced for the tiny tokenizer."""
        return " ".join(str(answer))

    def solve(self, instance: Instance) -> Solution:
        """The first best string; 1 is the largest value there is."""
        best = next(text for text, value in self.planted(instance).items() if value == 1.0)
        return Solution(best, 1.0, proved=True)

    def solve_exact(self, instance: Instance) -> Solution:
        """The same: 1 is attained."""
        return self.solve(instance)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A uniformly random string: a base policy that knows the language and nothing of the landscape."""
        return self.format(self.language.draw(rng))


def _recipe(name: str, settings: Mapping[str, float | None]) -> Recipe:
    if name not in LANDSCAPES:
        raise ValueError(f"landscape={name!r} is unknown; choose one of {', '.join(LANDSCAPES)}")
    known = {field.name for field in dataclasses.fields(LANDSCAPES[name])}
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given.keys() - known:
        takes = ", ".join(sorted(known)) or "nothing"
        raise ValueError(f"{key}={given[key]} is no setting of landscape={name}, which takes {takes}")
    return LANDSCAPES[name](**given)
