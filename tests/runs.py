"""Composing and starting whole runs from tests."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

from omegaconf import DictConfig

from distmatch.settings.checks import check
from distmatch.settings.compose import Catalogue, compose
from distmatch.settings.folder import create_run_folder

ROOT = Path(__file__).parents[1]
LAB = [
    "task=lab",
    "task.prompts=2",
    "task.modes=16",
    "task.near=64",
    "data.max_tokens=8",
    "data.eval_prompts=2",
]
LAB += ["data.prompts_per_iteration=8", "data.group_size=4", "data.eval_samples=8", "module.lr=1e-3"]
SMALL = ["model.hidden_size=64", "model.layers=2", "model.heads=2", "model.key_value_heads=1"]
SMALL += ["model.intermediate_size=128"]
CPU = ["trainer.accelerator=cpu", "threads=1"]


def config(*overrides: str) -> DictConfig:
    """A composed and checked config on the CPU, with its run folder made."""
    cfg = compose(Catalogue(ROOT / "configs", "train", None), [*CPU, *overrides])
    check(cfg)
    create_run_folder(cfg, list(overrides))
    return cfg


def lab_warm_start(folder: Path) -> Path:
    """The folder of a small model that knows the lab's language."""
    from distmatch.run import run

    steps = ["warm_start.steps=120", "warm_start.batch_size=64", "warm_start.workers=0"]
    run(
        config(
            "stage=warm_start",
            *LAB,
            *SMALL,
            *steps,
            f"paths.cache_dir={folder}",
            f"paths.run_dir={folder}/run",
        )
    )
    return next(folder.glob("warm_start-*"))


def command(*arguments: str) -> list[str]:
    """The command line of `python train.py`."""
    return [sys.executable, str(ROOT / "train.py"), *arguments]


def environment() -> dict[str, str]:
    """The environment of a child process: one thread, no config of a parent run."""
    keep = {k: v for k, v in os.environ.items() if k != "DISTMATCH_CONFIG"}
    return keep | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def train(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run `python train.py` to its end and demand success."""
    done = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics.csv without what depends on the clock."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as lines:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(lines)]


def rollouts(folder: Path) -> list[dict[str, object]]:
    """The records of a run's rollouts.jsonl."""
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()]
