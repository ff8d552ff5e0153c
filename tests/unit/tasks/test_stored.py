"""Stored instances: the same as the generated ones, and suspicious of every record."""

import json
import random
from pathlib import Path

import pytest

from distmatch.rewards import NPPaper, score
from distmatch.tasks import export
from distmatch.tasks.command import main
from distmatch.tasks.lab import Lab
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.tsp import TSP
from distmatch.tasks.records import BadRecord, Problems, from_row, to_line, to_row
from distmatch.tasks.stored import StoredTask

MIXED = Mixture({"tsp": TSP(), "knapsack": Knapsack()})


def good(count=3, split="test", task=None):
    task = task or MIXED
    return [to_row(task, task.instance(split, index)) for index in range(count)]


def write(path, rows):
    path.write_text("".join(row if isinstance(row, str) else f"{to_line(row)}\n" for row in rows), "utf-8")
    return str(path)


def test_exported_files_load_back_as_the_same_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main("export", export.run, "", argv=["n=9", "out=data", "split=val"])
    stored = StoredTask("data")
    assert len(stored) == 9
    for index in range(8):
        instance = stored.instance("val", index)
        fresh = {"tsp": TSP(), "knapsack": Knapsack()}.get(instance.task)
        if fresh is None:
            continue
        assert instance == fresh.instance("val", instance.index)
        assert stored.reference(instance) == fresh.solve(instance)
        assert stored.render(instance, "natural") == fresh.render(instance, "natural")
        text = fresh.format(fresh.solve(instance).answer)
        assert stored.verify(instance, text) == fresh.verify(instance, text)
        assert score(stored, instance, text, NPPaper()).reward == 1.1
    assert stored.categories()["tsp"] == "planning" and len(stored.categories()) == 4


