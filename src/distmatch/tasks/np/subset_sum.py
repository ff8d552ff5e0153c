"""Subset sum: the most numbers that add up to a target exactly (NP-Bench, Selection)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution
from distmatch.tasks.np.drawing import between, pick, shuffled
from distmatch.tasks.np.integer_answers import IntegerAnswerTask, set_fault, set_key
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording


@dataclass(frozen=True)
class _Level:
    numbers: tuple[int, int]
    planted: tuple[int, int]
    value: tuple[int, int]


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level((8, 8), (4, 5), (1, 9)),
    # ---- published (papers 2.2) ----
    "easy": _Level((5, 10), (4, 8), (1, 5)),
    "medium": _Level((8, 12), (4, 8), (1, 10)),
    "hard": _Level((12, 15), (8, 12), (1, 15)),
    "bench": _Level((15, 20), (10, 15), (1, 15)),
}
MAX_STATES = 2_000_000  # reachable sums, over all numbers, that the dynamic programme keeps: about 2 s
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
SLIP = 0.15  # chance that one index takes the place of another


class SubsetSum(IntegerAnswerTask):
    """Subset sum problem.

    Instance: `{"target": T, "numbers": {"0": 5, ...}}`. Answer: `[0, 2]`, distinct indices whose numbers add
    up to T. Value: number of indices, to be maximised. NP-Engine accepts an index many times, which makes
    every answer better; here it is not valid.
    """

    name: ClassVar[str] = "subset_sum"
    category: ClassVar[str] = "selection"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "set"
    wording: ClassVar[Wording] = Wording(
        title="Subset Sum Problem",
        description=(
            "Given is a target and a JSON object of numbers, named by integer indices. Choose at least one "
            "index, each at most once, so that the numbers with the chosen indices add up to exactly the "
            "target. The more indices you choose, the better."
        ),
        example_question='{"target": 10, "numbers": {"0": 2, "1": 3, "2": 7, "3": 8, "4": 5}}',
        example_answer="[0, 1, 4]",
        submission=(
            "Give the chosen indices, not the numbers, as a list in any order, none twice; an empty list is "
            "not valid."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A planted solution, a second one beside it where there is room, and distractors, shuffled."""
        level = LEVELS[self.level]
        n = between(rng, level.numbers)
        planted = min(n, between(rng, level.planted))
        numbers = [between(rng, level.value) for _ in range(planted)]
        target = sum(numbers)
        numbers += _summing(rng, target, n - planted, level.value)
        while len(numbers) < n:
            numbers.append(between(rng, level.value))
        return {"target": target, "numbers": {str(i): v for i, v in enumerate(shuffled(rng, numbers))}}

    def compact(self, instance: Instance) -> str:
        """Target, then index and number of each: `subset_sum 10: 0 2, 1 3`."""
        words = [f"{i} {number}" for i, number in _numbers(instance).items()]
        return f"subset_sum {instance.data['target']}: " + ", ".join(words)

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Non-empty, known, distinct, of the right sum."""
        listed = _numbers(instance)
        fault = set_fault(numbers, set(listed))
        if fault:
            return fault
        return "" if sum(listed[i] for i in numbers) == instance.data["target"] else "wrong sum"

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Number of indices."""
        return float(len(numbers))

    def key(self, numbers: Sequence[int]) -> str:
        """The indices in ascending order."""
        return set_key(numbers)

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's reference is exact, so this is `solve_exact`."""
        return self.solve_exact(instance)

    def solve_exact(self, instance: Instance) -> Solution:
        """Dynamic programming over the sums that can be reached.

        Raises:
            ValueError: Numbers or target are not integers from 0, no choice has the right sum, or more sums
                can be reached than the solver keeps.
        """
        listed, target = _numbers(instance), instance.data["target"]
        if not all(type(number) is int and number >= 0 for number in [target, *listed.values()]):
            raise ValueError("the subset sum solver needs integer numbers and target from 0")
        chosen = _most_numbers(list(listed.values()), target)
        if not chosen:
            raise ValueError(f"no numbers add up to {target}, so that there is no valid answer")
        names = list(listed)
        return self.solution(instance, sorted(names[position] for position in chosen), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A random choice with the right sum, with noise."""
        return self.format(_random_choice(_numbers(instance), instance.data["target"], rng))

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All non-empty choices with the right sum."""
        listed = _numbers(instance)
        for size in range(1, len(listed) + 1):
            for chosen in itertools.combinations(listed, size):
                if not self.fault(instance, chosen):
                    yield list(chosen)


def _numbers(instance: Instance) -> dict[int, int]:
    listed: Mapping[str, int] = instance.data["numbers"]
    return {int(i): number for i, number in listed.items()}


def _summing(rng: random.Random, target: int, room: int, bounds: tuple[int, int]) -> list[int]:
    """At most `room` random numbers within bounds that add up to the target; empty if there are none."""
    low, high = bounds
    fewest, most = -(-target // high), min(room, target // low)
    if fewest > most:
        return []
    numbers: list[int] = []
    for left in reversed(range(between(rng, (fewest, most)))):
        rest = target - sum(numbers)
        numbers.append(between(rng, (max(low, rest - left * high), min(high, rest - left * low))))
    return numbers


def _most_numbers(numbers: Sequence[int], target: int) -> list[int]:
    """Positions of the most numbers that add up to the target; empty if there are none."""
    layers: list[dict[int, int]] = [{0: 0}]  # layers[i][s]: most of the first i numbers that add up to s
    states = 0
    for number in numbers:
        layer = dict(layers[-1])
        for total, count in layers[-1].items():
            reached = total + number
            if reached <= target and layer.get(reached, -1) <= count:
                layer[reached] = count + 1
        layers.append(layer)
        states += len(layer)
        if states > MAX_STATES:
            raise ValueError(
                f"{len(numbers)} numbers with target {target} exceed the solver's {MAX_STATES:,} sums"
            )
    if target not in layers[-1]:
        return []
    chosen, total = [], target
    for position in reversed(range(len(numbers))):
        if layers[position].get(total) != layers[position + 1][total]:
            chosen.append(position)
            total -= numbers[position]
    return chosen


def _random_choice(listed: Mapping[int, int], target: int, rng: random.Random) -> list[int]:
    """The demonstration policy: in or out by chance where both work, index by index."""
    order = shuffled(rng, list(listed))
    reachable = [{0}]  # reachable[k]: sums of choices among the last k of the order
    for i in reversed(order):
        reachable.append(reachable[-1] | {total + listed[i] for total in reachable[-1]})
    chosen, rest = [], target
    for position, i in enumerate(order):
        later = reachable[len(order) - position - 1]
        if rest - listed[i] in later and (rest not in later or rng.random() < 0.5):
            chosen.append(i)
            rest -= listed[i]
    others = sorted(set(listed) - set(chosen))
    if chosen and others and rng.random() < SLIP:
        chosen[rng.randrange(len(chosen))] = pick(rng, others)
    return chosen
