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
BASELINES = ("dmpo", "grpo", "gspo", "gpg", "clip_cov", "pass_at_k_best")
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


@pytest.mark.parametrize("algo", BASELINES)
def test_the_benchmark_runs_have_the_papers_numbers(algo):
    cfg = compose(CATALOGUE, ["experiment=np_bench", f"algo={algo}"])
    check(cfg)
    assert cfg.model.path == "Qwen/Qwen2.5-7B-Instruct-1M"
    assert (cfg.data.group_size, cfg.trainer.max_epochs) == (8, 250)
    assert (cfg.module.lr, cfg.module.scheduler) == (1e-6, "cosine")
    assert cfg.data.prompts_per_iteration // cfg.data.updates_per_rollout == 32
    assert (cfg.choices.task, cfg.choices.reward, cfg.data.eval_prompts) == ("np_bench", "np_paper", 1000)


def test_dmpo_has_the_papers_weights_around_the_very_baseline():
    dmpo, grpo = (
        compose(CATALOGUE, ["experiment=np_bench", f"algo={name}"]).algo for name in ("dmpo", "grpo")
    )
    assert dmpo.weight == 2 and math.isclose(dmpo.temperature, 1 / 15)
    assert dmpo.base == grpo
    assert (grpo.clip_low, grpo.clip_high, grpo.kl_coef) == (0.2, 0.2, 0.0)


def test_a_benchmark_run_starts(tmp_path):
    members = OmegaConf.load(ROOT / "configs" / "task" / "np_bench.yaml").tasks
    tiny = [f"task.tasks.{name}.level=tiny" for name in members]
    figures = run(config("experiment=np_bench", *SMALL, *tiny, f"paths.run_dir={tmp_path}/run"))
    categories = {key for key in figures if key.startswith("val/category_") and key.endswith("/success_rate")}
    assert len(categories) == 5
    assert (tmp_path / "run" / "metrics.json").is_file()
