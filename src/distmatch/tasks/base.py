"""The contract of a task: instances by index, two prompt styles, a total verifier, a reference."""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from distmatch.batch import Prompt, Style

Sense = Literal["min", "max"]
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
_BUCKETS = 8
_BUCKET_OF: Mapping[str, frozenset[int]] = {
    "val": frozenset({0}),
    "test": frozenset({1}),
    "train": frozenset(range(2, _BUCKETS)),
}


@dataclass(frozen=True)
class Instance:
    """One problem, addressed by (task, level, split, seed, index).

    Attributes:
        task: Name of the task that made it.
        level: Difficulty level.
        split: `train`, `val` or `test`.
        seed: Seed of the task's stream of instances.
        index: Position in that stream.
        data: The problem itself in the published JSON form; treat as read-only.
    """

    task: str
    level: str
    split: Split
    seed: int
    index: int
    data: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of task and data: equal for equal problems, whatever their address."""
        return fingerprint(self.task, self.data)

    @property
    def id(self) -> str:
        """A name that never collides between tasks, levels, splits, seeds or indices."""
        return f"{self.task}-{self.level}-{self.split}-s{self.seed}-{self.index}-{self.fingerprint[:8]}"


@dataclass(frozen=True)
class Verdict:
    """What a verifier found in a completion. Never an exception: a model may write anything.

    Attributes:
        parsed: An answer in an accepted spelling was found.
        feasible: That answer is a valid solution.
        value: Its objective value, None if infeasible.
        key: Canonical form of the solution (a tour up to rotation and direction, a set as a set), None if
            infeasible.
        formatted: The text follows the required form `... Answer: <something>`, right or wrong.
        reason: Why it is not feasible, in a few words; empty if it is.
    """

    parsed: bool
    feasible: bool
    value: float | None = None
    key: str | None = None
    formatted: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Solution:
    """A reference solution.

    Attributes:
        answer: In the form that the task's `format` takes.
        value: Objective value.
        proved: True if no better solution exists and that was shown.
    """

    answer: object
    value: float
    proved: bool = False


class Task(ABC):
    """One problem family at one level.

    Subclasses define the class attributes and the abstract methods; addressing, splits and references are
    done here.

    Args:
        level: One of the task's `levels`.
        seed: Seed of the stream of instances; other seeds give other instances.
        reference: `heuristic` for the paper's heuristic, `exact` for a proved optimum (small levels only).

    Raises:
        ValueError: Unknown level or reference.
    """

    name: ClassVar[str]
    category: ClassVar[str]
    sense: ClassVar[Sense]
    levels: ClassVar[tuple[str, ...]]

    def __init__(
        self, level: str = "tiny", seed: int = 0, reference: Literal["heuristic", "exact"] = "heuristic"
    ) -> None:
        if level not in self.levels:
            raise ValueError(
                f"level={level!r} is unknown to task {self.name}; choose one of {', '.join(self.levels)}"
            )
        if reference not in ("heuristic", "exact"):
            raise ValueError(f"reference={reference!r} must be 'heuristic' or 'exact'")
        self.level = level
        self.seed = seed
        self._reference = reference
        self._references: dict[str, Solution] = {}

    # ---- addressing ----------------------------------------------------------------------------------------

    def instance(self, split: Split, index: int) -> Instance:
        """The instance at an address: the same on any machine, in any order.

        Splits are disjoint by construction: the hash of a problem says which split may hold it, and the
        generator is asked again until it fits.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
        rng = instance_rng(self.name, self.level, split, self.seed, index)
        while True:
            data = self.generate(rng)
            if int(fingerprint(self.name, data)[:8], 16) % _BUCKETS in _BUCKET_OF[split]:
                return Instance(self.name, self.level, split, self.seed, index, data)

    def reference(self, instance: Instance) -> Solution:
        """The solution that quality is measured against, computed once per problem."""
        key = instance.fingerprint
        if key not in self._references:
            solver = self.solve if self._reference == "heuristic" else self.solve_exact
            self._references[key] = solver(instance)
        return self._references[key]

    # ---- to be defined by a task ---------------------------------------------------------------------------

    @abstractmethod
    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Draw one problem at this level, using `random`, `randrange` and `getrandbits` of `rng` only."""

    @abstractmethod
    def render(self, instance: Instance, style: Style) -> Prompt:
        """The question in words (`natural`) or in the short form of the tiny model (`compact`)."""

    @abstractmethod
    def verify(self, instance: Instance, completion: str) -> Verdict:
        """Judge any text; total, pure and bounded in time."""

    @abstractmethod
    def format(self, answer: object) -> str:
        """The completion text that states `answer`, e.g. `Answer: [0, 2, 1, 0]`."""

    @abstractmethod
    def solve(self, instance: Instance) -> Solution:
        """The paper's heuristic, with iteration budgets and its own fixed randomness, so that it is pure."""

    @abstractmethod
    def solve_exact(self, instance: Instance) -> Solution:
        """A best solution with a proof flag; refuses sizes that it cannot prove."""

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A mediocre completion for the warm start of the tiny model.

        Raises:
            ValueError: The task has no demonstrations; only tasks of the tiny suites need them.
        """
        raise ValueError(f"task {self.name} has no demonstrations to warm-start from")

    def categories(self) -> dict[str, str]:
        """The category of every problem that instances may belong to, by the problem's name."""
        return {self.name: self.category}

    def problem(self, instance: Instance) -> Task:
        """The task that `instance` belongs to: itself, or a member of a mixture."""
        return self


def quality(value: float, reference: float, sense: Sense) -> float:
    """Quality ratio of a feasible answer: value/reference for `max`, reference/value for `min`.

    Not clipped: above 1 the answer beats a heuristic reference, as in the papers. Zeros: 1 where both are
    zero; with one zero there is no ratio, and the better side counts as 1 and the worse as 0.
    """
    better, worse = (value, reference) if sense == "max" else (reference, value)
    if worse == 0:
        return 1.0
    return better / worse


def fingerprint(task: str, data: Mapping[str, object]) -> str:
    """Hex sha256 of a problem in canonical JSON."""
    text = json.dumps([task, data], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any printable parts; unlike with `seed + index`, different parts never collide."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def instance_rng(*address: object) -> random.Random:
    """A private generator for an address; use only `random`, `randrange` and `getrandbits` of it."""
    return random.Random(derive_seed("instance", *address))
