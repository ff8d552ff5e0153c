"""Every experiment composes at its full size, and starts with tiny overrides."""

import math

import pytest
from omegaconf import OmegaConf

from distmatch.run import run
from distmatch.settings.checks import check
from distmatch.settings.compose import Catalogue, compose
from tests.runs import ROOT, config

CATALOGUE = Catalogue(ROOT / "configs", "train")
EXPERIMENTS = CATALOGUE.options("experiment")
SMALL = ["model=tiny", "~model.path", "~model.dtype", "trainer.max_epochs=1", "logger=none"]
SMALL += ["trainer.devices=1", "trainer.strategy=auto", "trainer.precision=32-true"]
SMALL += [
    "data.prompts_per_iteration=8",
    "data.group_size=2",
    "data.max_prompt_tokens=112",
    "data.max_tokens=8",
]
SMALL += ["data.eval_prompts=10", "data.eval_samples=2"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_compose_at_full_size(name):
    cfg = compose(CATALOGUE, [f"experiment={name}"])
    check(cfg)


def test_the_benchmark_runs_have_the_papers_numbers():
    runs = {name: compose(CATALOGUE, [f"experiment=np_bench_{name}"]) for name in ("dmpo", "grpo")}
    for cfg in runs.values():
        assert cfg.model.path == "Qwen/Qwen2.5-7B-Instruct-1M"
        assert (cfg.data.group_size, cfg.trainer.max_epochs) == (8, 250)
        assert (cfg.module.lr, cfg.module.scheduler) == (1e-6, "cosine")
        assert cfg.data.prompts_per_iteration // cfg.data.updates_per_rollout == 32
        assert (cfg.choices.task, cfg.choices.reward, cfg.data.eval_prompts) == ("np_bench", "np_paper", 1000)
    dmpo = runs["dmpo"].algo
    assert dmpo.weight == 2 and math.isclose(dmpo.temperature, 1 / 15)
    assert dmpo.base == runs["grpo"].algo  # the baseline is the very loss inside
    rest = [
        {key: value for key, value in OmegaConf.to_container(cfg).items() if key not in ("algo", "choices")}
        for cfg in runs.values()
    ]
    assert rest[0] == rest[1]


def test_a_benchmark_run_starts(tmp_path):
    members = OmegaConf.load(ROOT / "configs" / "task" / "np_bench.yaml").tasks
    tiny = [f"task.tasks.{name}.level=tiny" for name in members]
    figures = run(config("experiment=np_bench_dmpo", *SMALL, *tiny, f"paths.run_dir={tmp_path}/run"))
    categories = {key for key in figures if key.startswith("val/category_") and key.endswith("/success_rate")}
    assert len(categories) == 5
    assert (tmp_path / "run" / "metrics.json").is_file()
