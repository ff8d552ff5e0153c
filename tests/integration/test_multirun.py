"""Several runs, each on two processes: a folder and a checkpoint a run, one config for all processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from distmatch.checkpoints import newest_checkpoint, read_checkpoint
from tests.runs import ROOT, SMALL, command, environment, metrics, rollouts

SPY = f"""
import os, sys

def record(event, arguments):
    if event == "open" and str(arguments[0]).startswith({str(ROOT / "configs")!r}):
        with os.fdopen(os.open(os.environ["OPENED"], os.O_APPEND | os.O_CREAT | os.O_WRONLY), "w") as out:
            out.write(os.environ.get("LOCAL_RANK", "first") + "\\n")

sys.addaudithook(record)
"""
"""Python runs it at start: it notes the local rank of every process that reads a file of configs/."""

RUN = ["task=lab", "task.prompts=2", "model.weights=random", *SMALL, "data.max_tokens=6", "threads=1"]
RUN += ["trainer.accelerator=cpu", "debug=smoke", "logger=none"]


def multirun(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(SPY)
    more = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)]), "OPENED": str(folder / "opened")}
    return subprocess.run(
        command("-m", *RUN, f"paths.log_dir={folder / 'logs'}", *overrides),
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.slow
def test_two_runs_on_two_processes_each(tmp_path: Path) -> None:
    done = multirun(tmp_path, "seed=1,2", "trainer.devices=2", "trainer.strategy=ddp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if re.match(r"run \d of \d", line)] != []
    folders = sorted((tmp_path / "logs" / "train").glob("*/*"), key=lambda f: f.name[-1])
    assert [f.parent.name for f in folders] == ["dmpo-lab", "dmpo-lab"]
    assert [f.name.rpartition("-")[2] for f in folders] == ["seed1", "seed2"]
    for folder, seed in zip(folders, (1, 2), strict=True):
        assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == seed
        assert len(list((folder / "checkpoints").glob("*.ckpt"))) == 1
        assert read_checkpoint(newest_checkpoint(folder))["epoch"] == 1
        assert [row["iteration"] for row in metrics(folder)] == ["0", "1"]
        assert (folder / "metrics.json").exists()
        other = [json.loads(line) for line in (folder / "rollouts-rank1.jsonl").read_text().splitlines()]
        groups = Counter(record["group"] for record in [*rollouts(folder), *other])
        assert groups == dict.fromkeys(range(8), 4)  # 2 iterations of 4 prompts, each once, on some rank
    assert rollouts(folders[0]) != rollouts(folders[1])
    read_by = Counter((tmp_path / "opened").read_text().split())
    assert set(read_by) == {"first"}, f"a child process composed a config: {read_by}"


@pytest.mark.slow
def test_odd_values_leave_the_folders_names_alone(tmp_path: Path) -> None:
    """Slashes, colons, commas and brackets stay in overrides.yaml and in the config."""
    odd = ["+trainer.plugins=[]", 'callbacks.checkpoint.filename="it, a:b [{epoch}]"', "seed=3,4"]
    done = multirun(tmp_path, *odd, "algo=grpo,dmpo")
    assert done.returncode == 0, done.stdout + done.stderr
    folders = list((tmp_path / "logs" / "train").glob("*/*"))
    names = Counter(f"{f.parent.name}/{f.name.rpartition('-')[2]}" for f in folders)
    assert names == Counter(f"{algo}-lab/seed{seed}" for algo in ("grpo", "dmpo") for seed in (3, 4))
    for folder in folders:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", folder.name)
        assert yaml.safe_load((folder / "overrides.yaml").read_text())[-1] in ("algo=grpo", "algo=dmpo")
        assert newest_checkpoint(folder).name.startswith("it, a:b [")


@pytest.mark.slow
def test_one_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    done = multirun(tmp_path, "data.max_prompt_tokens=2,32")
    assert done.returncode == 1
    assert "1 of 2 runs failed" in done.stderr
    assert "data.max_prompt_tokens=2 (exit status 2)" in done.stderr.replace("  ", " ")
    assert "Traceback" not in done.stderr
    finished = [f.parent for f in (tmp_path / "logs").glob("train/*/*/metrics.json")]
    assert [
        yaml.safe_load((f / "config.yaml").read_text())["data"]["max_prompt_tokens"] for f in finished
    ] == [32]
