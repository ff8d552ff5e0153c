"""Graph colouring: a proper colouring with as few colours as possible (NP-Bench, Graph)."""

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

Coloring = dict[int, int]


@dataclass(frozen=True)
class _Level:
    vertices: tuple[int, int]
    parts: tuple[int, int]
    edge_probability: float


LEVELS: Mapping[str, _Level] = {
    # ---- ours, for the tiny model ----
    "tiny": _Level(vertices=(6, 6), parts=(3, 3), edge_probability=0.7),
    # ---- published (papers 2.2) ----
    "easy": _Level((8, 12), (3, 4), 0.2),
    "medium": _Level((15, 22), (4, 6), 0.35),
    "hard": _Level((25, 32), (6, 8), 0.5),
    "bench": _Level((32, 40), (6, 8), 0.5),
}
# Demonstrations, for the tiny model: mediocre on purpose, so that reinforcement has something to find.
FRESH = 0.2  # chance to open a new colour where an old one would do
SLIP = 0.12  # chance that one edge gets equal colours


class GraphColoring(IntegerAnswerTask):
    """Graph colouring problem.

    Instance: `{"0": [1, 2], ...}`; `{"0": {"1": 1}}` is read too. Answer: `[1, 2, 1]`, one colour a vertex in
    the order of their numbers, colours from 1, neighbours different. Value: colours used, to be minimised.
    """

    name: ClassVar[str] = "graph_coloring"
    category: ClassVar[str] = "graph"
    sense: ClassVar = "min"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    spelling: ClassVar[Spelling] = "set"
    wording: ClassVar[Wording] = Wording(
        title="Graph Colouring Problem",
        description=(
            "Given is an undirected graph as a JSON object that names, for every vertex, the vertices "
            "adjacent to it. Give every vertex a colour, a positive integer, so that adjacent vertices "
            "have different colours. The fewer different colours, the better."
        ),
        example_question='{"0": [1, 2], "1": [0, 2], "2": [0, 1, 3], "3": [2]}',
        example_answer="[1, 2, 3, 1]",
        submission=(
            "Give the colours as a list, one for each vertex, in ascending order of the vertices' numbers."
        ),
    )

    def generate(self, rng: random.Random) -> Mapping[str, object]:
        """A random k-partite graph with at least one edge."""
        level = LEVELS[self.level]
        n, parts = between(rng, level.vertices), between(rng, level.parts)
        edges: list[tuple[int, int]] = []
        while not edges:
            pairs = itertools.combinations(range(n), 2)
            edges = [
                (a, b) for a, b in pairs if a % parts != b % parts and rng.random() < level.edge_probability
            ]
        return adjacency_lists(n, relabelled(rng, n, edges))

    def compact(self, instance: Instance) -> str:
        """Number of vertices, then the edges: `coloring 5: 0-3, 1-2`."""
        graph = neighbours(instance.data)
        return f"coloring {len(graph)}: " + ", ".join(f"{a}-{b}" for a, b in edge_list(graph))

    def fault(self, instance: Instance, numbers: Sequence[int]) -> str:
        """One colour a vertex, from 1, neighbours different."""
        graph = neighbours(instance.data)
        if len(numbers) != len(graph):
            return "wrong length"
        if min(numbers, default=1) < 1:
            return "a colour below 1"
        color = dict(zip(sorted(graph), numbers, strict=True))
        clash = any(color[a] == color[b] for a, b in edge_list(graph))
        return "two neighbours of the same colour" if clash else ""

    def value(self, instance: Instance, numbers: Sequence[int]) -> float:
        """Number of different colours."""
        return float(len(set(numbers)))

    def key(self, numbers: Sequence[int]) -> str:
        """Colours renamed 1, 2, ... in the order in which they first appear."""
        names: dict[int, int] = {}
        return ",".join(str(names.setdefault(color, len(names) + 1)) for color in numbers)

    def solve(self, instance: Instance) -> Solution:
        """NP-Engine's heuristic: DSATUR, then tabu search for one colour less as long as it succeeds."""
        graph = neighbours(instance.data)
        rng = instance_rng("coloring solver", instance.fingerprint)
        best = _dsatur(graph)
        bound = len(_greedy_clique(graph))
        while (fewer := max(best.values()) - 1) >= bound:  # below the bound there is nothing to find
            found = _tabu(graph, best, fewer, rng)
            if found is None:
                break
            best = found
        return self.solution(instance, _in_order(best))

    def solve_exact(self, instance: Instance) -> Solution:
        """CP-SAT, started from DSATUR's number of colours.

        Raises:
            ValueError: Optimality was not proved within the deterministic limit.
        """
        from distmatch.tasks.np.exact import fewest_colors  # OR-Tools takes a second to import

        graph = neighbours(instance.data)
        limit = max(_dsatur(graph).values())
        return self.solution(
            instance, _in_order(fewest_colors(graph, _greedy_clique(graph), limit)), proved=True
        )

    def demonstrate(self, instance: Instance, rng: random.Random) -> str:
        """A colouring that fits, with noise."""
        return self.format(_in_order(_noisy_fit(neighbours(instance.data), rng)))

    def feasible_answers(self, instance: Instance) -> Iterator[list[int]]:
        """All proper colourings up to renaming."""
        graph = neighbours(instance.data)
        yield from _colorings(graph, sorted(graph), {})


