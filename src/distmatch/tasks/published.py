"""Reads the published record formats: NP-Engine's question files and records, and the NPMM TSV of VLMEvalKit.

* NP-Engine, a JSON file `{"questions": {"question1": {...}}}` whose name says the task, as in
  `TSP_questions50.json`, or JSONL with `task`, `difficulty`, `question` and, where known, `optimum`, `proved`
  and an answer (`witness`).
* NPMM, a table with the columns data_source (`.../NpTsp`), graph (the text of a dict), ground_truth; its
  columns prediction and image are not read: prompts and pictures are this package's own.

The records have no split; they count as `test`. What a file calls an answer may leave tours open, count
colours from 0 or name one side of a cut: every reading is tried, and one counts if the task's own verifier
accepts it at the stated value. Lengths of Hamiltonian cycles may count the closing vertex, as published.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from distmatch.tasks.base import Instance, Solution, Task
from distmatch.tasks.records import DATA_ERRORS, BadRecord, Problems, Record, check_data, from_line, is_number

Line = tuple[int, object]
"""A line number with what stands there: text, a JSON value, or why it cannot be read."""

NAMES: Mapping[str, str] = {
    # ---- NP-Engine ----
    "TSP": "tsp",
    "hamiltonian-cycle": "hamiltonian_cycle",
    "maximum_clique_problem": "maximum_clique",
    "maximum-set": "maximum_independent_set",
    "GCP-D": "graph_coloring",
    "minimum-cut": "minimum_bisection",
    "set-cover": "set_cover",
    "subset-sum": "subset_sum",
    "knapsack": "knapsack",
    "meeting-schedule": "meeting_scheduling",
    # ---- NPMM: the last part of data_source ----
    "NpTsp": "tsp",
    "NpHamiltonianCycle": "hamiltonian_cycle",
    "NpMaximumCliqueProblem": "maximum_clique",
    "NpMinimumCut": "minimum_bisection",
    "NpMaximumSet": "maximum_independent_set",
    "NpGcpD": "graph_coloring",
    "NpFeedbackVertexSet": "feedback_vertex_set",
    "NpDominatingSet": "dominating_set",
    "NpVertexCover": "vertex_cover",
    "NpMaximumCut": "maximum_cut",
}
LEVEL = "bench"  # of records that do not tell their difficulty
MAX_LITERAL = 200_000  # characters of a Python dict that are parsed
MAX_FIELD = 1 << 26  # characters of a column: pictures are in the table
COLUMNS = ("data_source", "graph")


# ---- files to lines ----------------------------------------------------------------------------------------


def np_engine_lines(file: Path, problem: str | None) -> Iterator[Line]:
    """Lines of a JSONL file, or the questions of a JSON file in their order."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield number, _json(line, problem)
        return
    whole = _json(text, None)
    questions = whole.get("questions") if isinstance(whole, dict) else None
    if not isinstance(questions, dict):
        yield 1, BadRecord("questions", "is missing: not a question file of NP-Engine")
        return
    name = problem or file.name.rpartition("_question")[0]
    for number, question in enumerate(questions.values(), start=1):
        yield number, {"task": name, "question": question}


def _json(text: str, problem: str | None) -> object:
    try:
        value = from_line(text)
    except BadRecord as error:
        return error
    return {"task": problem, **value} if problem and isinstance(value, dict) else value


def npmm_lines(file: Path) -> Iterator[Line]:
    """The rows of the table as records in NP-Engine's form."""
    before = csv.field_size_limit(MAX_FIELD)
    try:
        with file.open(encoding="utf-8", errors="replace", newline="") as lines:
            table = csv.DictReader(lines, delimiter="\t")
            missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
            if missing:
                yield 1, BadRecord(missing[0], "there is no such column: not an NPMM table")
                return
            for row in table:
                yield table.line_num, _npmm_row(row)
    except csv.Error as error:
        yield 1, BadRecord("", f"not a table: {error}")
    finally:
        csv.field_size_limit(before)


