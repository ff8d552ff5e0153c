"""Set cover: the fewest subsets whose union is the universe (NP-Bench, Selection)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution, Verdict, instance_rng
from distmatch.tasks.np.drawing import between, gumbel, pick, shuffled
from distmatch.tasks.np.integer_answers import IntegerAnswerTask, set_key
from distmatch.tasks.parsing import BLANK, BOX, Spelling, after_marker
from distmatch.tasks.prompts import Wording

Subsets = dict[int, frozenset[int]]


@dataclass(frozen=True)
class _Level:
    universe: tuple[int, int]
    subsets: tuple[int, int]
    smallest: int = 1
    largest: float = 0.4  # of the universe


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level((8, 8), (7, 7), smallest=2, largest=0.5),
    # ---- published (papers 2.2) ----
    "easy": _Level((10, 20), (5, 10)),
    "medium": _Level((20, 25), (10, 15)),
    "hard": _Level((25, 30), (15, 25)),
    "bench": _Level((30, 40), (20, 30)),
}
IMPOSSIBLE = "Impossible"
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
TEMPERATURE = 1.0  # 0 takes the subset with most new elements, large at random
SLIP = 0.12  # chance that one subset is left out


class SetCover(IntegerAnswerTask):
    """Set cover problem.

    Instance: `{"U": [0, 1, 2], "S": {"0": [0, 1], "1": [2]}}`. Answer: `[0, 1]`, distinct subsets whose union
    is U. Value: number of subsets, to be minimised. Where all subsets together do not cover U, which the
    generator never makes, `Impossible` is the only valid answer, of value 0; elsewhere it is not valid.
    """

    name: ClassVar[str] = "set_cover"
    category: ClassVar[str] = "selection"
    sense: ClassVar = "min"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "set"
    wording: ClassVar[Wording] = Wording(
        title="Set Cover Problem",
        description=(
            "Given is a universe `U` of elements and `S`, a JSON object that names subsets of it by "
            "integers. Choose subsets, each at most once, so that every element of the universe is in at "
            "least one of them. The fewer subsets you choose, the better."
        ),
        example_question='{"U": [0, 1, 2, 3], "S": {"0": [0, 1], "1": [1, 2], "2": [2, 3]}}',
        example_answer="[0, 2]",
        submission=(
            "Give the names of the chosen subsets as a list in any order, none twice. If, and only if, all "
            f"subsets together miss an element, write {IMPOSSIBLE} instead of a list."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """Subsets of random sizes; elements that none of them has join a random one."""
        level = LEVELS[self.level]
        n, count = between(rng, level.universe), between(rng, level.subsets)
        largest = max(level.smallest, int(n * level.largest))
        subsets = [
            set(shuffled(rng, range(n))[: between(rng, (level.smallest, largest))]) for _ in range(count)
        ]
        for element in range(n):
            if not any(element in subset for subset in subsets):
                subsets[rng.randrange(count)].add(element)
        return {
            "U": list(range(n)),
            "S": {str(name): sorted(subset) for name, subset in enumerate(subsets)},
        }

    def compact(self, instance: Instance) -> str:
        """Size of the universe, then name and elements of each subset: `set_cover 4: 0 a b, 1 b c d`."""
        universe, subsets = _read(instance)
        words = [
            " ".join([str(name), *map(_letter, sorted(subset))]) for name, subset in sorted(subsets.items())
        ]
        return f"set_cover {len(universe)}: " + ", ".join(words)

    def verify(self, instance: Instance, completion: str) -> Verdict:
        """As for all lists of integers, but `Impossible` is an answer too."""
        if not _says_impossible(completion):
            return super().verify(instance, completion)
        universe, subsets = _read(instance)
        if universe <= _union(subsets.values()):
            return Verdict(True, False, formatted=True, reason="a cover exists")
        return Verdict(True, True, 0.0, IMPOSSIBLE, formatted=True)

    def format(self, answer: object) -> str:
        """`Answer: [0, 2]`, or `Answer: Impossible`."""
        return f"Answer: {IMPOSSIBLE}" if answer == IMPOSSIBLE else super().format(answer)

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Known, distinct, covering; an empty list covers an empty universe only."""
        universe, subsets = _read(instance)
        if not subsets.keys() >= set(numbers):
            return "unknown id"
        if len(set(numbers)) != len(numbers):
            return "repeated id"
        return "" if universe <= _union(subsets[name] for name in numbers) else "an element is not covered"

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Number of subsets."""
        return float(len(numbers))

    def key(self, numbers: Sequence[int]) -> str:
        """The subsets in ascending order."""
        return set_key(numbers)

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: greedy without redundant subsets, then annealing that shrinks and swaps."""
        universe, subsets = _read(instance)
        if not universe <= _union(subsets.values()):
            return Solution(IMPOSSIBLE, 0.0, proved=True)
        cover = _Cover(universe, subsets)
        best = _anneal(cover, cover.repaired(set()), instance_rng("cover solver", instance.fingerprint))
        return self.solution(instance, sorted(best))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        universe, subsets = _read(instance)
        if not universe <= _union(subsets.values()):
            return Solution(IMPOSSIBLE, 0.0, proved=True)
        from distmatch.tasks.np.exact_structures import smallest_cover  # OR-Tools takes a second to import

        return self.solution(instance, smallest_cover(subsets, universe), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A cover by noisy greedy."""
        universe, subsets = _read(instance)
        return self.format(_noisy_greedy(universe, subsets, rng))

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All covers, with and without redundant subsets."""
        _, subsets = _read(instance)
        for size in range(len(subsets) + 1):
            for chosen in itertools.combinations(sorted(subsets), size):
                if not self.fault(instance, chosen):
                    yield list(chosen)


def _read(instance: Instance) -> tuple[frozenset[int], Subsets]:
    listed: Mapping[str, Sequence[int]] = instance.data["S"]
    return frozenset(instance.data["U"]), {int(name): frozenset(subset) for name, subset in listed.items()}


def _union(subsets: Iterator[frozenset[int]] | object) -> frozenset[int]:
    return frozenset().union(*subsets)  # type: ignore[misc]


def _letter(element: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[element] if 0 <= element < 26 else f"e{element}"


def _says_impossible(completion: str) -> bool:
    """Whether the answer is the word: on a line of its own, bold, boxed or with a full stop if need be."""
    text = after_marker(completion)
    if text is None:
        return False
    line = text.partition("\n")[0].rstrip(BLANK).removesuffix(".").removesuffix("**").removesuffix(".")
    if line.startswith(BOX):
        line = line.removeprefix(BOX).removesuffix("}").strip(BLANK)
    return line == IMPOSSIBLE


class _Cover:
    """Subsets as bit masks, named by position, and the two repairs that the heuristic is made of."""

    def __init__(self, universe: frozenset[int], subsets: Subsets) -> None:
        bit = {element: 1 << position for position, element in enumerate(sorted(universe))}
        self.full = (1 << len(universe)) - 1
        self.masks = {
            name: sum(bit[element] for element in subset if element in bit)
            for name, subset in sorted(subsets.items())
        }
        largest = max((mask.bit_count() for mask in self.masks.values()), default=0)
        self.bound = -(-len(universe) // largest) if largest else 0

    def repaired(self, chosen: set[int]) -> set[int]:
        """Add the subset with most new elements until all are covered, then drop redundant subsets."""
        chosen = set(chosen)
        missing = self.full & ~self._covered(chosen)
        while missing:
            best = max(self.masks, key=lambda name: ((self.masks[name] & missing).bit_count(), -name))
            chosen.add(best)
            missing &= ~self.masks[best]
        return self.contracted(chosen)

    def contracted(self, chosen: set[int]) -> set[int]:
        """Drop subsets that the others make redundant, small ones first."""
        for name in sorted(chosen, key=lambda name: (self.masks[name].bit_count(), name)):
            if self._covered(chosen - {name}) == self.full:
                chosen = chosen - {name}
        return chosen

    def _covered(self, chosen: set[int]) -> int:
        covered = 0
        for name in chosen:
            covered |= self.masks[name]
        return covered


def _anneal(cover: _Cover, start: set[int], rng: random.Random) -> set[int]:
    """Annealing from T = 1 to 1e-4 over covers, returning the smallest seen.

    60 % of the moves take a subset away and repair, 40 % add one and contract. NP-Engine cools by 0.995, some
    1,840 steps, or stops after a second; small instances get fewer steps over the same range.
    """
    steps = min(1_840, 2 * len(cover.masks) ** 2)
    cooling = 1e-4 ** (1 / max(1, steps))
    temperature = 1.0
    best = current = start
    names = sorted(cover.masks)
    for _ in range(steps):
        if len(best) <= cover.bound:  # no fewer subsets of this size can hold all elements
            break
        if rng.random() < 0.6:
            candidate = cover.repaired(current - {pick(rng, sorted(current))})
        else:
            candidate = cover.contracted(current | {pick(rng, names)})
        change = len(candidate) - len(current)
        if change <= 0 or rng.random() < math.exp(-change / temperature):
            current = candidate
            if len(current) < len(best):
                best = current
        temperature *= cooling
    return best


def _noisy_greedy(universe: frozenset[int], subsets: Subsets, rng: random.Random) -> list[int]:
    """The demonstration policy: subsets by new elements with Gumbel noise, now and then one too few."""
    chosen: list[int] = []
    missing = set(universe & _union(subsets.values()))
    while missing:
        useful = [name for name in sorted(subsets) if subsets[name] & missing]
        chosen.append(max(useful, key=lambda name: len(subsets[name] & missing) / TEMPERATURE + gumbel(rng)))
        missing -= subsets[chosen[-1]]
    if len(chosen) > 1 and rng.random() < SLIP:
        chosen.pop(rng.randrange(len(chosen)))
    return chosen
