"""Whole runs of the lab by `python train.py`: what they leave, killed and resumed, on two processes."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from distmatch.callbacks.rollout_log import cut_rollouts
from distmatch.checkpoints import is_readable, newest_checkpoint
from distmatch.run import run
from distmatch.settings.errors import ConfigError
from distmatch.settings.folder import resume
from tests.runs import CPU, LAB, ROOT, command, config, environment, metrics, rollouts, train

NEED_MORE = ("custom", "disa")  # a class to name; stages that come first: test_disa.py
ALGOS = sorted(f.stem for f in (ROOT / "configs" / "algo").glob("*.yaml") if f.stem not in NEED_MORE)
ITERATIONS = 8


def arguments(weights: Path, *more: str) -> list[str]:
    return [*CPU, *LAB, f"model.weights={weights}", "algo=dmpo", f"trainer.max_epochs={ITERATIONS}", *more]


def state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]


def assert_same_run(one: Path, other: Path) -> None:
    """Bit-equal weights, metrics without the clock, and rollouts."""
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics(one) == metrics(other)
    assert rollouts(one) == rollouts(other)


@pytest.mark.parametrize("algo", ALGOS)
def test_each_algo_runs(algo: str, lab_weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    more = [f"algo={algo}", "trainer.max_epochs=2", f"paths.run_dir={folder}"]
    figures = run(
        config(*[a for a in arguments(lab_weights) if not a.startswith(("algo=", "trainer.max"))], *more)
    )
    assert figures["val/success_rate"] > 0
    assert [row["iteration"] for row in metrics(folder)] == ["0", "1"]
    assert all(torch.isfinite(value).all() for value in state(folder).values())


@pytest.fixture(scope="module")
def whole_run(lab_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed: 8 iterations of 2 updates each, in a process of its own."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(*arguments(lab_weights, "data.updates_per_rollout=2", f"paths.run_dir={folder}"))
    return folder


def test_what_a_run_leaves_behind(whole_run: Path, lab_weights: Path) -> None:
    assert yaml.safe_load((whole_run / "overrides.yaml").read_text())[0] == CPU[0]
    assert yaml.safe_load((whole_run / "config.yaml").read_text())["algo"]["weight"] == 2.0
    rows = metrics(whole_run)
    assert [int(row["iteration"]) for row in rows] == list(range(ITERATIONS))
    assert [int(row["step"]) for row in rows] == [2 * i + 2 for i in range(ITERATIONS)]
    figures = json.loads((whole_run / "metrics.json").read_text())
    for name in ("success_rate", "quality_ratio", "best@8", "distinct_solutions"):
        assert f"start/{name}" in figures
        assert f"val/{name}" in figures
    for name in ("wall_seconds", "tokens", "peak_memory_bytes", "torch", "git"):
        assert f"run/{name}" in figures
    records = rollouts(whole_run)
    assert len(records) == ITERATIONS * 8 * 4
    wanted = {
        "task",
        "instance",
        "group",
        "completion",
        "parsed",
        "feasible",
        "value",
        "quality",
        "key",
        "reward",
    }
    assert wanted | {"length", "truncated"} <= set(records[0])
    assert sum(r["reward"] for r in records[:32]) / 32 == pytest.approx(
        float(rows[0]["rollout/reward"]), abs=1e-6
    )
    assert sum(r["length"] for r in records) == figures["run/tokens"]


def test_the_export_loads_in_plain_transformers(whole_run: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(whole_run / "export")
    trained = state(whole_run)
    for name, value in model.state_dict().items():
        assert torch.equal(value, trained[f"policy.model.{name}"]), name
    tokenizer = AutoTokenizer.from_pretrained(whole_run / "export")
    assert tokenizer("lab 1", return_tensors="pt")["input_ids"].shape == (1, 3)


def test_event_files_have_every_figure_once_per_iteration(whole_run: Path) -> None:
    events = EventAccumulator(str(whole_run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    tags = set(events.Tags()["scalars"])
    assert {"rollout/reward", "train/loss", "train/grad_norm", "train/entropy", "val/success_rate"} <= tags
    assert [step for step, _ in rewards_in_events(whole_run)] == [2 * i + 2 for i in range(ITERATIONS)]
    held_out = EventAccumulator(str(whole_run / "tensorboard")).Reload().Scalars("val/success_rate")
    assert [event.step for event in held_out] == [0, 2 * ITERATIONS]


def rewards_in_events(folder: Path) -> list[tuple[int, float]]:
    """Step and value of each iteration's mean reward, as TensorBoard shows them."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars("rollout/reward")]


