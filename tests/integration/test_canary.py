"""The canary in whole runs: honest engines train on, broken ones stop before an update, on every rank."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from distmatch.callbacks.sync_check import SyncError
from distmatch.checkpoints import newest_checkpoint, read_checkpoint
from distmatch.run import run
from distmatch.sampling.failure import SamplerFailure
from tests.runs import CPU, LAB, command, config, environment, metrics

ENGINES = "tests.engines"
SHORT = [*LAB, "logger=none", "trainer.max_epochs=3"]


def engine(name: str) -> list[str]:
    return [f"sampler._target_={ENGINES}.{name}", "~sampler.max_rows"]


def settings(lab_weights: Path, folder: Path, *more: str) -> DictConfig:
    return config(*SHORT, f"model.weights={lab_weights}", f"paths.run_dir={folder}", *more)


def stopped(cfg: DictConfig) -> SamplerFailure:
    """What ended a run; the program turns it into an exit status and one line."""
    with pytest.raises((SamplerFailure, SystemExit)) as caught:
        run(cfg)
    error = caught.value
    return error if isinstance(error, SamplerFailure) else error.__context__


def test_an_honest_engine_trains_on(lab_weights: Path, tmp_path: Path) -> None:
    run(settings(lab_weights, tmp_path / "run", *engine("Engine")))
    rows = metrics(tmp_path / "run")
    assert len(rows) == 3
    assert all(0 < float(row["rollout/sync_gap"]) < 1e-5 for row in rows)
    assert all(float(row["train/mismatch_ratio_max"]) == pytest.approx(1, abs=1e-4) for row in rows)
    assert not list((tmp_path / "run").glob("canary-*"))


def test_under_mixed_precision_gap_and_mismatch_are_of_one_size(lab_weights: Path, tmp_path: Path) -> None:
    """Both set the engine, which is exact here, beside the policy that is trained, which rounds."""
    run(settings(lab_weights, tmp_path / "run", *engine("Engine"), "trainer.precision=bf16-mixed"))
    for row in metrics(tmp_path / "run"):
        gap, limit = float(row["rollout/sync_gap"]), float(row["rollout/sync_limit"])
        assert 1e-4 < gap < min(limit, float(row["train/mismatch_max"]))


def test_the_hf_sampler_is_checked_at_the_start_only(
    lab_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distmatch.callbacks.sync_check import SyncCheck

    looks, look = [], SyncCheck.look
    monkeypatch.setattr(SyncCheck, "look", lambda *given: looks.append(1) or look(*given))
    run(settings(lab_weights, tmp_path / "run"))
    assert len(looks) == 1
    assert "rollout/sync_gap" not in metrics(tmp_path / "run")[0]


def test_a_broken_sync_stops_before_the_update(lab_weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    error = stopped(settings(lab_weights, folder, *engine("SkipsSync")))
    assert isinstance(error, SyncError)
    assert error.cause == "old_weights"
    assert re.search("new weights did not arrive.*What was compared is kept in", str(error))
    assert len(metrics(folder)) == 1
    assert read_checkpoint(newest_checkpoint(folder))["global_step"] == 1
    assert not (folder / "export").exists()
    kept = torch.load(folder / "canary-iteration1-rank0.pt", weights_only=True)
    assert kept["cause"] == "old_weights"
    assert kept["gap"] > kept["limit"]
    for name in ("fixed", "rollouts"):
        seen = kept[name]
        apart = (seen["sampler_logprobs"] - seen["trainer"]).abs()[seen["completion_mask"]].mean()
        assert apart == pytest.approx(kept["gap"], rel=1e-5) or apart < kept["gap"]


def test_an_engine_without_the_adapter_of_a_resumed_run(lab_weights: Path, tmp_path: Path) -> None:
    """The first iteration after a resume is sampled from the base: it must not become an update."""
    folder = tmp_path / "run"
    lora = "model.lora={r: 4, lora_alpha: 8, target_modules: all-linear}"
    model = ["model=hf", f"model.path={lab_weights}", "model.style=compact", lora, "module.lr=1e-2"]
    base = [*LAB, "logger=none", "trainer.max_epochs=1", *model, f"paths.run_dir={folder}"]
    cfg = config(*base, *engine("Engine"))
    run(cfg)
    cfg.sampler._target_ = f"{ENGINES}.BaseOnly"
    cfg.resume, cfg.trainer.max_epochs = str(folder), 2
    assert stopped(cfg).cause == "adapter_missing"
    assert len(metrics(folder)) == 1


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("callbacks.canary.bound=0", "callbacks.canary.bound=0 must be above 0"),
        ("+callbacks.canary.rows=0", "callbacks.canary.rows=0 must be at least 1"),
        ("callbacks.canary.engine_dtype=fp8", "callbacks.canary.engine_dtype='fp8' is unknown"),
    ],
)
def test_bad_settings_are_named(lab_weights: Path, tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(Exception, match=words):
        run(settings(lab_weights, tmp_path / "run", override))


@pytest.mark.slow
def test_all_ranks_stop_when_one_engine_is_broken(lab_weights: Path, tmp_path: Path) -> None:
    where = [f"model.weights={lab_weights}", f"paths.run_dir={tmp_path / 'run'}"]
    done = subprocess.run(
        command(
            *CPU, *SHORT, *where, *engine("SkipsSyncOnRank1"), "trainer.devices=2", "trainer.strategy=ddp"
        ),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode != 0
    assert "the engine of another rank does not run the trainer's policy" in done.stderr
    assert [file.name for file in (tmp_path / "run").glob("canary-*")] == ["canary-iteration1-rank1.pt"]
    assert len(metrics(tmp_path / "run")) == 1
