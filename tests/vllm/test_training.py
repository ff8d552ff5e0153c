"""Whole runs with `sampler=vllm`: full weights and LoRA, resumed, on two ranks, with an engine that dies."""

from __future__ import annotations

import csv
import subprocess
import time
from pathlib import Path

import pytest
import torch

from distmatch.modules.tiny import shipped_folder
from distmatch.run import run
from distmatch.settings import folder as run_folder
from distmatch.settings.checks import check
from tests.runs import ROOT, command, config, environment
from tests.vllm.models import NOISE

pytestmark = pytest.mark.vllm
RUN = ["sampler=vllm", "algo=grpo", "logger=none", "trainer.max_epochs=3", "data.prompts_per_iteration=8"]
RUN += ["data.group_size=4", "data.eval_prompts=4", "data.eval_samples=2", "module.lr=1e-3"]


def figures(run_dir: Path) -> list[dict[str, float]]:
    with (run_dir / "metrics.csv").open(newline="", encoding="utf-8") as lines:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(lines)]


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("*.ckpt"))


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoints(run_dir)[-1], weights_only=True)["state_dict"]


def check_run(run_dir: Path, iterations: int = 3) -> None:
    """It trained, and at every iteration on what the trainer's own weights would have said."""
    rows = figures(run_dir)
    assert len(rows) == iterations
    for row in rows:
        assert row["train/mismatch_max"] < NOISE
        assert row["train/grad_norm"] > 0


def test_lora(tmp_path: Path) -> None:
    hf = ["model=hf", f"model.path={shipped_folder()}", "model.style=compact"]
    lora = "model.lora={r: 4, lora_alpha: 8, target_modules: all-linear}"
    run(config(*RUN, *hf, lora, "module.lr=1e-2", f"paths.run_dir={tmp_path / 'run'}"))
    check_run(tmp_path / "run")
    trained = weights(tmp_path / "run")
    assert all(".lora_" in name for name in trained)
    assert max(float(w.abs().max()) for name, w in trained.items() if ".lora_B." in name) > 1e-3


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*RUN, "trainer.accelerator=cpu", "threads=1", *arguments),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("shared", [1, 2], ids=["an engine each", "one engine"])
def test_two_ranks(tmp_path: Path, shared: int) -> None:
    """Engines that stop do not take the trainer's process group with them; two ranks may share one."""
    ranks = ["trainer.devices=2", "trainer.strategy=ddp", f"sampler.tensor_parallel_size={shared}"]
    done = program(*ranks, f"paths.run_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr[-3000:]
    check_run(tmp_path / "run")


def test_a_dead_engine_ends_the_run_which_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    """Weights after a death and a resume are those of a run in which nothing happened."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = program("sampler._target_=tests.vllm.faults.Dies", f"paths.run_dir={broken}")
    died = time.time()
    assert done.returncode != 0
    assert "vLLM failed while loading weights: EngineDeadError" in done.stderr
    assert "python train.py resume=" in done.stdout + done.stderr
    (left,) = checkpoints(broken)
    assert left.stem == "iteration-000001"
    assert died - left.stat().st_mtime < 30  # from the last good iteration to the end of the process
    cfg = run_folder.resume([f"resume={broken}"])
    check(cfg)
    run(cfg)
    run(config(*RUN, f"paths.run_dir={whole}"))
    check_run(whole)
    check_run(broken)
    ours, theirs = weights(broken), weights(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