def _in_order(color: Coloring) -> list[int]:
    return [color[node] for node in sorted(color)]


def _colorings(graph: Neighbours, left: Sequence[int], color: Coloring) -> Iterator[list[int]]:
    """All proper colourings in which colours first appear in the order 1, 2, ..."""
    if not left:
        yield _in_order(color)
        return
    node, *others = left
    taken = {color.get(other) for other in graph[node]}
    for c in range(1, max(color.values(), default=0) + 2):
        if c not in taken:
            yield from _colorings(graph, others, {**color, node: c})


def _first_free(graph: Neighbours, node: int, color: Coloring) -> int:
    taken = {color.get(other) for other in graph[node]}
    return next(c for c in itertools.count(1) if c not in taken)


def _noisy_fit(graph: Neighbours, rng: random.Random) -> Coloring:
    """The demonstration policy: any old colour that fits, now and then a new one, vertex by vertex."""
    color: Coloring = {}
    for node in sorted(graph):
        fresh = max(color.values(), default=0) + 1
        taken = {color.get(other) for other in graph[node]}
        fitting = [c for c in range(1, fresh) if c not in taken]
        color[node] = fresh if not fitting or rng.random() < FRESH else pick(rng, fitting)
    edges = edge_list(graph)
    if edges and rng.random() < SLIP:
        a, b = pick(rng, edges)
        color[b] = color[a]
    return color


def _greedy_clique(graph: Neighbours) -> list[int]:
    """A clique, by the largest over all starts: a lower bound on the number of colours."""
    best: list[int] = []
    for start in graph:
        clique, candidates = [start], set(graph[start])
        while candidates:
            clique.append(max(candidates, key=lambda node: (len(graph[node] & candidates), -node)))
            candidates &= graph[clique[-1]]
        best = max(best, clique, key=len)
    return best


def _dsatur(graph: Neighbours) -> Coloring:
    """Colour the vertex with most colours around it first, ties by degree."""
    color: Coloring = {}
    around: dict[int, set[int]] = {node: set() for node in graph}
    while len(color) < len(graph):
        left = [node for node in graph if node not in color]
        node = max(left, key=lambda node: (len(around[node]), len(graph[node]), -node))
        color[node] = _first_free(graph, node, color)
        for other in graph[node]:
            around[other].add(color[node])
    return color


def _tabu(graph: Neighbours, start: Coloring, colors: int, rng: random.Random) -> Coloring | None:
    """Tabu search for a proper colouring with `colors` colours: 10,000 moves, n^3 on small graphs."""
    color = {node: c if c <= colors else 1 + rng.randrange(colors) for node, c in start.items()}
    clashes = {
        node: [0] * (colors + 1) for node in graph
    }  # clashes[v][c]: neighbours of v that have colour c
    for node in graph:
        for other in graph[node]:
            clashes[node][color[other]] += 1
    tenure = min(15, len(graph) // 4 + 1)
    tabu: dict[tuple[int, int], int] = {}
    for step in range(min(10_000, len(graph) ** 3)):
        clashing = [node for node in graph if clashes[node][color[node]]]
        if not clashing:
            return color
        moves = _best_moves(clashing, color, clashes, tabu, step)
        if not moves:
            continue
        node, new = pick(rng, moves)
        tabu[node, color[node]] = step + tenure
        for other in graph[node]:
            clashes[other][color[node]] -= 1
            clashes[other][new] += 1
        color[node] = new
    return None


def _best_moves(
    clashing: Sequence[int],
    color: Coloring,
    clashes: Mapping[int, list[int]],
    tabu: Mapping[tuple[int, int], int],
    step: int,
) -> list[tuple[int, int]]:
    """Moves (vertex, colour) of clashing vertices that leave fewest clashes and are not tabu."""
    lowest: float = float("inf")
    moves: list[tuple[int, int]] = []
    for node in clashing:
        row = clashes[node]
        for new in range(1, len(row)):
            change = row[new] - row[color[node]]
            if new == color[node] or change > lowest or tabu.get((node, new), 0) > step:
                continue
            if change < lowest:
                lowest, moves = change, []
            moves.append((node, new))
    return moves