def _npmm_row(row: Mapping[str, str | None]) -> object:
    try:
        question = literal(row["graph"] or "", "graph")
        truth = _truth(row.get("ground_truth") or "")
    except BadRecord as error:
        return error
    name = (row["data_source"] or "").rpartition("/")[2]
    known = {"optimum": truth} if isinstance(truth, int | float) else {"witness": truth}
    return {"task": name, "question": question, **known}


def _truth(text: str) -> object:
    """A value, an answer, or None: what ground_truth holds is not documented."""
    text = text.rpartition("Answer:")[2].strip()
    return literal(text, "ground_truth") if text else None


def literal(text: str, field: str) -> object:
    """The value of JSON text or, failing that, of a Python literal of bounded length.

    Raises:
        BadRecord: It is neither, or too long.
    """
    try:
        return from_line(text)
    except BadRecord:
        pass
    if len(text) > MAX_LITERAL:
        raise BadRecord(field, f"{len(text)} characters of what is not JSON; at most {MAX_LITERAL} are read")
    try:
        return json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise BadRecord(field, f"neither JSON nor a Python literal: {text[:60]!r}") from error


# ---- lines to records --------------------------------------------------------------------------------------


def to_record(content: object, line: int, problems: Problems) -> Record:
    """The record of NP-Engine's form.

    Raises:
        BadRecord: Something in it is missing, of the wrong type, unknown or contradictory.
    """
    if not isinstance(content, dict):
        raise BadRecord("", f"not a JSON object but a {type(content).__name__}")
    for name, kind in (("task", str), ("question", dict)):
        if not isinstance(content.get(name), kind):
            raise BadRecord(name, f"must be of type {kind.__name__}, not {content.get(name)!r:.60}")
    level = content.get("difficulty") or LEVEL
    problem = problems.get(NAMES.get(content["task"], content["task"]), level)
    instance = Instance(problem.name, level, "test", 0, line - 1, content["question"])
    check_data(problem, instance)
    return Record(instance, problem, _reference(problem, instance, content), problem.category)


def _reference(problem: Task, instance: Instance, content: Mapping[str, object]) -> Solution | None:
    value, proved = content.get("optimum"), content.get("proved", False)
    if value is not None and not is_number(value):
        raise BadRecord("optimum", f"must be a number, not {value!r:.60}")
    if not isinstance(proved, bool):
        raise BadRecord("proved", f"must be true or false, not {proved!r:.60}")
    cycle = (
        problem.name == "hamiltonian_cycle"
    )  # the published length counts the closing vertex, ours does not
    if content.get("witness") is None:
        return (
            None if value is None else Solution(None, value - (cycle and value > len(instance.data)), proved)
        )
    found = _accepted(problem, instance, content["witness"])
    if not found:
        raise BadRecord("witness", f"no reading of it passes the verifier of {problem.name}")
    for answer, worth in found:
        if value is None or worth == value or (cycle and worth == value - 1):
            return Solution(answer, worth, proved)
    raise BadRecord("optimum", f"{value:g}, but the answer beside it is worth {found[0][1]:g}")


def _accepted(problem: Task, instance: Instance, witness: object) -> list[tuple[object, float]]:
    """The readings of an answer that the verifier accepts, with their values."""
    found = []
    for answer in _readings(witness, instance.data):
        try:
            verdict = problem.verify(instance, problem.format(answer))
        except DATA_ERRORS:  # a reading in a form that the task cannot even print
            continue
        if verdict.feasible and verdict.value is not None:
            found.append((answer, verdict.value))
    return found


def _readings(witness: object, data: Mapping[str, object]) -> Iterator[object]:
    """As it stands; with the tour closed; with colours from 1; as one side of a cut of the vertices."""
    yield witness
    if not isinstance(witness, Sequence) or not all(type(number) is int for number in witness):
        return
    yield [*witness, *witness[:1]]
    yield [number + 1 for number in witness]
    count = data.get("num_vertices", 0)
    vertices = range(count) if isinstance(count, int) and count else [int(v) for v in data if v.isdigit()]
    yield [list(witness), [v for v in vertices if v not in set(witness)]]
