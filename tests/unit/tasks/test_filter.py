"""The training filter keeps what a policy solves sometimes, and says how much that is."""

import json

import pytest

from distmatch.tasks import filter as filtering
from distmatch.tasks.command import main
from distmatch.tasks.stored import StoredTask

SMALL = ["n=16", "samples=4", "prompts_per_pass=8", "low=0.25", "high=0.75"]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder; status, standard output and error output."""
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        status = main("filter", filtering.run, filtering.__doc__, filtering.NUMBERS, argv)
        done = capsys.readouterr()
        return status, done.out, done.err

    return call


def test_kept_instances_load_back_with_their_success_rate(call, tmp_path):
    status, out, err = call(*SMALL, "out=kept")
    assert status == 0, err
    stored = StoredTask(str(tmp_path / "kept"))
    assert f"kept {len(stored)} of 16" in out and "knapsack: kept" in out and "tried 16 of 16" in err
    for record in stored.records["train"]:
        assert 0.25 <= record.extra["success_rate"] <= 0.75
        assert record.extra["samples"] == 4
    card = json.loads((tmp_path / "kept" / "card.json").read_text())
    assert card["filter"]["low"] == 0.25 and card["filter"]["model"]["weights"] == "shipped"


def test_rates_do_not_depend_on_how_prompts_are_grouped(call, tmp_path):
    for name, size in (("a", 3), ("b", 16)):
        assert call(*SMALL, "low=0", "high=1", f"prompts_per_pass={size}", f"out={name}")[0] == 0
    one, two = ((tmp_path / name / "instances.jsonl").read_bytes() for name in "ab")
    assert one == two and one.count(b"\n") == 16


def test_nothing_kept_is_a_failure_and_writes_nothing(call, tmp_path):
    status, out, err = call("task=tsp", "n=4", "samples=1", "low=0.5", "high=0.6")
    assert status == 1 and "kept 0 of 4 (0.0%)" in out and "nothing written" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["low=0.9"], "low=0.9 must not be above high=0.8"),
        (["high=1.5"], "high=1.5 must be a number"),
        (["samples=0"], "samples=0 must be"),
        (["split=dev"], "choose one of train, val, test"),
        (["level=easy", "n=1"], "the small vocabulary cannot spell this prompt"),
        (["data.max_prompt_tokens=5", "n=1"], r"over data.max_prompt_tokens=5"),
        (["model=tinyy"], "Did you mean model=tiny?"),
    ],
)
def test_mistakes_are_answered_in_one_line(call, arguments, message):
    status, _, err = call(*arguments)
    assert status == 2 and message in err and "Traceback" not in err
