"""The study of the lab: what is composed, what is refused, what is written, and how it goes on."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
from omegaconf import DictConfig

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.base import Loss
from distmatch.settings.compose import Catalogue, compose
from distmatch.settings.errors import ConfigError
from distmatch.study import lab_study
from distmatch.study.lab_study import compute, make_cells, read_finished, replaced, results_folder, run

CONFIGS = Path(__file__).parents[3] / "configs"
SHORT = ["iterations=4", "measure_every=2", "groups=2", "group_size=8", "jobs=1"]


def settings(folder: Path, *overrides: str) -> DictConfig:
    return compose(Catalogue(CONFIGS, "lab"), [*SHORT, f"out={folder}", *overrides])


def test_every_shipped_algorithm_is_in_the_study() -> None:
    cells = make_cells(compose(Catalogue(CONFIGS, "lab"), []))
    studied = {cell.entry for cell in cells}
    shipped = {file.stem for file in (CONFIGS / "algo").glob("*.yaml")} - {"custom", "corrected"}
    assert {name for name in shipped if not any(entry.startswith(name) for entry in studied)} == set()
    assert {cell.seed for cell in cells} == {0, 1, 2}


@pytest.mark.parametrize("name", ["grpo", "ppo", "dmpo_term_alone", "trajectory_balance", "disa_exact_log_z"])
def test_a_cell_repeats_itself(name: str, tmp_path: Path) -> None:
    cell = next(c for c in make_cells(settings(tmp_path)) if c.entry == name)
    first, second = compute(cell), compute(cell)
    assert first.history == second.history
    assert [row["iteration"] for row in first.history] == [0, 2, 4]


def test_the_exact_log_z_is_filled_in(tmp_path: Path) -> None:
    cell = next(c for c in make_cells(settings(tmp_path)) if c.entry == "disa_exact_log_z")
    figures = compute(cell).figures
    assert figures["log_z_believed"] == pytest.approx(figures["log_z_exact"], abs=1e-5)


def test_what_was_believed_of_log_z_is_the_last_that_was_said(tmp_path: Path) -> None:
    cells = make_cells(settings(tmp_path, "measure_every=100"))
    found = compute(next(c for c in cells if c.entry == "trajectory_balance"))
    believed = [row["log_z_mean"] for row in found.history]
    assert believed[0] != believed[-1] == found.figures["log_z_believed"]


def test_changes_reach_the_loss_and_leave_the_rest(tmp_path: Path) -> None:
    one = "entries={mine: {algo: dmpo, set: {weight: 0.5, base: {clip_high: 0.3}}}}"
    (cell,) = make_cells(settings(tmp_path, "~entries", f"+{one}", "seeds=[7]"))
    assert cell.algo["weight"] == 0.5 and cell.algo["divergence"] == "mse"
    assert cell.algo["base"]["clip_high"] == 0.3 and cell.algo["base"]["clip_low"] == 0.2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("entries.grpo.algo=grop", "entries.grpo: algo=grop: there is no such algo"),
        ("+entries.grpo.set={clip_hihg: 0.3}", "entries.grpo: .*clip_hihg"),
        ("+entries.grpo.sets={}", "entries.grpo=.* must be"),
        ("+entries.grpo.set={clip_low: 3.0}", "clip_low=3.0"),
        ("seeds=[0.5]", "seeds=.* must be a list of whole numbers"),
        ("seeds=3", "seeds=3 must be a list"),
        ("+entries.grpo.set={_target_: pathlib.PurePath}", "entries.grpo: .*PurePath"),
        ("entries.pass_at_k.set.k=8", "entries.pass_at_k: .*group_size=8 must be at least 9"),
        ("seeds=[1,1]", "names a seed twice"),
        ("+entries.grpo.set=[1]", r"entries.grpo.set=\[1\] must be"),
        ("task=tsp", "task=tsp cannot be enumerated"),
        ("task.length=30", "lower one of them"),
        ("entries={}", "entries is empty"),
    ],
)
def test_mistakes_are_named_before_anything_runs(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        make_cells(settings(tmp_path, *replaced([override])))


def test_entries_on_the_command_line_stand_for_all_and_added_ones_for_one_more(tmp_path: Path) -> None:
    own = make_cells(settings(tmp_path, *replaced(["seeds=[0]", "entries={mine: {algo: grpo}}"])))
    assert [cell.entry for cell in own] == ["mine"]
    more = make_cells(settings(tmp_path, *replaced(["seeds=[0]", "+entries.mine={algo: grpo}"])))
    assert {"mine", "ppo"} < {cell.entry for cell in more}


def test_a_study_without_results_leaves_its_folder_to_another(tmp_path: Path) -> None:
    for lr in ("lr=0.1", "lr=0.2"):
        assert results_folder(settings(tmp_path, lr)) == tmp_path


def test_results_are_written_and_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = ["~entries", "+entries={grpo: {algo: grpo}, vargrad: {algo: vargrad}}", "seeds=[0,1]"]
    cfg = settings(tmp_path, *entries)
    assert run(cfg) == 0
    assert "| `vargrad` |" in capsys.readouterr().out
    with (tmp_path / "comparison.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["entry"], row["seed"]) for row in rows] == [
        ("grpo", "0"),
        ("grpo", "1"),
        ("vargrad", "0"),
        ("vargrad", "1"),
    ]
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    table = (tmp_path / "comparison.md").read_text(encoding="utf-8")

    # a kill in the middle of the third line
    log = tmp_path / "trajectories.jsonl"
    whole = log.read_text(encoding="utf-8").splitlines()
    log.write_text("\n".join(whole[:2]) + "\n" + whole[2][:50], encoding="utf-8")
    assert len(list(read_finished(tmp_path))) == 2
    computed, original = [], lab_study.computed

    def counted(cells, jobs):
        computed.extend(cells)
        return original(cells, jobs)

    monkeypatch.setattr(lab_study, "computed", counted)
    assert run(cfg) == 0
    assert len(computed) == 2
    assert (tmp_path / "comparison.md").read_text(encoding="utf-8") == table
    with pytest.raises(ConfigError, match=r"other settings \(lr\)"):
        run(settings(tmp_path, *entries, "lr=0.1"))


def test_a_cell_that_fails_is_reported_and_the_others_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = "broken: {algo: custom, set: {_target_: tests.unit.study.test_lab_study.BrokenLoss}}"
    cfg = settings(tmp_path, "~entries", "+entries={grpo: {algo: grpo}, " + broken + "}", "seeds=[0]")
    assert run(cfg) == 1
    out, err = capsys.readouterr()
    assert "| `grpo` |" in out and "FAILED broken seed 0" in err
    assert [json.loads(line)["entry"] for line in (tmp_path / "trajectories.jsonl").open()] == ["grpo"]


class BrokenLoss(Loss):
    """A loss that no table can be trained with."""

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        raise RuntimeError("broken on purpose")


# ---- processes ---------------------------------------------------------------------------------------------

ENDLESS = "entries={endless: {algo: custom, set: {_target_: tests.unit.study.test_lab_study.EndlessLoss}}}"


class EndlessLoss(Loss):
    """A loss that says which process it is in and never comes back."""

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        os.write(1, f"worker {os.getpid()}\n".encode())  # a line at once, whatever the other worker writes
        while True:
            time.sleep(0.1)


@pytest.fixture
def working(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command with two workers, both of them inside their cells."""
    root = CONFIGS.parent
    command = ["-m", "distmatch.study.lab_study", ENDLESS, "seeds=[0,1]", "jobs=2", f"out={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    with subprocess.Popen(
        [sys.executable, *command], cwd=root, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        said = (line.split() for line in process.stdout)
        workers = list(islice((int(words[1]) for words in said if words[:1] == ["worker"]), 2))
        try:
            yield process
        finally:
            for pid in (process.pid, *workers):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_a_second_study_in_the_same_folder_is_refused(working: subprocess.Popen[str], tmp_path: Path) -> None:
    before = (tmp_path / "settings.json").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"out={tmp_path}: another process is using this folder"):
        run(settings(tmp_path, "~entries", "+entries={grpo: {algo: grpo}}", "seeds=[7]"))
    assert (tmp_path / "settings.json").read_text(encoding="utf-8") == before


def test_workers_do_not_outlive_their_parent(working: subprocess.Popen[str], tmp_path: Path) -> None:
    working.kill()
    working.communicate(timeout=20)  # its output ends when all who inherited it have ended
    assert results_folder(settings(tmp_path)) == tmp_path  # and nobody holds the folder
