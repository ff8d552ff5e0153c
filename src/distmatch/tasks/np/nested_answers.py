"""What partitions and schedules share: answers are lists of rows of integers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution, Verdict
from distmatch.tasks.np.integer_answers import IntegerAnswerTask
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.parsing_nested import parse_rows

Row = Sequence[int]


class NestedAnswerTask(IntegerAnswerTask):
    """A problem whose answers are lists of rows of integers, `[[0, 2], [1, 3]]`; otherwise like its base."""

    spelling: ClassVar[Spelling] = "list"
    brackets: ClassVar[str] = "["  # opening brackets that a row may have

    def verify(self, instance: Instance, completion: str) -> Verdict:
        """Parse, apply the rule, compute value and canonical form."""
        answer = parse_rows(completion, self.brackets)
        if answer.rows is None:
            return Verdict(False, False, formatted=answer.formatted, reason=answer.reason)
        fault = self.fault(instance, answer.rows)
        if fault:
            return Verdict(True, False, formatted=answer.formatted, reason=fault)
        value = self.value(instance, answer.rows)
        return Verdict(True, True, value, self.key(answer.rows), answer.formatted)

    def format(self, answer: object) -> str:
        """`Answer: [[0, 2], [1, 3]]` for any iterable of iterables of integers."""
        return f"Answer: {[list(row) for row in answer]}"  # type: ignore[attr-defined]  # rows in these tasks

    @abstractmethod
    def fault(self, instance: Instance, numbers: Sequence[Row]) -> str:  # type: ignore[override]
        """Why an answer is not valid, in a few words; empty if it is."""

    @abstractmethod
    def value(self, instance: Instance, numbers: Sequence[Row]) -> float:  # type: ignore[override]
        """Objective value of a valid answer."""

    @abstractmethod
    def key(self, numbers: Sequence[Row]) -> str:  # type: ignore[override]
        """Canonical form of a valid answer: equal for equal solutions."""

    @abstractmethod
    def feasible_answers(self, instance: Instance) -> Iterator[list[list[int]]]:  # type: ignore[override]
        """Every valid answer once up to canonical equality; exponential, for tiny instances."""

    def solution(  # type: ignore[override]
        self, instance: Instance, answer: Iterable[Iterable[int]], proved: bool = False
    ) -> Solution:
        """A reference solution with its value."""
        rows = [list(row) for row in answer]
        return Solution(rows, self.value(instance, rows), proved)
