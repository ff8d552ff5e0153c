"""Proved optima by CP-SAT: one worker, a fixed seed and a deterministic limit, so that results are pure."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from distmatch.tasks.np.graphs import Neighbours, edge_list

DETERMINISTIC_LIMIT = 60.0  # CP-SAT's own unit of work, roughly seconds; the same on any machine


def shortest_tour(distances: Sequence[Sequence[float]]) -> list[int]:
    """An optimal tour over positions 0..n-1, not closed, from integer distances."""
    model = cp_model.CpModel()
    n = len(distances)
    arcs = [(a, b, model.new_bool_var(f"{a}-{b}")) for a in range(n) for b in range(n) if a != b]
    model.add_circuit(arcs)
    model.minimize(sum(distances[a][b] * taken for a, b, taken in arcs))
    solver = prove(model, f"a tour of {n} cities")
    following = {a: b for a, b, taken in arcs if solver.value(taken)}
    tour = [0]
    while len(tour) < n:
        tour.append(following[tour[-1]])
    return tour


def largest_clique(graph: Neighbours) -> list[int]:
    """A maximum clique."""
    model = cp_model.CpModel()
    chosen = {node: model.new_bool_var(str(node)) for node in graph}
    for a in graph:
        for b in graph:
            if a < b and b not in graph[a]:
                model.add_at_most_one(chosen[a], chosen[b])
    model.maximize(sum(chosen.values()))
    solver = prove(model, f"a clique in {len(graph)} vertices")
    return sorted(node for node in graph if solver.value(chosen[node]))


def fewest_colors(graph: Neighbours, clique: Sequence[int], limit: int) -> dict[int, int]:
    """A colouring with the fewest colours, from 1.

    Args:
        graph: Vertices and neighbours.
        clique: Any clique; its vertices get the first colours, which removes symmetric solutions.
        limit: Number of colours of a known colouring.
    """
    model = cp_model.CpModel()
    used = [model.new_bool_var(f"used {c}") for c in range(limit)]
    has = {node: [model.new_bool_var(f"{node} has {c}") for c in range(limit)] for node in graph}
    for node in graph:
        model.add_exactly_one(has[node])
    for a, b in edge_list(graph):
        for c in range(limit):
            model.add_at_most_one(has[a][c], has[b][c])
    for c in range(limit):
        for node in graph:
            model.add_implication(has[node][c], used[c])
        if c:
            model.add_implication(used[c], used[c - 1])
    for c, node in enumerate(clique):
        model.add(has[node][c] == 1)
    model.minimize(sum(used))
    solver = prove(model, f"a colouring of {len(graph)} vertices")
    return {node: 1 + next(c for c in range(limit) if solver.value(has[node][c])) for node in graph}


def prove(model: cp_model.CpModel, what: str) -> cp_model.CpSolver:
    """Solve to a proved optimum with one worker, a fixed seed and a deterministic limit: the same everywhere.

    Raises:
        ValueError: Not proved within the limit; names `what`.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = DETERMINISTIC_LIMIT
    if solver.solve(model) != cp_model.OPTIMAL:
        raise ValueError(
            f"{what} was not proved optimal within {DETERMINISTIC_LIMIT:g} units of deterministic time; "
            "use reference=heuristic"
        )
    return solver
