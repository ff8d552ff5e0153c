"""DAPO's sampling loop in whole runs: what is written, resumed, stopped, and shared by two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from distmatch.run import newest_checkpoint, run
from distmatch.settings import main
from distmatch.settings.folder import resume
from tests.runs import CPU, LAB, ROOT, config, metrics, rollouts, train

# About a third of these groups has signal, so that some iterations find enough of them and others do not.
DAPO = [*LAB, "experiment=dapo", "reward@reward.base=np_paper", "data.max_tokens=6", "data.group_size=4"]
DAPO += ["data.prompts_per_iteration=8", "logger=none", "callbacks.progress=null"]
ITERATIONS = 4


def arguments(weights: Path, folder: Path, *more: str) -> list[str]:
    return [*DAPO, f"model.weights={weights}", f"paths.run_dir={folder}", *more]


def state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def whole_run(lab_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dapo") / "run"
    run(config(*arguments(lab_weights, folder, f"trainer.max_epochs={ITERATIONS}")))
    return folder


def by_group(records: list[dict]) -> dict[int, list[dict]]:
    groups: dict[int, list[dict]] = {}
    for record in records:
        groups.setdefault(record["group"], []).append(record)
    return groups


def test_every_sampled_completion_is_written_and_counted(whole_run: Path) -> None:
    """The figures of the loop, computed again from rollouts.jsonl alone."""
    records, tokens, seen, full = rollouts(whole_run), 0, 0, 0
    for number, row in enumerate(metrics(whole_run)):
        own = [record for record in records if record["iteration"] == number]
        groups = by_group(own)
        assert sorted(groups) == list(range(seen, seen + len(groups)))
        seen, tokens = seen + len(groups), tokens + sum(record["length"] for record in own)
        assert (float(row["rollout/prompts_seen"]), int(row["tokens"])) == (seen, tokens)
        live = {n: [r["reward"] for r in g if not r["truncated"]] for n, g in groups.items()}
        kept = [n for n in sorted(live) if len(set(live[n])) > 1]
        full += len(kept) >= 8
        assert len(kept) >= 8 or float(row["rollout/rounds"]) == 3
        assert float(row["rollout/keep_rate"]) == pytest.approx(len(kept) / len(groups))
        assert [n for n in sorted(groups) if groups[n][0]["trained"]] == kept[:8]
        assert float(row["rollout/reward"]) == pytest.approx(
            sum(r["reward"] for r in own) / len(own), abs=1e-6
        )
    figures = json.loads((whole_run / "metrics.json").read_text())
    assert figures["run/tokens"] == tokens
    assert full and seen > 8 * ITERATIONS


def test_a_resumed_run_samples_the_same_rounds(whole_run: Path, lab_weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(config(*arguments(lab_weights, folder, "trainer.max_epochs=2")))
    run(resume([f"resume={folder}", f"trainer.max_epochs={ITERATIONS}"]))
    first, second = state(whole_run), state(folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics(folder) == metrics(whole_run)
    assert rollouts(folder) == rollouts(whole_run)


@pytest.mark.slow
def test_two_processes_train_like_one(whole_run: Path, lab_weights: Path, tmp_path: Path) -> None:
    """Same prompts, same rounds, same groups in every update, whichever process sampled them."""
    folder = tmp_path / "two"
    more = ["trainer.max_epochs=2", "trainer.devices=2", "trainer.strategy=ddp"]
    train(*CPU, *arguments(lab_weights, folder, *more))
    rows = metrics(whole_run)[:2]
    for row, twin in zip(rows, metrics(folder), strict=True):
        for name in ("rollout/rounds", "rollout/keep_rate", "rollout/prompts_seen", "tokens"):
            assert float(row[name]) == float(twin[name]), name
        assert float(row["train/loss"]) == pytest.approx(float(twin["train/loss"]), abs=1e-5)
        assert float(row["train/grad_norm"]) == pytest.approx(float(twin["train/grad_norm"]), rel=1e-3)
    other = [json.loads(line) for line in (folder / "rollouts-rank1.jsonl").read_text().splitlines()]
    together = by_group(rollouts(folder) + other)
    alone = by_group([record for record in rollouts(whole_run) if record["iteration"] < 2])
    assert sorted(together) == sorted(alone)
    for number, records in alone.items():
        assert [(r["completion"], r["trained"]) for r in together[number]] == [
            (r["completion"], r["trained"]) for r in records
        ]


def test_stopping_keeps_the_last_iteration(
    lab_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the second iteration on no group has signal any more."""
    folder = tmp_path / "run"
    run(config(*arguments(lab_weights, folder, "trainer.max_epochs=1")))
    before, rows, records = state(folder), metrics(folder), rollouts(folder)
    cfg = OmegaConf.load(folder / "config.yaml")
    cfg.data.on_exhaustion = "stop"
    OmegaConf.save(cfg, folder / "config.yaml")
    monkeypatch.setattr("distmatch.rewards.Overlong.__call__", lambda *_: 0.5)
    monkeypatch.setenv("DISTMATCH_CONFIG", "")  # set by the program, and put back here
    monkeypatch.delenv("DISTMATCH_CONFIG")
    words = [f"resume={folder}", "trainer.max_epochs=3"]
    assert main(ROOT / "configs" / "train.yaml", run, "", words) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: data.on_exhaustion=stop: only 0 of the 24 prompts sampled in 3 rounds")
    assert "data.group_size" in said and "saved" in said
    assert all(torch.equal(before[name], value) for name, value in state(folder).items())
    assert (metrics(folder), rollouts(folder)) == (rows, records)


def test_all_flat_groups_change_nothing(
    lab_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With train_partial they leave the loss, not only the gradient: it is zero, not 0/0."""
    monkeypatch.setattr("distmatch.rewards.Overlong.__call__", lambda *_: 0.5)
    folder = tmp_path / "run"
    run(config(*arguments(lab_weights, folder, "trainer.max_epochs=1", "algo.zero_signal=keep")))
    (row,) = metrics(folder)
    assert [float(row[f"train/{name}"]) for name in ("loss", "grad_norm", "frac_groups_no_signal")] == [
        0,
        0,
        0,
    ]
    assert float(row["rollout/keep_rate"]) == 0
    assert not any(record["trained"] for record in rollouts(folder))
