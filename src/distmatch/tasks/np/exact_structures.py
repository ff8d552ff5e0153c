"""Proved longest cycles, covers, cuts and schedules by CP-SAT, under the limits of `exact`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortools.sat.python import cp_model

from distmatch.tasks.np.exact import prove
from distmatch.tasks.np.graphs import Neighbours, edge_list

Weights = Mapping[tuple[int, int], float]


def longest_cycle(graph: Neighbours) -> list[int]:
    """A longest cycle, not closed; the graph must have a cycle."""
    model = cp_model.CpModel()
    arcs, skipped = [], []
    for node in sorted(graph):
        skipped.append(model.new_bool_var(f"skip {node}"))
        arcs.append((node, node, skipped[-1]))
    for a, b in edge_list(graph):
        there, back = model.new_bool_var(f"{a}-{b}"), model.new_bool_var(f"{b}-{a}")
        model.add_at_most_one(there, back)  # no edge back and forth
        arcs += [(a, b, there), (b, a, back)]
    model.add_circuit(arcs)
    model.add(sum(skipped) <= len(graph) - 3)
    model.minimize(sum(skipped))
    solver = prove(model, f"a cycle in {len(graph)} vertices")
    following = {a: b for a, b, taken in arcs if a != b and solver.value(taken)}
    cycle = [min(following)]
    while (after := following[cycle[-1]]) != cycle[0]:
        cycle.append(after)
    return cycle


def smallest_cover(subsets: Mapping[int, frozenset[int]], universe: frozenset[int]) -> list[int]:
    """The fewest subsets whose union is the universe, which the subsets must cover together."""
    model = cp_model.CpModel()
    chosen = {name: model.new_bool_var(str(name)) for name in sorted(subsets)}
    for element in sorted(universe):
        model.add_bool_or([chosen[name] for name in chosen if element in subsets[name]])
    model.minimize(sum(chosen.values()))
    solver = prove(model, f"a cover by {len(subsets)} subsets")
    return [name for name in chosen if solver.value(chosen[name])]


def lightest_bisection(vertices: Sequence[int], weights: Weights, hint: Sequence[int]) -> list[int]:
    """The smaller side, or one of two equal ones, of a bisection that cuts least weight.

    Args:
        vertices: At least one vertex.
        weights: Integer weight of each edge, smaller end first.
        hint: The smaller side of a good bisection, to start from.
    """
    model = cp_model.CpModel()
    side = {vertex: model.new_bool_var(str(vertex)) for vertex in vertices}
    model.add(sum(side.values()) == len(vertices) // 2)
    if len(vertices) % 2 == 0:
        model.add(side[vertices[0]] == 1)
    _add_cut(model, side, weights, sense="min")
    mirrored = len(vertices) % 2 == 0 and vertices[0] not in hint
    for vertex in vertices:
        model.add_hint(side[vertex], (vertex in hint) != mirrored)
    solver = prove(model, f"a bisection of {len(vertices)} vertices")
    return [vertex for vertex in vertices if solver.value(side[vertex])]


def heaviest_cut(vertices: Sequence[int], weights: Weights, hint: Sequence[int]) -> list[int]:
    """The side without the first vertex of a cut of greatest weight; arguments as in `lightest_bisection`."""
    model = cp_model.CpModel()
    side = {vertex: model.new_bool_var(str(vertex)) for vertex in vertices}
    model.add(side[vertices[0]] == 0)
    _add_cut(model, side, weights, sense="max")
    for vertex in vertices:
        model.add_hint(side[vertex], (vertex in hint) != (vertices[0] in hint))
    solver = prove(model, f"a cut of {len(vertices)} vertices")
    return [vertex for vertex in vertices if solver.value(side[vertex])]


def _add_cut(
    model: cp_model.CpModel, side: Mapping[int, cp_model.IntVar], weights: Weights, sense: str
) -> None:
    """Optimise the weight between the two sides."""
    crossing = {(a, b): model.new_bool_var(f"{a}|{b}") for a, b in weights}
    for (a, b), cut in crossing.items():
        model.add_bool_or(cut, side[a], side[b].negated())
        model.add_bool_or(cut, side[a].negated(), side[b])
        model.add_bool_or(cut.negated(), side[a], side[b])
        model.add_bool_or(cut.negated(), side[a].negated(), side[b].negated())
    total = sum(weights[edge] * cut for edge, cut in crossing.items())
    if sense == "min":
        model.minimize(total)
    else:
        model.maximize(total)
