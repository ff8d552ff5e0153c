"""Whole runs with sampler=vllm_server, against a stand-in for the server (tests/vllm has a real one)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from distmatch.modules.language_model import load_language_model
from distmatch.run import run
from distmatch.sampling.failure import SamplerFailure
from tests.fake_vllm import FakeServer
from tests.runs import CPU, LAB, command, config, environment, metrics, rollouts

SHORT = [*LAB, "logger=none", "trainer.max_epochs=2"]


@pytest.fixture
def server(lab_weights: Path) -> Iterator[FakeServer]:
    made = FakeServer(load_language_model(str(lab_weights), "compact"))
    yield made
    made.kill()


def overrides(lab_weights: Path, folder: Path, server: FakeServer) -> list[str]:
    where = [f"model.weights={lab_weights}", f"paths.run_dir={folder}"]
    return [*SHORT, *where, "sampler=vllm_server", f'sampler.hosts=["{server.url}"]']


def test_a_run_is_the_same_as_with_the_hf_sampler(
    lab_weights: Path, tmp_path: Path, server: FakeServer
) -> None:
    run(config(*overrides(lab_weights, tmp_path / "run", server)))
    run(config(*SHORT, f"model.weights={lab_weights}", f"paths.run_dir={tmp_path / 'hf'}"))
    assert rollouts(tmp_path / "run") == rollouts(tmp_path / "hf")
    assert all(float(row["rollout/sync_gap"]) < 1e-5 for row in metrics(tmp_path / "run"))
    assert len(list((tmp_path / "run" / "weights").iterdir())) == 1


def test_a_server_that_dies_leaves_the_last_iteration_to_resume_from(
    lab_weights: Path, tmp_path: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pushes, reload = tmp_path / "run", [], server.reload

    def dies(path: str) -> None:
        pushes.append(path)
        server.failing = 10**6 if len(pushes) == 3 else 0  # before training, iteration 0, iteration 1
        reload(path)

    monkeypatch.setattr(server, "reload", dies)
    cfg = config(*overrides(lab_weights, folder, server), "sampler.patience=1")
    with pytest.raises((SamplerFailure, SystemExit)):
        run(cfg)
    assert len(metrics(folder)) == 1
    server.failing = 0
    pushes.extend([""] * 9)
    cfg.resume = str(folder)
    run(cfg)
    assert len(metrics(folder)) == 2
    run(config(*SHORT, f"model.weights={lab_weights}", f"paths.run_dir={tmp_path / 'hf'}"))
    assert rollouts(folder) == rollouts(tmp_path / "hf")


@pytest.mark.slow
def test_two_ranks_push_once(lab_weights: Path, tmp_path: Path, server: FakeServer) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(
        command(*CPU, *overrides(lab_weights, folder, server), "trainer.devices=2", "trainer.strategy=ddp"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.log.count("/collective_rpc") == 4  # before training, two iterations, after training
    assert all(float(row["rollout/sync_gap"]) < 1e-5 for row in metrics(folder))
