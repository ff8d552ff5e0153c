"""Hamiltonian cycle: the longest cycle through distinct vertices of a graph (NP-Bench, Planning)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distmatch.tasks.base import Instance, Solution, instance_rng
from distmatch.tasks.np.drawing import between, pick
from distmatch.tasks.np.graphs import Neighbours, adjacency_lists, edge_list, neighbours, relabelled
from distmatch.tasks.np.integer_answers import IntegerAnswerTask
from distmatch.tasks.parsing import Spelling
from distmatch.tasks.prompts import Wording


@dataclass(frozen=True)
class _Level:
    vertices: tuple[int, int]
    extra: float  # probability of an edge that is not on the planted cycle


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level((8, 8), 0.2),
    # ---- published (papers 2.2) ----
    "easy": _Level((15, 20), 0.2),
    "medium": _Level((20, 30), 0.3),
    "hard": _Level((30, 40), 0.4),
    "bench": _Level((40, 50), 0.5),
}
RESTARTS = 20  # NP-Engine restarts for 0.01 s, which no two machines fill alike
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
STOP = 0.3  # chance to go home as soon as that closes a cycle
SLIP = 0.12  # chance that one vertex takes the place of another


class HamiltonianCycle(IntegerAnswerTask):
    """Longest cycle problem, which NP-Bench calls Hamiltonian cycle: the planted cycle visits all vertices.

    Instance: `{"0": [1, 2], ...}`; `{"0": {"1": 1}}` is read too. Answer: `[0, 1, 3, 0]`, closed, at least
    three distinct vertices, successive ones adjacent; any vertex may come first. Value: number of distinct
    vertices, to be maximised. NP-Engine counts the closing vertex too, in answers and references alike, and
    accepts `[0]` and `[0, 1, 0]`.
    """

    name: ClassVar[str] = "hamiltonian_cycle"
    category: ClassVar[str] = "planning"
    sense: ClassVar = "max"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "sequence"
    wording: ClassVar[Wording] = Wording(
        title="Hamiltonian Cycle Problem in its optimisation form, the Longest Cycle Problem",
        description=(
            "Given is an undirected graph as a JSON object that names, for every vertex, the vertices "
            "adjacent to it. Find a cycle: it starts at a vertex, moves along edges to at least two other "
            "vertices, visits none of them twice and returns to where it started. It need not visit all "
            "vertices, but the more vertices it visits, the better."
        ),
        example_question='{"0": [1, 2], "1": [0, 2, 3], "2": [0, 1, 3], "3": [1, 2]}',
        example_answer="[0, 1, 3, 2, 0]",
        submission=(
            "Give the vertices in the order of the cycle as a list; the first vertex stands again at the end."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A planted Hamiltonian cycle and random further edges, under shuffled names."""
        level = LEVELS[self.level]
        n = between(rng, level.vertices)
        edges = [
            (a, b)
            for a, b in itertools.combinations(range(n), 2)
            if b - a in (1, n - 1) or rng.random() < level.extra
        ]
        return adjacency_lists(n, relabelled(rng, n, edges))

    def compact(self, instance: Instance) -> str:
        """Number of vertices, then the edges: `hamiltonian 5: 0-3, 1-2`."""
        graph = neighbours(instance.data)
        return f"hamiltonian {len(graph)}: " + ", ".join(f"{a}-{b}" for a, b in edge_list(graph))

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """Closed, at least three vertices, known, distinct, successive ones adjacent."""
        if len(numbers) < 4:
            return "fewer than three vertices"
        if numbers[0] != numbers[-1]:
            return "not closed"
        graph = neighbours(instance.data)
        if not graph.keys() >= set(numbers):
            return "unknown vertex"
        if len(set(numbers)) != len(numbers) - 1:
            return "repeated vertex"
        adjacent = all(b in graph[a] for a, b in itertools.pairwise(numbers))
        return "" if adjacent else "two successive vertices are not adjacent"

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Number of distinct vertices."""
        return float(len(numbers) - 1)

    def key(self, numbers: Sequence[int]) -> str:
        """The cycle from its smallest vertex, in the direction whose second vertex is smaller."""
        cycle = list(numbers[:-1])
        start = cycle.index(min(cycle))
        cycle = cycle[start:] + cycle[:start]
        if cycle[-1] < cycle[1]:
            cycle[1:] = cycle[:0:-1]
        return "-".join(map(str, cycle))

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: paths by fewest exits, closed as early as can be, insertions, restarts.

        Raises:
            ValueError: The graph has no cycle.
        """
        graph = neighbours(instance.data)
        rng = instance_rng("cycle solver", instance.fingerprint)
        best = _any_cycle(graph)
        for _ in range(RESTARTS):
            if len(best) == len(graph):
                break
            path = _path(graph, rng)
            best = max(best, _inserted(graph, _closed(graph, path)), _closed(graph, path[::-1]), key=len)
        return self._from_smallest(instance, best)

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT, unless the heuristic visits all vertices.

        Raises:
            ValueError: The graph has no cycle, or optimality was not proved within the deterministic limit.
        """
        graph = neighbours(instance.data)
        found = self.solve(instance)
        if found.value == len(graph):
            return Solution(found.answer, found.value, proved=True)
        from distmatch.tasks.np.exact_structures import longest_cycle  # OR-Tools takes a second to import

        return self._from_smallest(instance, longest_cycle(graph), proved=True)

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A cycle that a random walk closes, early or late, with noise."""
        return self.format(_wandered(neighbours(instance.data), rng))

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All cycles, from their smallest vertex and in one direction."""
        graph = neighbours(instance.data)
        for start in sorted(graph):
            yield from _cycles(graph, [start])

    def _from_smallest(self, instance: Instance, cycle: list[int], proved: bool = False) -> Solution:
        start = cycle.index(min(cycle))
        order = cycle[start:] + cycle[:start]
        return self.solution(instance, [*order, order[0]], proved)


def _cycles(graph: Neighbours, path: list[int]) -> Iterator[list[int]]:
    """All cycles that begin with `path`, whose first vertex is the smallest, second before last."""
    for node in sorted(graph[path[-1]]):
        if node == path[0] and len(path) > 2 and path[1] < path[-1]:
            yield [*path, node]
        if node > path[0] and node not in path:
            yield from _cycles(graph, [*path, node])


def _any_cycle(graph: Neighbours) -> list[int]:
    """A cycle that depth-first search meets, so that there is an answer whatever chance does later."""
    seen: set[int] = set()
    for root in sorted(graph):
        stack: list[tuple[int, list[int]]] = [(root, [])]
        while stack:
            node, path = stack.pop()
            if node in path[:-2]:
                return path[path.index(node) :]
            if node in seen:
                continue
            seen.add(node)
            came_from = path[-1] if path else None
            stack += [(other, [*path, node]) for other in sorted(graph[node]) if other != came_from]
    raise ValueError("the graph has no cycle, so that there is no valid answer")


def _path(graph: Neighbours, rng: random.Random) -> list[int]:
    """From a random vertex to the unvisited neighbour with fewest exits, until there is none."""
    path = [pick(rng, sorted(graph))]
    left = set(graph) - set(path)
    while steps := graph[path[-1]] & left:
        exits = {node: len(graph[node] & left) for node in sorted(steps)}
        fewest = min(exits.values())
        path.append(pick(rng, [node for node, count in exits.items() if count == fewest]))
        left.remove(path[-1])
    return path


def _closed(graph: Neighbours, path: list[int]) -> list[int]:
    """The longest cycle made of the end of the path and an edge back; empty if there is none."""
    for position, node in enumerate(path[:-2]):
        if node in graph[path[-1]]:
            return path[position:]
    return []


def _inserted(graph: Neighbours, cycle: list[int]) -> list[int]:
    """Put vertices between two successive ones that are adjacent to both, as long as there are any."""
    cycle = list(cycle)
    left = set(graph) - set(cycle)
    position = 0
    while position < len(cycle):
        fitting = graph[cycle[position - 1]] & graph[cycle[position]] & left
        if fitting:
            cycle.insert(position, min(fitting))
            left.remove(cycle[position])
        else:
            position += 1
    return cycle


def _wandered(graph: Neighbours, rng: random.Random) -> list[int]:
    """The demonstration policy: a random walk without repeats that closes where it can, sometimes wrongly."""
    for _ in range(20):
        path = [pick(rng, sorted(graph))]
        while steps := sorted(graph[path[-1]] - set(path)):
            if len(path) > 2 and path[0] in graph[path[-1]] and rng.random() < STOP:
                break
            path.append(pick(rng, steps))
        cycle = _closed(graph, path)
        if cycle:
            break
    else:
        cycle = _any_cycle(graph)
    if rng.random() < SLIP:
        place = rng.randrange(1, len(cycle))
        cycle[place] = pick(rng, sorted(set(graph) - {cycle[place]}))
    return [*cycle, cycle[0]]
