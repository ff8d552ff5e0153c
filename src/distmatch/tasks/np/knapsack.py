"""0/1 knapsack: the most valuable set of items within a capacity (NP-Bench, Selection)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distmatch.tasks.base import Instance, Solution
from distmatch.tasks.np.drawing import between, gumbel, pick, shuffled, uniform
from distmatch.tasks.np.integer_answers import IntegerAnswerTask, set_fault, set_key
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording

Item = tuple[int, int]  # weight, value


@dataclass(frozen=True)
class _Plain:
    """Items with independent weights and values."""

    items: tuple[int, int]
    weight: tuple[int, int]
    value: tuple[int, int]
    percent: int  # capacity in percent of the total weight


@dataclass(frozen=True)
class _Planted:
    """A good selection that nearly fills the knapsack, hidden among distractors."""

    planted: tuple[int, int]
    distractors: tuple[int, int]
    weight: tuple[int, int]
    ratio: tuple[float, float]
    slack: tuple[float, float]  # capacity over planted weight


LEVELS: Mapping[str, _Plain | _Planted] = {
    # ---- ours, for the tiny model ----
    "tiny": _Plain(items=(8, 8), weight=(1, 9), value=(1, 9), percent=45),
    # ---- published (papers 2.2) ----
    "easy": _Planted((6, 10), (8, 15), (5, 25), (1.8, 2.5), (1.1, 1.4)),
    "medium": _Planted((8, 12), (15, 25), (20, 80), (1.5, 2.0), (1.05, 1.25)),
    "hard": _Planted((15, 25), (20, 35), (50, 200), (1.2, 1.6), (1.02, 1.15)),
    "bench": _Planted((25, 35), (30, 45), (50, 200), (1.2, 1.6), (1.02, 1.15)),
}
POOR_RATIO = (0.3, 0.8)  # value over weight of the cheap distractors: ours, not published
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
TEMPERATURE = 1.0  # 0 is greedy by value over weight, large is a random order
SLIP = 0.1  # chance that one item too many is packed
MAX_CELLS = 50_000_000  # items times capacity that the dynamic programme accepts: about 0.1 s and 50 MB


class Knapsack(IntegerAnswerTask):
    """0/1 knapsack problem.

    Instance: `{"capacity": W, "items": {"0": {"weight": w, "value": v}, ...}}`. Answer: `[0, 2]`, non-empty,
    distinct, within the capacity. Value: sum of values, to be maximised. The empty set is refused, as in
    NP-Engine.
    """

    name: ClassVar[str] = "knapsack"
    category: ClassVar[str] = "selection"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "set"
    wording: ClassVar[Wording] = Wording(
        title="0/1 Knapsack Problem",
        description=(
            "Given is the capacity of a knapsack and a set of items, named by integers, each with a "
            "weight and a value. Choose at least one item, each at most once, so that the weights of the "
            "chosen items add up to no more than the capacity. The larger the sum of their values, the "
            "better."
        ),
        example_question='{"capacity": 9, "items": {"0": {"weight": 5, "value": 9}, '
        '"1": {"weight": 3, "value": 4}, "2": {"weight": 6, "value": 8}}}',
        example_answer="[0, 1]",
        submission="Give the chosen items as a list in any order, none twice; an empty list is not valid.",
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Plain or planted items, under shuffled names."""
        level = LEVELS[self.level]
        items, capacity = _plain(rng, level) if isinstance(level, _Plain) else _planted(rng, level)
        named = {
            str(i): {"weight": weight, "value": value}
            for i, (weight, value) in enumerate(shuffled(rng, items))
        }
        return {"capacity": capacity, "items": named}

    def compact(self, instance: Instance) -> str:
        """Capacity, then weight/value of each item: `knapsack 21: 0 5/9, 1 3/4`."""
        words = [f"{i} {weight}/{value}" for i, (weight, value) in _items(instance).items()]
        return f"knapsack {instance.data['capacity']}: " + ", ".join(words)

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Non-empty, known, distinct, within the capacity."""
        items = _items(instance)
        fault = set_fault(numbers, set(items))
        if fault:
            return fault
        weight = sum(items[i][0] for i in numbers)
        return "too heavy" if weight > instance.data["capacity"] else ""

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Sum of the values."""
        items = _items(instance)
        return float(sum(items[i][1] for i in numbers))

    def key(self, numbers: Sequence[int]) -> str:
        """The items in ascending order."""
        return set_key(numbers)

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's reference is exact, so this is `solve_exact`."""
        return self.solve_exact(instance)

    def solve_exact(self, instance: Instance) -> Solution:
        """Dynamic programming over capacities.

        Raises:
            ValueError: Weights, values or capacity are not integers from 0, or items times capacity is too
                large.
        """
        items, capacity = _items(instance), instance.data["capacity"]
        numbers = [capacity, *itertools.chain.from_iterable(items.values())]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError("the knapsack solver needs integer weights, values and capacity from 0")
        if len(items) * (capacity + 1) > MAX_CELLS:
            raise ValueError(
                f"{len(items)} items with capacity {capacity} exceed the solver's {MAX_CELLS:,} cells"
            )
        chosen = _best_selection(list(items.values()), capacity)
        names = list(items)
        return self.solution(instance, [names[position] for position in chosen], proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A selection by noisy greedy."""
        return self.format(_noisy_greedy(_items(instance), instance.data["capacity"], rng))

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All non-empty selections within the capacity."""
        items = _items(instance)
        for size in range(1, len(items) + 1):
            for chosen in itertools.combinations(items, size):
                if not self.fault(instance, chosen):
                    yield list(chosen)


def _items(instance: Instance) -> dict[int, Item]:
    listed: Mapping[str, Mapping[str, int]] = instance.data["items"]
    return {int(name): (item["weight"], item["value"]) for name, item in listed.items()}


def _plain(rng: random.Random, level: _Plain) -> tuple[list[Item], int]:
    items = [
        (between(rng, level.weight), between(rng, level.value)) for _ in range(between(rng, level.items))
    ]
    weights = [weight for weight, _ in items]
    # At least the largest weight, so that every item alone is a valid answer.
    return items, max(max(weights), sum(weights) * level.percent // 100)


def _planted(rng: random.Random, level: _Planted) -> tuple[list[Item], int]:
    """A planted selection among distractors: 40 % heavy and cheap, 40 % light and cheap, 20 % good traps."""
    items = [_item(rng, level.weight, level.ratio) for _ in range(between(rng, level.planted))]
    total = sum(weight for weight, _ in items)
    low, high = level.weight
    for _ in range(between(rng, level.distractors)):
        kind = rng.randrange(10)
        if kind < 4:
            items.append(_item(rng, (high, 2 * high), POOR_RATIO))
        elif kind < 8:
            items.append(_item(rng, (max(1, low // 2), max(2, high // 2)), POOR_RATIO))
        else:
            items.append(_item(rng, (total // 2, total * 9 // 10), level.ratio))
    return items, int(total * uniform(rng, level.slack))


def _item(rng: random.Random, weight: tuple[int, int], ratio: tuple[float, float]) -> Item:
    drawn = between(rng, weight)
    return drawn, max(1, round(drawn * uniform(rng, ratio)))


def _best_selection(items: Sequence[Item], capacity: int) -> list[int]:
    """Positions of a selection of greatest value."""
    best = np.zeros(capacity + 1, dtype=np.int64)  # best[w]: greatest value within weight w, items so far
    taken: list[np.ndarray] = []
    for weight, value in items:
        take = np.zeros(capacity + 1, dtype=bool)
        if weight <= capacity:
            with_item = best[: capacity + 1 - weight] + value
            take[weight:] = with_item > best[weight:]
            best[weight:] = np.maximum(with_item, best[weight:])
        taken.append(take)
    chosen, left = [], capacity
    for position in reversed(range(len(items))):
        if taken[position][left]:
            chosen.append(position)
            left -= items[position][0]
    return chosen[::-1]


def _noisy_greedy(items: Mapping[int, Item], capacity: int, rng: random.Random) -> list[int]:
    """The demonstration policy: take what fits, by log(value / weight) / TEMPERATURE plus Gumbel noise."""
    score = {i: math.log(value / weight) / TEMPERATURE + gumbel(rng) for i, (weight, value) in items.items()}
    chosen, rest, left = [], [], capacity
    for i in sorted(items, key=lambda i: -score[i]):
        if items[i][0] <= left:
            chosen.append(i)
            left -= items[i][0]
        else:
            rest.append(i)
    if rest and rng.random() < SLIP:
        chosen.insert(rng.randrange(len(chosen) + 1), pick(rng, rest))
    return chosen
