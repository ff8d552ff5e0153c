"""Whole comparisons with a small model: trained, killed and gone on with, or read from existing runs."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from distmatch.run import run
from distmatch.study.compare import main
from tests.runs import LAB, ROOT, SMALL, config, environment, metrics, rollouts

CONFIG = ROOT / "configs" / "compare.yaml"
SMOKE = ["trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "logger=none"]
CPU = ["trainer.accelerator=cpu", "threads=1"]
PICTURES = ["comparison.png", "comparison-ladders.png", "comparison-curves.png"]


def figures(folder: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with (folder / "comparison.csv").open(newline="", encoding="utf-8") as lines:
        return {(row["arm"], row["figure"], row["seed"]): row for row in csv.DictReader(lines)}


def check_report(folder: Path, arms: list[str], baseline: str, n: int) -> None:
    """The report's parts agree with the records that they stand on."""
    text = (folder / "comparison.md").read_text(encoding="utf-8")
    assert f"baseline {baseline}" in text and "Where the start overtakes" in text
    for name in PICTURES:
        assert name in text and Image.open(folder / name).size[0] > 1000
    table = figures(folder)
    assert list(dict.fromkeys(arm for arm, _, _ in table)) == ["start", *arms]
    for arm in arms:
        records = [
            json.loads(line)
            for file in sorted(folder.glob(f"cells/{arm}-seed*/evaluation.jsonl"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        assert all(len(record["feasible"]) == n for record in records)
        share = sum(sum(record["feasible"]) for record in records) / (n * len(records))
        assert float(table[arm, "success_rate", "all"]["value"]) == pytest.approx(share)
        assert float(table[arm, "pass@1", "all"]["value"]) == pytest.approx(share)
        most = [len({k for k, ok in zip(r["key"], r["feasible"], strict=True) if ok}) for r in records]
        assert float(table[arm, f"distinct@{n}", "all"]["value"]) == pytest.approx(sum(most) / len(most))
        gap = table[arm, "success_rate", "all"]["difference"]
        assert (gap == "") == (arm == baseline)
    with (folder / "curves.csv").open(newline="", encoding="utf-8") as lines:
        curves = list(csv.DictReader(lines))
    assert {row["arm"] for row in curves} == set(arms) and {row["iteration"] for row in curves} >= {"0", "1"}


def test_existing_runs_are_compared_as_they_are(tmp_path, lab_weights, capsys):
    runs = [tmp_path / algo for algo in ("dmpo", "grpo")]
    for folder in runs:
        given = [*LAB, *SMALL, *SMOKE, f"algo={folder.name}", f"model.weights={lab_weights}"]
        run(config(*given, f"paths.run_dir={folder}"))
    before = {file: file.read_bytes() for folder in runs for file in folder.rglob("*") if file.is_file()}
    out = tmp_path / "comparison"
    listed = f"runs=[{','.join(map(str, runs))}]"
    asked = [listed, "baseline=grpo", f"folder={out}", "eval_samples=16", "resamples=200"]
    assert main(CONFIG, "", asked) == 0
    check_report(out, ["dmpo", "grpo"], "grpo", n=16)
    assert {file: file.read_bytes() for file in before} == before
    told = capsys.readouterr().out
    assert told.count("evaluates") == 3 and "comparison.md" in told
    first = (out / "comparison.csv").read_bytes()
    assert main(CONFIG, "", asked) == 0
    assert "evaluates" not in capsys.readouterr().out  # the records are read again
    assert (out / "comparison.csv").read_bytes() == first
    assert main(CONFIG, "", [*asked[:3], "eval_samples=4", "resamples=200"]) == 0
    assert capsys.readouterr().out.count("evaluates") == 3  # another question
    check_report(out, ["dmpo", "grpo"], "grpo", n=4)
    start = [json.loads(line) for line in (out / "start" / "evaluation.jsonl").read_text().splitlines()]
    assert [record["instance"] for record in start] == [
        json.loads(line)["instance"]
        for line in (out / "cells" / "dmpo-seed0" / "evaluation.jsonl").read_text().splitlines()
    ]


# ---- whole comparisons, each cell a process ----------------------------------------------------------------


def compare(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "compare.py"), *arguments]


def finish(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        compare(*arguments), env=environment(), capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.slow
def test_a_killed_comparison_goes_on_and_ends_as_one_that_was_not(tmp_path, lab_weights):
    settings = [*LAB, *SMALL, *SMOKE, *CPU, f"model.weights={lab_weights}", "trainer.max_epochs=8"]
    asked = ["algos=[dmpo,grpo]", "seeds=[0,1]", *settings, "eval_samples=8", "resamples=200"]
    killed = tmp_path / "killed"
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(
            compare(*asked, f"folder={killed}"), env=environment(), stdout=output, stderr=output
        )
        second = killed / "cells" / "grpo-seed0"
        deadline = time.monotonic() + 300
        while not list(second.glob("checkpoints/*.ckpt")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    assert "the same command goes on" in (tmp_path / "output.txt").read_text()
    first = (killed / "cells" / "dmpo-seed0" / "metrics.json").read_bytes()
    assert not (second / "metrics.json").exists() and not (killed / "cells" / "dmpo-seed1").exists()
    done = finish(*asked, f"folder={killed}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 cells, 1 finished, 1 to be continued" in done.stdout
    assert (killed / "cells" / "dmpo-seed0" / "metrics.json").read_bytes() == first
    check_report(killed, ["dmpo", "grpo"], "dmpo", n=8)
    for seed in (0, 1):  # the arms of a seed are asked the same in the same order, and no other seed is
        asks = [
            [
                (record["group"], record["instance"])
                for record in rollouts(killed / "cells" / f"{algo}-seed{seed}")
            ]
            for algo in ("dmpo", "grpo")
        ]
        assert asks[0] == asks[1]
    whole = tmp_path / "whole"
    alone = ["algos=[grpo]", "seeds=[0]", *asked[2:], f"folder={whole}"]
    done = finish(*alone)
    assert done.returncode == 0, done.stdout + done.stderr
    one, other = (folder / "cells" / "grpo-seed0" for folder in (killed, whole))
    assert metrics(one) == metrics(other) and rollouts(one) == rollouts(other)
    assert (one / "evaluation.jsonl").read_bytes() == (other / "evaluation.jsonl").read_bytes()


@pytest.mark.slow
def test_a_cell_that_fails_is_reported_and_the_others_stand(tmp_path, lab_weights):
    settings = [*LAB, *SMALL, *SMOKE, *CPU, f"model.weights={lab_weights}"]
    variants = "variants={good: ['algo=grpo'], bad: ['algo=dmpo', '+trainer.max_time=soon']}"
    done = finish(variants, "seeds=[0]", *settings, f"folder={tmp_path}", "eval_samples=4", "resamples=100")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bad-seed0 failed with exit status" in done.stderr and "1 of 2 cells failed" in done.stderr
    assert "Traceback" not in done.stderr
    text = (tmp_path / "comparison.md").read_text()
    assert "bad-seed0 failed" in text and "max_time" in text
    assert {arm for arm, _, _ in figures(tmp_path)} == {"start", "good"}
