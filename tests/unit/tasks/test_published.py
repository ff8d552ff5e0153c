"""The published record formats, on small files made here and on third-party ones where they lie."""

import json
from pathlib import Path

import pytest

from distmatch.tasks.published import MAX_LITERAL, NAMES
from distmatch.tasks.records import Problems
from distmatch.tasks.stored import StoredTask

DATA = Path(__file__).parents[4] / "shared" / "data" / "npbench"
TOUR = {"0": {"1": 4, "2": 1}, "1": {"0": 4, "2": 6}, "2": {"0": 1, "1": 6}}
GRAPH = {"0": [1, 2], "1": [0, 2], "2": [0, 1, 3], "3": [2]}


def engine(tmp_path, *records, name="records.jsonl", **settings):
    path = tmp_path / name
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return StoredTask(str(path), layout="np_engine", **settings)


def only(stored):
    instance = stored.instance("test", 0)
    return instance, stored.reference(instance)


def test_every_published_name_is_a_task():
    for name in set(NAMES.values()):
        assert Problems().get(name, "bench").name == name


@pytest.mark.parametrize(
    ("task", "question", "witness", "optimum", "answer"),
    [
        ("TSP", TOUR, [1, 0, 2], 11, [1, 0, 2, 1]),
        ("GCP-D", GRAPH, [0, 1, 2, 0], 3, [1, 2, 3, 1]),
        ("maximum_clique_problem", GRAPH, [0, 1, 2], 3, [0, 1, 2]),
        ("hamiltonian-cycle", GRAPH, [0, 1, 2], 3, [0, 1, 2, 0]),
        (
            "hamiltonian-cycle",
            GRAPH,
            [0, 1, 2, 0],
            4,
            [0, 1, 2, 0],
        ),  # as published: the closing vertex counts
    ],
)
def test_answers_are_read_in_the_form_that_the_verifier_accepts(
    tmp_path, task, question, witness, optimum, answer
):
    record = {"task": task, "difficulty": "easy", "question": question, "optimum": optimum, "proved": True}
    instance, reference = only(engine(tmp_path, record | {"witness": witness}))
    assert (instance.task, instance.level, instance.data) == (NAMES[task], "easy", question)
    assert (reference.answer, reference.proved) == (answer, True)
    assert reference.value == len(set(answer)) or task == "TSP"


def test_a_value_alone_gets_the_solvers_answer_if_it_reaches_it(tmp_path):
    record = {"task": "TSP", "question": TOUR, "optimum": 11, "proved": True}
    _, reference = only(engine(tmp_path, record))
    assert (reference.value, reference.proved, len(reference.answer)) == (11, True, 4)
    _, reference = only(engine(tmp_path, record | {"optimum": 10}))
    assert (reference.value, reference.answer) == (10, None)
    _, reference = only(engine(tmp_path, {"task": "TSP", "question": TOUR}))
    assert (reference.value, reference.proved) == (11, False)


def test_question_files_say_the_task_in_their_name(tmp_path):
    text = json.dumps({"big_small": "small", "questions": {"question1": TOUR, "question2": TOUR | {}}})
    for name, problem in (("TSP_questions50.json", None), ("TSP_question5.json", None), ("any.json", "tsp")):
        (tmp_path / name).write_text(text)
        stored = StoredTask(str(tmp_path / name), layout="np_engine", problem=problem)
        assert [stored.instance("test", i).task for i in range(2)] == ["tsp", "tsp"]
    with pytest.raises(ValueError, match=r"any\.json, line 1, field task: there is no task"):
        StoredTask(str(tmp_path / "any.json"), layout="np_engine")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="field questions: is missing"):
        StoredTask(str(tmp_path / "other.json"), layout="np_engine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": None}, "field task: must be of type str"),
        ({"task": "SAT"}, "field task: there is no task 'SAT'"),
        ({"question": "x"}, "field question: must be of type dict"),
        ({"question": GRAPH}, "field data: not an instance of tsp"),
        ({"difficulty": "hell"}, "field level"),
        ({"optimum": "11"}, "field optimum: must be a number"),
        ({"proved": "yes"}, "field proved: must be true or false"),
        ({"witness": [0, 1]}, "field witness: no reading of it passes"),
        ({"witness": {"a": 1}}, "field witness: no reading of it passes"),
        ({"optimum": 12}, "field optimum: 12, but the answer beside it is worth 11"),
    ],
)
def test_bad_records_are_named_and_can_be_skipped(tmp_path, change, message):
    good = {"task": "TSP", "question": TOUR, "optimum": 11, "proved": True, "witness": [0, 1, 2]}
    with pytest.raises(ValueError, match=rf"records\.jsonl, line 2, {message}"):
        engine(tmp_path, good, good | change)
    stored = engine(tmp_path, good, good | change, good, on_bad_record="skip")
    assert len(stored) == 2 and len(stored.skipped) == 1


