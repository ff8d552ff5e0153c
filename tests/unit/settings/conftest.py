"""A small config tree of the tests' own, whose targets must never be executed."""

import shutil
from pathlib import Path

import pytest
import yaml

from distmatch.settings.cli import CONFIG_VARIABLE
from distmatch.settings.compose import Catalogue

ROOT = Path(__file__).parents[3]

PARTS = """
raise RuntimeError("a config check must not execute this module")
from dataclasses import dataclass
from fake_base import Base as Parent

class DMPO(Parent):
    min_group_size: int = 2
    def __init__(self, *, base=None, weight=1.0, temperature=1.0): ...

class GRPO(Parent):
    def __init__(self, clip_low=0.2, clip_high=0.2): ...

@dataclass
class Mixture:
    tasks: dict
    seed: int = 0

def build(path, style="compact", weights=None, window=None): ...

from fake_base import Style as Manner, Several, Count
from typing import Literal, Mapping, Optional, Sequence, Union

class Typed:
    def __init__(
        self, flag: bool = False, count: int = 1, share: float = 0.5, name: str = "x",
        limit: float | None = None, style: Manner = "a", many: Sequence[float] = (),
        pair: "tuple[float, float]" = (1, 2), count2: Count = 1, by_name: Mapping[str, int] | None = None,
        old: Optional[Union[int, str]] = None, several: Several = (), implicit: int = None,
        anything: object = None, half: int | Manner | object = 1, **more,
    ): ...

@dataclass
class Record:
    flag: bool
    style: Literal["a", 3] = "a"
"""
BASE = """
from typing import Literal
Style = Literal["a", "b", None]
Count = int
Several = list[Style]

class Base:
    min_group_size = 3
    def __init__(self, **anything): ...
"""
GROUPS = {
    "algo/dmpo": {"_target_": "fake_parts.DMPO", "weight": 0.5, "base": None},
    "algo/grpo": {"_target_": "fake_parts.GRPO", "clip_low": 0.2},
    "task/np_tiny": {"_target_": "fake_parts.Mixture", "tasks": {"tsp": 1.0, "knapsack": 1.0}},
    "task/tsp": {"_target_": "fake_parts.Mixture", "tasks": {"tsp": 1.0}},
    "reward/np_paper": {"format_bonus": 0.1},
    "model/tiny": {"_target_": "fake_parts.build", "path": "some/model", "style": "compact"},
    "sampler/hf": {"rows": 64},
    "data/rollouts": {
        "prompts_per_iteration": 8,
        "group_size": 4,
        "updates_per_rollout": 1,
        "eval_prompts": 16,
        "eval_samples": 4,
        "max_prompt_tokens": 100,
        "max_tokens": 50,
        "temperature": 1.0,
        "top_p": 1.0,
    },
    "module/policy": {"lr": 1e-3, "micro_batch_tokens": 4096, "warmup_iterations": 0},
    "callbacks/default": {
        "checkpoint": {
            "_target_": "lightning.pytorch.callbacks.ModelCheckpoint",
            "every_n_epochs": 1,
            "save_on_train_epoch_end": True,
        }
    },
}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The real main config, with stand-ins for the groups of `GROUPS` and an empty experiment group."""
    configs = tmp_path / "configs"
    stand_ins = {name.partition("/")[0] for name in GROUPS} | {"experiment"}
    for group in (ROOT / "configs").iterdir():
        if group.is_dir() and group.name not in stand_ins:
            shutil.copytree(group, configs / group.name)
    shutil.copy(ROOT / "configs" / "train.yaml", configs)
    for name, content in GROUPS.items():
        (configs / name).parent.mkdir(exist_ok=True)
        (configs / f"{name}.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "fake_parts.py").write_text(PARTS)
    (tmp_path / "fake_base.py").write_text(BASE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in (CONFIG_VARIABLE, "LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return Catalogue(configs, "train")
