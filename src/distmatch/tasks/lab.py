"""The exact lab: a language so small that all its strings, and distributions over them, can be enumerated."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterator, Mapping
from typing import ClassVar

from distmatch.batch import Prompt, Style
from distmatch.tasks.base import SPLITS, Instance, Solution, Split, Task, Verdict, instance_rng

MAX_TEXT = 10_000  # longer completions are not read: no string of the lab needs it


class Lab(Task):
    """Strings of fixed length over a small alphabet, with planted best strings.

    The value is 1 for `modes` planted strings, 0.5 for `near` others, and 0 for the rest, which is feasible
    but worthless. Another length or a foreign letter is infeasible. The answer is the whole completion,
    `a c b`, white space ignored.

    Args:
        alphabet: Number of letters, from 2 to 26.
        length: Letters in a string.
        modes: Strings of value 1.
        near: Strings of value 0.5.
        prompts: Number of different landscapes.
        seed: Seed of the landscapes.

    Raises:
        ValueError: A number is out of range, or more strings are planted than there are.
    """

    name: ClassVar[str] = "lab"
    category: ClassVar[str] = "lab"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = ("tiny",)

    def __init__(
        self,
        alphabet: int = 4,
        length: int = 5,
        modes: int = 8,
        near: int = 32,
        prompts: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__("tiny", seed)
        if not 2 <= alphabet <= 26:
            raise ValueError(f"alphabet={alphabet} must be between 2 and 26")
        if length < 1 or prompts < 1 or modes < 1 or near < 0:
            raise ValueError("length, prompts and modes must be at least 1 and near at least 0")
        if modes + near > alphabet**length:
            raise ValueError(f"{modes} + {near} strings cannot be planted among {alphabet**length}")
        self.letters = string.ascii_lowercase[:alphabet]
        self.length = length
        self.modes = modes
        self.near = near
        self.prompts = prompts

    def instance(self, split: Split, index: int) -> Instance:
        """Landscape `index` modulo `prompts`, the same in all splits.

        The lab asks which distribution a loss reaches, not whether it generalises: it must be measured on the
        very prompts that were trained on, so the splits are equal on purpose.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
        prompt = index % self.prompts
        shape = (len(self.letters), self.length, self.modes, self.near)
        landscape = self.generate(instance_rng(self.name, *shape, self.seed, prompt))
        return Instance(self.name, self.level, split, self.seed, prompt, {"prompt": prompt, **landscape})

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Plant distinct random strings."""
        planted: dict[str, None] = {}
        while len(planted) < self.modes + self.near:
            planted["".join(self.letters[rng.randrange(len(self.letters))] for _ in range(self.length))] = (
                None
            )
        strings = list(planted)
        return {"modes": strings[: self.modes], "near": strings[self.modes :]}

    def render(self, instance: Instance, style: Style) -> Prompt:
        """`lab 3`, or the same in a sentence; the prompt tells nothing of what is planted."""
        name = f"lab {instance.data['prompt']}"
        if style == "compact":
            return Prompt(name, "compact")
        if style != "natural":
            raise ValueError(f"style={style!r} is unknown; choose natural or compact")
        letters = " ".join(self.letters)
        text = f"Write {self.length} letters out of {letters} and nothing else, for the problem {name}."
        return Prompt(text, "natural")

    def strings(self) -> Iterator[str]:
        """Every string of the language, in alphabetical order."""
        return map("".join, itertools.product(self.letters, repeat=self.length))

    def value_of(self, instance: Instance, string: str) -> float:
        """Value of a string of the language."""
        if string in instance.data["modes"]:
            return 1.0
        return 0.5 if string in instance.data["near"] else 0.0

    def verify(self, instance: Instance, completion: str) -> Verdict:
        """Read the whole completion as one string."""
        if len(completion) > MAX_TEXT:
            return Verdict(False, False, reason="too long")
        text = "".join(completion.split())
        if not text or not set(text) <= set(string.ascii_lowercase):
            return Verdict(False, False, reason="not a string of letters")
        if not set(text) <= set(self.letters):
            return Verdict(True, False, formatted=True, reason="foreign letter")
        if len(text) != self.length:
            return Verdict(True, False, formatted=True, reason="wrong length")
        return Verdict(True, True, self.value_of(instance, text), text, formatted=True)

    def format(self, answer: object) -> str:
        """The letters of a string, spaced for the tiny tokenizer."""
        return " ".join(str(answer))

    def solve(self, instance: Instance) -> Solution:
        """The first planted string; 1 is the largest value there is."""
        return Solution(instance.data["modes"][0], 1.0, proved=True)

    def solve_exact(self, instance: Instance) -> Solution:
        """The same: 1 is attained."""
        return self.solve(instance)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A uniformly random string: a base policy that knows the language and nothing of the landscape."""
        return self.format(
            "".join(self.letters[rng.randrange(len(self.letters))] for _ in range(self.length))
        )