def table(tmp_path, *rows, columns="index\tdata_source\tgraph\tground_truth\tprediction\timage", **settings):
    path = tmp_path / "npmm.tsv"
    path.write_text("\n".join([columns, *("\t".join(row) for row in rows)]) + "\n")
    return StoredTask(str(path), layout="npmm", **settings)


def test_npmm_tables(tmp_path):
    graph = {int(node): others for node, others in GRAPH.items()}
    cut = {"num_vertices": 3, "edges": {"0-1": 2, "1-2": 5}}
    stored = table(
        tmp_path,
        (
            "0",
            "mm/NpMaximumCliqueProblem",
            json.dumps(GRAPH).replace('"', '""').join('""'),
            "3",
            "",
            "A" * 200_000,
        ),
        ("1", "mm/NpGcpD", str(graph), "Answer: [1, 2, 3, 1]", "", ""),
        ("2", "mm/NpMaximumCut", str(cut), "7", "", ""),
        ("3", "mm/NpTsp", str(TOUR), "", "", ""),
    )
    instances = [stored.instance("test", i) for i in range(4)]
    assert [i.task for i in instances] == ["maximum_clique", "graph_coloring", "maximum_cut", "tsp"]
    assert instances[1].data == GRAPH
    assert [stored.reference(i).value for i in instances] == [3, 3, 7, 11]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("__import__('os').system('true')", "field graph: neither JSON nor a Python literal"),
        ("{0: {1", "field graph: neither JSON nor a Python literal"),
        ("(" * 5000, "field graph: neither JSON nor a Python literal"),
        ("{" + " " * MAX_LITERAL + "}'", "field graph: .* characters of what is not JSON"),
        ("{0: {1, 2}}", "field graph: neither JSON"),  # a Python set
        ("[1, 2]", "field question: must be of type dict"),
        ("", "field graph: neither JSON"),
    ],
)
def test_bad_graphs(tmp_path, graph, message):
    rows = [("0", "mm/NpTsp", str(TOUR), "", "", ""), ("1", "mm/NpTsp", graph, "", "", "")]
    with pytest.raises(ValueError, match=rf"npmm\.tsv, line 3, {message}"):
        table(tmp_path, *rows)
    assert len(table(tmp_path, *rows, on_bad_record="skip")) == 1


def test_another_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match="field graph: there is no such column"):
        table(tmp_path, ("0", "mm/NpTsp", "q"), columns="index\tdata_source\tquestion")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"third-party data not at {DATA}")
def test_third_party_files():
    stored = StoredTask(str(DATA / "npengine_generated200.jsonl"), layout="np_engine")
    assert len(stored) == 120 and len(stored.categories()) == 10
    with_answer = [r for r in stored.records["test"] if r.reference.answer is not None]
    assert len(with_answer) == 108  # all but subset sums, which have no witness
    lengths = {"TSP_questions50": 33, "TSP_question5": 5, "knapsack_questions50": 33, "knapsack_question5": 5}
    for name, count in lengths.items():
        assert len(StoredTask(str(DATA / f"{name}.json"), layout="np_engine")) == count
