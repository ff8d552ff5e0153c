"""Hashes of the first instances: a change means that everybody's data changed, so it must be on purpose.

On purpose: paste the digests that the failing assertion shows. This is the only place that holds them.
"""

import hashlib
import json
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

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
    "maximum_independent_set-easy": "55a921a447c34e476c386ac58a9dabe6d4c3ff359ebf9f4855774df9523c8db8",
    "maximum_independent_set-bench": "ebf0ac0a936b0262d75e495745564dc58cc86a12f45aa8c921fed387b2760ecf",
    "vertex_cover-easy": "f461df5a6472b57b730e06da979cfb2b50c53e52652f0a8968ec8f7ed25837c0",
    "vertex_cover-bench": "d12ea31652f9d16ebbdbbe08e96d0197de7b51f0676ee2569e02c2cca4c70a8a",
    "dominating_set-easy": "f5330d4075cb0235f798784588a9616b25a58438dd8aa209f1fe3fcd5efaf161",
    "dominating_set-bench": "14a6a1ce4e5b7a4de27f9a8e52ea174709d499fb3f1057ebd79b28dafde001bc",
    "feedback_vertex_set-easy": "b3865771cfa780e84faa73247e053e038657313e7be0cddf8640486a2758868d",
    "feedback_vertex_set-bench": "bdda95a0466ff214c28ff69e0bc5996efd4308e9be4b9bd233c4664a8261062a",
    "hamiltonian_cycle-easy": "faa97da3543e91c5e9ec273cea9112c1cc6cf088dbcc1d07e32162ecb1d9da34",
    "hamiltonian_cycle-bench": "4ba8fdbdb8afe51bde737f50c1a3de164c169c047ae32f18120ef1d5fa2c0cba",
    "minimum_bisection-easy": "c0a22e788c0be9421881045f3e9c6e2660c1ae8fe3f8d4f0051b1dfa370464e3",
    "minimum_bisection-bench": "dcaca9f94d7c10862ee45f543fd2c7b73eace2664963d8b4fe03d8c271cccc98",
    "maximum_cut-easy": "43d63e05af4747d258929d02afa42715114294de38786e550c56f8a9bf830d88",
    "maximum_cut-bench": "f6ad5bf9c2651217d409470d02ba07f5a7299f28aa4e1b1ad140ef7c0be701ae",
    "set_cover-easy": "04a311f820a4327d7cd56edcfc3f30f409a71578564b1e55b7093cc84d9170b0",
    "set_cover-bench": "c8421d4c072ed83321e692769ac05c3b5589c99dbfe3713db287325acfaf6332",
    "subset_sum-easy": "d1861e0433d4d216ea257e3733dfc6bee26b322290d10c01b5a185812d94e896",
    "subset_sum-bench": "afe9d003efed1ce07c1315c35cd39ffd7b910dbd3bb699fe6c1178f9f9e95ca0",
    "meeting_scheduling-easy": "a7d67eba99211eacdafa3bf12f53ffa9a64c4c59e9413ea92b1e02f24bf3d44f",
    "meeting_scheduling-bench": "5a12ac7f478fe35ea024d86cde7ca3366e68085dfd4bf9d9ffba09e2a05c8d3b",
}


def stream(name):
    """The task of a name in `GOLDEN`: a config, at a level where one is given."""
    config, _, level = name.partition("-")
    node = OmegaConf.load(ROOT / "configs" / "task" / f"{config}.yaml")
    return instantiate(node, level=level) if level else instantiate(node)


def digest(task, count=8):
    """sha256 over addresses and data of the first instances of each split."""
    total = hashlib.sha256()
    for split in ("train", "val", "test"):
        for index in range(count):
            instance = task.instance(split, index)
            total.update(f"{instance.id}\n{json.dumps(instance.data, sort_keys=True)}\n".encode())
    return total.hexdigest()


@pytest.mark.parametrize("name", GOLDEN)
def test_first_instances_are_what_they_were(name):
    assert digest(stream(name)) == GOLDEN[name]
