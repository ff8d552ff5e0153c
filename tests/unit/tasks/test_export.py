"""Exported files: what they hold, and what is refused before anything is written."""

import hashlib
import json
import subprocess
import sys

import pytest
from PIL import Image

from distmatch.tasks import export
from distmatch.tasks.command import main
from distmatch.tasks.np.tsp import TSP


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder; status, standard output and error output."""
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        status = main("export", export.run, export.__doc__, export.NUMBERS, argv)
        done = capsys.readouterr()
        return status, done.out, done.err

    return call


def rows(folder):
    return [json.loads(line) for line in (folder / "instances.jsonl").read_text("utf-8").splitlines()]


def test_records_hold_all_three_forms_and_the_reference(call, tmp_path):
    status, out, _ = call("task=tsp", "level=easy", "n=3", "split=val", "task.seed=4", "out=there")
    assert status == 0 and "3 instances in there" in out
    task = TSP("easy", seed=4)
    for index, row in enumerate(rows(tmp_path / "there")):
        instance = task.instance("val", index)
        solution = task.solve(instance)
        assert row == {
            "id": instance.id,
            "task": "tsp",
            "level": "easy",
            "split": "val",
            "seed": 4,
            "index": index,
            "category": "planning",
            "sense": "min",
            "data": instance.data,
            "prompt": task.render(instance, "natural").text,
            "compact_prompt": None,  # the small vocabulary has distances up to 9
            "reference": {"answer": solution.answer, "value": solution.value, "proved": False},
        }


def test_a_suite_is_written_in_order_with_its_card(call, tmp_path):
    assert call("n=6", "split=train")[0] == 0
    folder = tmp_path / "logs" / "export" / "np_tiny-train-6"
    found = rows(folder)
    assert [row["task"] for row in found[:4]] == ["tsp", "knapsack", "graph_coloring", "maximum_clique"]
    assert found[0]["compact_prompt"].startswith("tsp: 0-1=")
    card = json.loads((folder / "card.json").read_text())
    assert (card["count"], card["split"], card["proved"]) == (6, "train", 2)  # knapsacks: exact by nature
    assert card["sha256"] == hashlib.sha256((folder / "instances.jsonl").read_bytes()).hexdigest()
    tsp = next(problem for problem in card["problems"] if problem["task"] == "tsp")
    assert (tsp["level"], tsp["seed"], tsp["count"]) == ("tiny", 0, 2)
    assert tsp["ranges"]["cities"] == [6, 6] and tsp["ranges_are"] == "this package's own"
    assert tsp["solver"].startswith("heuristic: NP-Engine")
    assert "| tsp | tiny | 0 |" in (folder / "README.md").read_text()


def test_proofs_and_published_ranges_are_told(call, tmp_path):
    call("task=knapsack", "task.reference=exact", "task.level=easy", "n=2", "out=e")
    card = json.loads((tmp_path / "e" / "card.json").read_text())
    assert card["proved"] == 2
    assert card["problems"][0]["ranges_are"] == "published"
    assert card["problems"][0]["solver"].startswith("exact: ")


def test_the_same_command_writes_the_same_bytes(call, tmp_path):
    for name in ("one", "two"):
        call("n=4", f"out={name}")
    for file in ("instances.jsonl", "card.json", "README.md"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_pictures_lie_beside_the_records(call, tmp_path):
    assert call("n=4", "out=drawn", "pictures=true", "picture_size=256")[0] == 0
    found = {row["task"]: row["picture"] for row in rows(tmp_path / "drawn")}
    assert found["knapsack"] is None
    assert found["tsp"] == f"pictures/{TSP().instance('test', 0).id}.png"
    with Image.open(tmp_path / "drawn" / found["tsp"]) as image:
        assert image.format == "PNG" and min(image.size) >= 256


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("task=tspp", "Did you mean task=tsp?"),
        ("level=hrad", "level='hrad' is unknown to task"),
        ("n=0", "n=0 must be a whole number of at least 1"),
        ("n=-3", "n=-3 must be"),
        ("split=dev", "choose one of train, val, test"),
        ("format=csv", "choose one of jsonl, parquet"),
        ("nn=3", "Did you mean n=3?"),
    ],
)
def test_mistakes_are_answered_in_one_line_and_leave_nothing(call, tmp_path, argument, message):
    status, _, err = call(argument)
    assert status == 2
    assert message in err and err.startswith("error: ") and err.count("\n") == 1
    assert not list(tmp_path.rglob("*.jsonl"))


def test_what_exists_is_not_touched(call, tmp_path):
    (tmp_path / "mine").mkdir()
    status, _, err = call("out=mine", "n=1")
    assert status == 2 and "exists already" in err


def test_a_task_that_cannot_be_drawn_or_has_no_level_says_so(call, tmp_path):
    status, _, err = call("task=knapsack", "pictures=true", "out=x")
    assert status == 2 and "knapsack cannot be drawn" in err
    status, _, err = call("task=lab", "level=easy")
    assert status == 2 and "no level to set" in err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_proved_is_an_error_in_one_line(call, tmp_path, monkeypatch):
    def refuse(self, instance):
        raise ValueError("was not proved optimal")

    monkeypatch.setattr(TSP, "solve_exact", refuse)
    status, _, err = call("task=tsp", "task.reference=exact", "out=x")
    assert status == 2 and err == "error: instance 0: was not proved optimal\n"
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_answered_before_anything_heavy_is_imported():
    code = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print('heavy', [m for m in ('torch', 'numpy') if m in sys.modules]))\n"
        "sys.argv = ['export', 'task=tspp']\n"
        "runpy.run_module('distmatch.tasks.export', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "heavy []", done.stderr
    assert done.returncode == 2


def test_a_failure_half_way_leaves_nothing(call, tmp_path, monkeypatch):
    def fail(self, instance):
        raise RuntimeError("stop")

    monkeypatch.setattr(TSP, "solve", fail)
    with pytest.raises(RuntimeError, match="stop"):
        call("task=tsp", "out=x")
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_its_library_names_the_extra(call, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    status, _, err = call("format=parquet", "n=1")
    assert status == 2 and "pip install 'distmatch[data]'" in err


def test_help_names_the_groups_and_commands(call):
    status, out, _ = call("--help")
    assert status == 0
    assert "python -m distmatch.tasks.export task=tsp" in out and "np_tiny" in out
