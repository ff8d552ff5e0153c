"""`algo=sft data=stored_rollouts`: a finished run's good answers are distilled into another model."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from distmatch.run import newest_checkpoint, run
from distmatch.settings.errors import ConfigError
from distmatch.settings.folder import resume
from tests.runs import LAB, config, metrics, rollouts, train

QUIET = ["logger=none", "callbacks.progress=null"]
SFT = [*LAB, *QUIET, "algo=sft", "data=stored_rollouts", "algo.min_reward=0.55", "data.group_size=1"]
SFT += ["data.prompts_per_iteration=16", "module.lr=3e-3"]


def state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def source(lab_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another seed, whose samples are the trajectories."""
    folder = tmp_path_factory.mktemp("source") / "run"
    more = [f"model.weights={lab_weights}", "algo=grpo", "trainer.max_epochs=8", "seed=5"]
    run(config(*LAB, *QUIET, *more, f"paths.run_dir={folder}"))
    return folder


def arguments(source: Path, weights: Path, folder: Path, *more: str) -> list[str]:
    return [*SFT, f"data.path={source}", f"model.weights={weights}", f"paths.run_dir={folder}", *more]


@pytest.fixture(scope="module")
def whole_run(source: Path, lab_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft") / "run"
    run(config(*arguments(source, lab_weights, folder, "trainer.max_epochs=60")))
    return folder


def test_the_policy_learns_what_is_stored(source: Path, whole_run: Path) -> None:
    """Only good answers train, and held-out answers, which are sampled, become good ones."""
    rows = metrics(whole_run)
    good = {(r["instance"], r["completion"]) for r in rollouts(source) if r["reward"] >= 0.55}
    records = rollouts(whole_run)
    assert len(records) == 60 * 16
    assert {(r["instance"], r["completion"]) for r in records} == good
    assert all(float(row["train/kept_rows"]) == 1 for row in rows)
    assert float(rows[-1]["train/loss"]) < 0.7 * float(rows[0]["train/loss"])
    figures = json.loads((whole_run / "metrics.json").read_text())
    assert figures["val/quality_ratio"] > figures["start/quality_ratio"] + 0.2


def test_what_is_not_known_of_stored_answers_is_left_empty(whole_run: Path) -> None:
    """No sampler's log-probabilities, no sampling time, and a group of one cannot be flat."""
    with (whole_run / "metrics.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert all(not row.get(name) for row in rows for name in ("train/mismatch_max", "train/mismatch_kl"))
    assert not {"rollout/flat_groups", "time/sample", "time/tokens_per_second"} & set(rows[0])


def test_a_resumed_run_reads_on(source: Path, whole_run: Path, lab_weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(config(*arguments(source, lab_weights, folder, "trainer.max_epochs=7")))
    run(resume([f"resume={folder}", "trainer.max_epochs=60"]))
    first, second = state(whole_run), state(folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics(folder) == metrics(whole_run)
    assert rollouts(folder) == rollouts(whole_run)


@pytest.mark.slow
def test_two_processes_train_like_one(source: Path, lab_weights: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    more = ["trainer.max_epochs=2", "trainer.accelerator=cpu", "threads=1"]
    train(*arguments(source, lab_weights, one, *more))
    train(*arguments(source, lab_weights, two, *more, "trainer.devices=2", "trainer.strategy=ddp"))
    first, second = state(one), state(two)
    assert all(torch.allclose(first[name], second[name], atol=2e-5) for name in first)
    for row, twin in zip(metrics(one), metrics(two), strict=True):
        assert row["tokens"] == twin["tokens"]
        assert float(row["train/loss"]) == pytest.approx(float(twin["train/loss"]), rel=1e-4)


def test_losses_that_need_the_sampling_policy_are_refused(
    source: Path, lab_weights: Path, tmp_path: Path
) -> None:
    base = [a for a in arguments(source, lab_weights, tmp_path / "run") if not a.startswith("algo")]
    with pytest.raises(ConfigError, match="BalanceLoss compares the policy with the one that sampled"):
        run(
            config(*base, "algo=trajectory_balance", "algo.importance_weight=clipped", "trainer.max_epochs=1")
        )
    with pytest.raises(ConfigError, match=r"data\.group_size=1: GRPOLoss compares"):
        config(*base, "algo=grpo")
