"""Proved smallest and largest sets of vertices by CP-SAT, under the limits of `exact`."""

from __future__ import annotations

from ortools.sat.python import cp_model

from distmatch.tasks.np.exact import prove
from distmatch.tasks.np.graphs import Neighbours, edge_list
from distmatch.tasks.np.vertex_sets import cyclic_core

Variables = dict[int, cp_model.IntVar]


def largest_independent_set(graph: Neighbours) -> list[int]:
    """A maximum independent set; the vertices left out are a minimum vertex cover."""
    model, chosen = _one_variable_a_vertex(graph)
    for a, b in edge_list(graph):
        model.add_at_most_one(chosen[a], chosen[b])
    model.maximize(sum(chosen.values()))
    return _taken(prove(model, f"an independent set in {len(graph)} vertices"), chosen)


def smallest_vertex_cover(graph: Neighbours) -> list[int]:
    """A minimum vertex cover."""
    model, chosen = _one_variable_a_vertex(graph)
    for a, b in edge_list(graph):
        model.add_bool_or(chosen[a], chosen[b])
    model.minimize(sum(chosen.values()))
    return _taken(prove(model, f"a vertex cover of {len(graph)} vertices"), chosen)


def smallest_dominating_set(graph: Neighbours) -> list[int]:
    """A minimum dominating set."""
    model, chosen = _one_variable_a_vertex(graph)
    for node, others in graph.items():
        model.add_bool_or(chosen[node], *(chosen[other] for other in sorted(others)))
    model.minimize(sum(chosen.values()))
    return _taken(prove(model, f"a dominating set of {len(graph)} vertices"), chosen)


def smallest_feedback_vertex_set(graph: Neighbours) -> list[int]:
    """A minimum feedback vertex set.

    What is left is a forest if and only if its vertices have heights such that every edge goes up and no
    vertex has more than one edge up, to its parent.
    """
    core = cyclic_core(graph)
    edges = edge_list(core)
    model, chosen = _one_variable_a_vertex(core)
    height = {node: model.new_int_var(0, len(core) - 1, f"height {node}") for node in sorted(core)}
    ups: dict[int, list[cp_model.IntVar]] = {node: [] for node in sorted(core)}
    for a, b in edges:
        up, down = model.new_bool_var(f"{a} up to {b}"), model.new_bool_var(f"{b} up to {a}")
        model.add_bool_or(chosen[a], chosen[b], up, down)
        model.add(height[a] < height[b]).only_enforce_if(up)
        model.add(height[b] < height[a]).only_enforce_if(down)
        ups[a].append(up)
        ups[b].append(down)
    for node, arcs in ups.items():
        model.add_at_most_one(chosen[node], *arcs)
    _tighten(model, core, chosen)
    model.minimize(sum(chosen.values()))
    return _taken(prove(model, f"a feedback vertex set of {len(graph)} vertices"), chosen)


def _tighten(model: cp_model.CpModel, core: Neighbours, chosen: Variables) -> None:
    """Implied constraints that raise the bound: a vertex of each short cycle, and enough degrees in all.

    A forest has at most as many edges as vertices, and a vertex takes at most its degree of edges with it.
    """
    for cycle in _short_cycles(core):
        model.add_bool_or([chosen[node] for node in cycle])
    if core:
        spare = sum((len(core[node]) - 1) * taken for node, taken in chosen.items())
        model.add(spare >= len(edge_list(core)) - len(core))


def _one_variable_a_vertex(graph: Neighbours) -> tuple[cp_model.CpModel, Variables]:
    model = cp_model.CpModel()
    return model, {node: model.new_bool_var(str(node)) for node in sorted(graph)}


def _taken(solver: cp_model.CpSolver, chosen: Variables) -> list[int]:
    return sorted(node for node, taken in chosen.items() if solver.value(taken))


def _short_cycles(graph: Neighbours) -> list[list[int]]:
    """For every edge that lies on a cycle, a shortest one through it; none twice."""
    cycles = {frozenset(_path_around(graph, a, b)) for a, b in edge_list(graph)} - {frozenset()}
    return sorted(map(sorted, cycles))


def _path_around(graph: Neighbours, a: int, b: int) -> list[int]:
    """The vertices of a shortest path from a to b that does not use their edge; empty if there is none."""
    before = {a: a}
    queue = [a]
    for node in queue:
        for other in sorted(graph[node]):
            if other not in before and (node, other) != (a, b):
                before[other] = node
                queue.append(other)
    if b not in before:
        return []
    path = [b]
    while path[-1] != a:
        path.append(before[path[-1]])
    return path