def test_stored_references_are_used(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", good(2))
    monkeypatch.setattr(TSP, "solve", None)
    stored = StoredTask(path)
    assert stored.reference(stored.instance("test", 0)).answer == good_answer(path)


def good_answer(path):
    return json.loads(Path(path).read_text("utf-8").splitlines()[0])["reference"]["answer"]


def test_training_goes_round_and_evaluation_does_not(tmp_path):
    stored = StoredTask(
        {"train": write(tmp_path / "a", good(3, "train")), "val": write(tmp_path / "b", good(2))}
    )
    assert stored.instance("train", 10**9 + 2) == stored.instance("train", (10**9 + 2) % 3)
    assert stored.instance("val", 1).split == "test"  # its own address; the file says which split it serves
    with pytest.raises(ValueError, match=r"has 2 instances; set data\.eval_prompts=2"):
        stored.instance("val", 2)
    with pytest.raises(ValueError, match="split='test' is not stored here, only train, val"):
        stored.instance("test", 0)


def test_a_file_has_one_split(tmp_path):
    path = write(tmp_path / "a", [*good(2), *good(1, "train")])
    with pytest.raises(ValueError, match=r"a, line 3, field split: 'train', but the file begins with 'test'"):
        StoredTask(path)


def changed(**changes):
    row = good(1)[0]
    for name, value in changes.items():
        owner, _, key = name.rpartition("__")
        target = row[owner] if owner else row
        if value is ...:
            del target[key]
        else:
            target[key] = value
    return row


DAMAGED = {
    "cut line": ('{"id": "tsp-tiny', r"line 2, not JSON"),
    "nan": (to_line(changed()).replace('"seed": 0', '"seed": NaN'), "NaN is not a number of JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "list": ("[1, 2]", "not a JSON object but a list"),
    "no data": (changed(data=...), "field data: is missing"),
    "foreign": ('{"question": "2 + 2", "answer": "4"}', "field id: is missing"),
    "data text": (changed(data="x"), "field data: must be of type dict"),
    "data other": (changed(data={"capacity": 3}), "field data: not an instance of tsp"),
    "data lacks a distance": (changed(data={"0": {"1": 1}, "1": {}}), "field data: not an instance of tsp"),
    "word for number": (
        changed(data={"0": {"1": "x"}, "1": {"0": 1}}),
        r"field data\.0\.1: must be a number",
    ),
    "changed data": (
        changed(data={"0": {"1": 1}, "1": {"0": 1}}),
        "field id: .* does not belong to the data",
    ),
    "unknown task": (changed(task="tsq"), "field task: there is no task 'tsq'"),
    "module name": (changed(task="drawing"), "field task: there is no task 'drawing'"),
    "task with a path": (changed(task="..mixture"), "field task"),
    "level": (changed(level="huge"), "field level: 'huge' is unknown to task tsp"),
    "split": (changed(split="dev"), "field split: 'dev' is unknown"),
    "seed": (changed(seed="0"), "field seed: must be of type int"),
    "bool": (changed(index=True), "field index: must be of type int"),
    "category": (changed(category="path"), "field category: 'path', but tsp was in 'planning' before"),
    "huge number": (
        changed(data={"0": {"1": 10**400}, "1": {"0": 1}}),
        r"field data\.0\.1: must be a number",
    ),
    "huge value": (changed(reference__value=10**400), r"field reference\.value: must be a number"),
    "sense": (changed(sense="max"), "field sense"),
    "no reference": (changed(reference__value=...), r"field reference\.value: is missing"),
    "reference type": (changed(reference__value="12"), r"field reference\.value: must be a number"),
    "proved": (changed(reference__proved=1), r"field reference\.proved: must be true or false"),
    "rejected": (
        changed(reference__answer=[0, 1, 0]),
        r"reference\.answer: its own verifier rejects it: wrong",
    ),
    "no answer": (changed(reference__answer=7), r"field reference\.answer: 7 is not an answer to tsp"),
    "other value": (changed(reference__value=1.0), r"field reference\.value: 1, but the answer is worth"),
    "not UTF-8": (None, "not UTF-8 at byte"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_bad_records_are_named_by_file_line_and_field_or_skipped(tmp_path, name, capsys):
    row, message = DAMAGED[name]
    text = row if isinstance(row, str) or row is None else to_line(row)
    path = tmp_path / "some.jsonl"
    bad = b'{"id": "\xff"}' if text is None else text.encode()
    lines = [to_line(row).encode() for row in good(4)]
    path.write_bytes(b"\n".join([lines[2], bad, lines[1], b"", lines[3]]) + b"\n")
    with pytest.raises(ValueError, match=message) as caught:
        StoredTask(str(path))
    assert "some.jsonl, line 2, " in str(caught.value) and len(str(caught.value)) < 500
    stored = StoredTask(str(path), on_bad_record="skip")
    assert len(stored) == 3 and len(stored.skipped) == 1
    assert "1 of 4 records left out" in capsys.readouterr().err


JUNK = [None, True, -1, 10**400, 0.5, "", "x", [], [[]], {}, {"0": 1}, [None, "a"], {"a": {"b": []}}]


def holders(value):
    """Every dict and list inside a JSON value."""
    parts = list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else [])
    return ([value] if isinstance(value, dict | list) else []) + [h for part in parts for h in holders(part)]


def test_any_damage_is_a_bad_record_and_never_another_error():
    rng, problems, bad = random.Random(0), Problems(), 0
    for turn in range(400):
        row = json.loads(to_line(good(2)[turn % 2]))
        owner = rng.choice([holder for holder in holders(row) if holder])
        owner[rng.choice(list(owner) if isinstance(owner, dict) else range(len(owner)))] = rng.choice(JUNK)
        try:
            from_row(row, problems)
        except BadRecord as error:
            bad += 1
            assert error.field
    assert bad > 300  # what is left are changes to prompts, and lucky ones


def test_a_suite_keeps_its_categories(tmp_path):
    suite = Mixture({"tsp": TSP(), "knapsack": Knapsack()}, categories={"tsp": "path"})
    rows = [
        to_row(suite, suite.instance("test", i), suite.categories()[suite.instance("test", i).task])
        for i in (0, 1)
    ]
    stored = StoredTask(write(tmp_path / "a", rows))
    assert stored.categories() == suite.categories() == {"tsp": "path", "knapsack": "selection"}


def test_the_same_record_twice_is_bad(tmp_path):
    path = write(tmp_path / "a", [*good(2), *good(1)])
    with pytest.raises(ValueError, match=r"line 3, field id: .* is on line 1 already"):
        StoredTask(path)


def test_files_without_usable_records_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        StoredTask(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="holds no usable record"):
        StoredTask(write(tmp_path / "empty", []))
    with pytest.raises(ValueError, match=r"holds no usable record; the first bad one: .*line 1"):
        StoredTask(write(tmp_path / "bad", ["{\n", "{\n"]), on_bad_record="skip")
    with pytest.raises(ValueError, match=r"path\.dev: there is no such split"):
        StoredTask({"dev": write(tmp_path / "a", good())})
    for path in ({}, "", None, 3):
        with pytest.raises(ValueError, match="must be a file, or a file for each split"):
            StoredTask(path)
    for settings in ({"layout": "csv"}, {"on_bad_record": "ignore"}):
        with pytest.raises(ValueError, match="choose one of"):
            StoredTask(str(tmp_path), **settings)


def test_tasks_of_ones_own_are_named(tmp_path):
    lab = Lab()
    path = write(tmp_path / "lab", good(2, "test", lab))
    with pytest.raises(ValueError, match=r"must be named in task\.problems"):
        StoredTask(path)
    assert StoredTask(path, problems={"lab": lab}).instance("test", 1) == lab.instance("test", 1)


def test_a_stored_task_neither_generates_nor_formats(tmp_path):
    stored = StoredTask(write(tmp_path / "a", good()))
    instance = stored.instance("test", 0)
    assert stored.solve(instance) == TSP().solve(instance)
    assert stored.solve_exact(instance).proved
    with pytest.raises(TypeError):
        stored.generate(None)
    with pytest.raises(TypeError):
        stored.format([0])


def test_parquet_and_jsonl_say_the_same(tmp_path):
    pytest.importorskip("pyarrow")
    rows = good(5)
    for form in export.FORMATS:
        (tmp_path / form).mkdir()
        export.write_rows(rows, tmp_path / form, form)
    one, two = (StoredTask(str(tmp_path / form)) for form in export.FORMATS)
    assert [one.instance("test", i) for i in range(5)] == [two.instance("test", i) for i in range(5)]
    assert one.reference(one.instance("test", 0)) == two.reference(two.instance("test", 0))