def test_several_updates_share_a_rollout(lab_weights: Path, tmp_path: Path) -> None:
    more = ["algo=grpo", "data.updates_per_rollout=4", "module.lr=3e-3", f"paths.run_dir={tmp_path / 'run'}"]
    run(config(*[a for a in arguments(lab_weights) if not a.startswith("algo=")], *more))
    rows = metrics(tmp_path / "run")
    clipped = [float(row["train/clip_fraction_low"]) + float(row["train/clip_fraction_high"]) for row in rows]
    assert max(clipped) > 0
    assert max(abs(float(row["train/ratio_max"]) - 1) for row in rows) > 0.05


def test_on_policy_ratios_are_one(whole_run: Path, lab_weights: Path, tmp_path: Path) -> None:
    run(config(*arguments(lab_weights), f"paths.run_dir={tmp_path / 'run'}"))
    for row in metrics(tmp_path / "run"):
        assert float(row["train/ratio_max"]) == pytest.approx(1.0, abs=1e-6)
        assert float(row["train/mismatch_max"]) < 1e-4


def kill_after(folder: Path, lines: int, delay: float, *overrides: str) -> None:
    """Start or continue a run and SIGKILL it `delay` seconds after metrics.csv has had `lines` lines."""
    process = subprocess.Popen(
        command(*overrides), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        file = folder / "metrics.csv"
        if (
            file.exists()
            and file.read_text().count("\n") >= lines
            and list((folder / "checkpoints").glob("*.ckpt"))
        ):
            break
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_killed_and_resumed_equals_uninterrupted(whole_run: Path, lab_weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill_after(
        folder, 4, 0.0, *arguments(lab_weights, "data.updates_per_rollout=2", f"paths.run_dir={folder}")
    )
    assert len(metrics(folder)) < ITERATIONS
    (folder / "checkpoints" / "iteration-999999.ckpt").write_bytes(b"half a checkpoint")
    moved = folder.rename(tmp_path / "moved")
    train(f"resume={moved}")
    (moved / "checkpoints" / "iteration-999999.ckpt").unlink()
    assert_same_run(whole_run, moved)
    assert rewards_in_events(moved) == rewards_in_events(whole_run)
    first = json.loads((whole_run / "metrics.json").read_text())
    second = json.loads((moved / "metrics.json").read_text())
    for name in first:
        if name.startswith(("start/", "val/")):
            assert first[name] == second[name], name


@pytest.mark.slow
def test_twenty_random_kills(whole_run: Path, lab_weights: Path, tmp_path: Path) -> None:
    """Runs killed at twenty moments spread over an iteration end like one that was not."""
    moments = itertools.product(range(5), range(4))  # different delays within an iteration
    for kill, (part, run_number) in enumerate(moments):
        folder = tmp_path / f"run{run_number}"
        fresh = not (folder / "config.yaml").exists()
        start = arguments(lab_weights, "data.updates_per_rollout=2", f"paths.run_dir={folder}")
        lines = 2 + len(metrics(folder)) if not fresh else 2
        kill_after(
            folder,
            min(lines, ITERATIONS),
            0.02 * part + 0.003 * kill,
            *(start if fresh else [f"resume={folder}"]),
        )
    for run_number in range(4):
        train(f"resume={tmp_path / f'run{run_number}'}")
        assert_same_run(whole_run, tmp_path / f"run{run_number}")
        assert rewards_in_events(tmp_path / f"run{run_number}") == rewards_in_events(whole_run)


@pytest.mark.parametrize("mask", [pytest.param("false", marks=pytest.mark.slow), "true"])
def test_two_processes_train_like_one(lab_weights: Path, tmp_path: Path, mask: str) -> None:
    """Same prompts, same tokens, same update; lengths differ, and with `mask` whole rows leave the loss."""
    common = ["trainer.max_epochs=2", "data.max_tokens=6", f"data.mask_truncated={mask}", "seed=3"]
    base = [a for a in arguments(lab_weights) if not a.startswith(("trainer.max_epochs", "data.max_tokens"))]
    one, two = tmp_path / "one", tmp_path / "two"
    train(*base, *common, f"paths.run_dir={one}")
    train(*base, *common, f"paths.run_dir={two}", "trainer.devices=2", "trainer.strategy=ddp")
    first, second = state(one), state(two)
    assert all(torch.allclose(first[name], second[name], atol=2e-5) for name in first)
    other = [json.loads(line) for line in (two / "rollouts-rank1.jsonl").read_text().splitlines()]
    together = sorted(rollouts(two) + other, key=lambda r: (r["iteration"], r["group"]))
    assert [r["completion"] for r in together[:32]] == [r["completion"] for r in rollouts(one)[:32]]
    for row, twin in zip(metrics(one), metrics(two), strict=True):
        assert float(row["train/grad_norm"]) == pytest.approx(float(twin["train/grad_norm"]), rel=1e-3)
        assert row["tokens"] == twin["tokens"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_last_iteration_and_says_how_to_go_on(
    number: int, status: int, lab_weights: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    more = ["trainer.max_epochs=500", f"paths.run_dir={folder}"]
    said, code = stopped_by(number, folder / "checkpoints", "*.ckpt", *arguments(lab_weights)[:-1], *more)
    assert code == status, said
    assert f"python train.py resume={folder}" in said
    assert "Traceback" not in said
    assert newest_checkpoint(folder)


def test_a_signal_in_the_first_evaluation_says_that_nothing_is_saved(
    lab_weights: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    base = [a for a in arguments(lab_weights) if not a.startswith("data.eval_")]
    more = ["data.eval_prompts=4000", "data.eval_samples=64", f"paths.run_dir={folder}"]
    said, code = stopped_by(signal.SIGTERM, folder, "tensorboard", *base, *more)
    assert code == 143, said
    assert "nothing to resume from" in said
    assert "Traceback" not in said


def stopped_by(number: int, folder: Path, pattern: str, *overrides: str) -> tuple[str, int]:
    """What a run says, and its exit status, when a signal comes once `folder` holds `pattern`."""
    process = subprocess.Popen(
        command(*overrides), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(folder.glob(pattern)):
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    return said, process.returncode


def test_fewer_iterations_than_done_are_refused(whole_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole_run, tmp_path / "copy")
    cfg = resume([f"resume={copy}", "trainer.max_epochs=3"])
    with pytest.raises(ConfigError, match="max_epochs=3 is below the 8 iterations that are done"):
        run(cfg)
    assert metrics(copy) == metrics(whole_run)


def test_a_damaged_checkpoint_is_noticed(whole_run: Path, tmp_path: Path) -> None:
    whole = newest_checkpoint(whole_run)
    assert is_readable(whole)
    content = bytearray(whole.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 500] = bytes(500)
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(content)
    assert not is_readable(damaged)
    damaged.write_bytes(content[:middle])
    assert not is_readable(damaged)


def test_rollouts_are_cut_by_what_the_lines_say(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    lines = [json.dumps({"iteration": i}) + "\n" for i in (0, 0, 1, 2)]
    file.write_text("".join(lines) + '{"iteration": 2, "comp')
    cut_rollouts(file, 1)
    assert file.read_text() == "".join(lines[:3])
    cut_rollouts(file, 5)  # shorter than the checkpoint says: kept as it is, not filled up
    assert file.read_text() == "".join(lines[:3])
    cut_rollouts(tmp_path / "absent.jsonl", -1)
    assert (tmp_path / "absent.jsonl").read_text() == ""
