from __future__ import annotations

import pytest

from distmatch.tasks.base import Task
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.graph_coloring import GraphColoring
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.maximum_clique import MaximumClique
from distmatch.tasks.np.tsp import TSP


@pytest.fixture(scope="session")
def np_tiny() -> Task:
    """The four text tasks; instances and references are computed once."""
    members = (TSP(), Knapsack(), GraphColoring(), MaximumClique())
    return Mixture({member.name: member for member in members})
