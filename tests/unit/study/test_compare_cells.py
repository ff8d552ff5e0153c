"""Cells as processes: some at a time, none twice, taken up again, and a failure that stays alone.

The program is a stand-in for train.py that notes what it was called with and when.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distmatch.study.comparison.cells import run_cells
from distmatch.study.comparison.plan import Cell
from tests.runs import ROOT

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

folder = Path(sys.argv[-1].split("=", 1)[1])
settings = dict(text.split("=", 1) for text in sys.argv[1:])
with (folder.parent / "calls.jsonl").open("a") as out:
    out.write(json.dumps({"name": folder.name, "argv": sys.argv[1:], "began": time.monotonic(),
                          "config": os.environ.get("DISTMATCH_CONFIG")}) + "\\n")
if settings.get("mode") == "fail":
    print("what went before")
    sys.exit("error: no such luck")
if settings.get("mode") == "forever":
    signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(143)))
    time.sleep(60)
time.sleep(0.4)
(folder / "export").mkdir()
for name in ("config.yaml", "metrics.json", "metrics.csv", "export/config.json"):
    (folder / name).write_text("")
with (folder.parent / "calls.jsonl").open("a") as out:
    out.write(json.dumps({"name": folder.name, "ended": time.monotonic()}) + "\\n")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return file


def cell(folder: Path, name: str, *overrides: str) -> Cell:
    run = folder / name
    given = (*overrides, f"paths.run_dir={run}")
    return Cell(name, name, 0, run, run / "evaluation.jsonl", given, OmegaConf.create())


def calls(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


def test_one_failure_leaves_the_others_and_nothing_is_repeated(tmp_path, program, capsys, monkeypatch):
    monkeypatch.setenv("DISTMATCH_CONFIG", "of-a-parent")
    cells = [cell(tmp_path, "a"), cell(tmp_path, "b", "mode=fail"), cell(tmp_path, "c")]
    (failure,) = run_cells(cells, program, jobs=1, flags=["--config-dir=mine"])
    assert (failure.cell.name, failure.status) == ("b", 1)
    assert failure.lines == ("what went before", "error: no such luck")
    assert "b failed with exit status 1:\n    what went before" in capsys.readouterr().err
    began = [call for call in calls(tmp_path) if "argv" in call]
    assert [call["name"] for call in began] == ["a", "b", "c"]
    assert began[0]["argv"] == ["--config-dir=mine", f"paths.run_dir={tmp_path / 'a'}"]
    assert {call["config"] for call in began} == {None}
    (tmp_path / "b" / "checkpoints").mkdir()
    (tmp_path / "b" / "checkpoints" / "iteration-000001.ckpt").touch()
    assert run_cells(cells, program, jobs=1) == []
    began = [call for call in calls(tmp_path) if "argv" in call]
    assert [call["argv"] for call in began[3:]] == [[f"resume={tmp_path / 'b'}"]]
    assert "no such luck" in (tmp_path / "b" / "output.txt").read_text()  # a resumed cell's output goes on


def test_jobs_run_side_by_side_but_no_more_than_asked(tmp_path, program):
    cells = [cell(tmp_path, name) for name in "abcde"]
    assert run_cells(cells, program, jobs=2) == []
    times = [(call["began"], 1) for call in calls(tmp_path) if "began" in call]
    times += [(call["ended"], -1) for call in calls(tmp_path) if "ended" in call]
    together, most = 0, 0
    for _, change in sorted(times):
        together += change
        most = max(most, together)
    assert most == 2


def test_a_stopped_comparison_stops_its_cells(tmp_path, program):
    code = (
        "import sys; from pathlib import Path; from tests.unit.study.test_compare_cells import cell\n"
        "from distmatch.study.comparison.cells import run_cells\n"
        f"run_cells([cell(Path({str(tmp_path)!r}), 'a', 'mode=forever')], Path({str(program)!r}), 1)"
    )
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths})
    deadline = time.monotonic() + 60
    while not (tmp_path / "calls.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)  # the stand-in sets its handler right after its note
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) != 0
    assert (tmp_path / "a" / "output.txt").read_text() == "saved\n"
