"""What the NP problems share: answers are lists of integers, judged by a rule, a value and a key."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from distmatch.batch import Prompt, Style
from distmatch.tasks.base import Instance, Solution, Task, Verdict
from distmatch.tasks.parsing import Spelling, parse_integers
from distmatch.tasks.prompts import Wording, natural_prompt


class IntegerAnswerTask(Task):
    """A problem whose answers are lists of integers; subclasses say what is valid, how good and the same."""

    spelling: ClassVar[Spelling]
    wording: ClassVar[Wording]

    def render(self, instance: Instance, style: Style) -> Prompt:
        """The shared sections around the instance's JSON, or the task's compact form."""
        if style == "natural":
            return natural_prompt(self.wording, json.dumps(instance.data))
        if style == "compact":
            return Prompt(self.compact(instance), "compact")
        raise ValueError(f"style={style!r} is unknown; choose natural or compact")

    def verify(self, instance: Instance, completion: str) -> Verdict:
        """Parse, apply the rule, compute value and canonical form."""
        answer = parse_integers(completion, self.spelling)
        if answer.numbers is None:
            return Verdict(False, False, formatted=answer.formatted, reason=answer.reason)
        fault = self.fault(instance, answer.numbers)
        if fault:
            return Verdict(True, False, formatted=answer.formatted, reason=fault)
        value = self.value(instance, answer.numbers)
        return Verdict(True, True, value, self.key(answer.numbers), answer.formatted)

    def format(self, answer: object) -> str:
        """`Answer: [0, 2, 1, 0]` for any iterable of integers."""
        return f"Answer: {list(answer)}"  # type: ignore[call-overload]  # a list of integers in these tasks

    @abstractmethod
    def compact(self, instance: Instance) -> str:
        """The question for the tiny model: short, numbers apart, no words."""

    @abstractmethod
    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Why an answer is not valid, in a few words; empty if it is."""

    @abstractmethod
    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Objective value of a valid answer."""

    @abstractmethod
    def key(self, numbers: Sequence[int]) -> str:
        """Canonical form of a valid answer: equal for equal solutions."""

    @abstractmethod
    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """Every valid answer once up to canonical equality; exponential, for tiny instances."""

    def solution(self, instance: Instance, answer: Sequence[int], proved: bool = False) -> Solution:
        """A reference solution with its value."""
        return Solution(list(answer), self.value(instance, answer), proved)


def set_fault(numbers: Sequence[int], known: set[int]) -> str:
    """The part of the rule that all sets of ids share: non-empty, known, distinct."""
    if not numbers:
        return "empty set"
    if not known.issuperset(numbers):
        return "unknown id"
    if len(set(numbers)) != len(numbers):
        return "repeated id"
    return ""


def set_key(numbers: Sequence[int]) -> str:
    """A set of ids in ascending order."""
    return ",".join(map(str, sorted(numbers)))
