"""Hashes of the first instances: a change means that everybody's data changed, so it must be on purpose.

On purpose: paste the digests that the failing assertion shows. This is the only place that holds them.
"""

import hashlib
import json
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from distmatch.tasks.lab import Lab
from distmatch.tasks.np.graph_coloring import GraphColoring
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.maximum_clique import MaximumClique
from distmatch.tasks.np.tsp import TSP

ROOT = Path(__file__).parents[2]
GOLDEN = {
    "np_tiny": "d0c7e2a1820e2d9b4ad556aba2be9aeea41a854c22e1e9f087962b57bba185b8",
    "lab": "616f28f9d1a8fbe3dc8e15c5b6071b86753218c68e630b93b2293fccad3e3364",
    "tsp-easy": "3699e81a1bf2663c3e63ce6913af26eaaae6e993f08790e3291b4db3c096a8d7",
    "tsp-bench": "a2bfc527885d446f4c614ce2875b2c4cb9ceb99b0f66750134a4cbc7bdf9156b",
    "knapsack-easy": "93b69f2d1942b1571a742729e6f33cf55b23dffd2c0ac756441ba88c669139b5",
    "knapsack-bench": "932269613e8de644007bfbded2df75ae8ce25f35222debacb380f3cfecc350de",
    "graph_coloring-easy": "1c288ee38c7d6bec6da7d3eb9bc1fa1782878ab06238fa775adcfb87c9cdc9b3",
    "graph_coloring-bench": "2ce0c5df95df559350c5e7e3d459846136e9f65acdf840f2dbf233f073555ee0",
    "maximum_clique-easy": "9df97149319c7dff3ce05ea908f27282fcc059b214d365168c86d5431d919167",
    "maximum_clique-bench": "177c36fa2f26284a9d6ec50b981634e6667112e3cd304bc8ca4a1055690f0d0c",
}


def np_tiny():
    return instantiate(OmegaConf.load(ROOT / "configs" / "task" / "np_tiny.yaml"))


STREAMS = {"np_tiny": np_tiny, "lab": Lab}
STREAMS |= {
    f"{kind.name}-{level}": lambda kind=kind, level=level: kind(level)
    for kind in (TSP, Knapsack, GraphColoring, MaximumClique)
    for level in ("easy", "bench")
}


def digest(task, count=8):
    """sha256 over addresses and data of the first instances of each split."""
    total = hashlib.sha256()
    for split in ("train", "val", "test"):
        for index in range(count):
            instance = task.instance(split, index)
            total.update(f"{instance.id}\n{json.dumps(instance.data, sort_keys=True)}\n".encode())
    return total.hexdigest()


@pytest.mark.parametrize("name", STREAMS)
def test_first_instances_are_what_they_were(name):
    assert digest(STREAMS[name]()) == GOLDEN[name]
