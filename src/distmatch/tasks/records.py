"""Instances with their references as plain JSON records: written by export and filter, read back as a task.

A record is read with suspicion: whatever is wrong with it becomes a `BadRecord` that names the field. Its
instance must have the id that follows from its data, and its reference must pass the task's own verifier.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import distmatch.tasks.np as np_tasks
from distmatch.tasks.base import SPLITS, Instance, Solution, Task
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.integer_answers import IntegerAnswerTask

Row = dict[str, object]
LARGEST = 1e12
DATA_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What code that expects the form of a problem's data raises on data of another form."""


class BadRecord(ValueError):
    """A record that cannot be used.

    Attributes:
        field: The field at fault, dotted; empty if the line as a whole is.
        why: What is wrong with it.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"field {field}: {why}" if field else why)
        self.field = field
        self.why = why


@dataclass(frozen=True)
class Record:
    """One instance as stored.

    Attributes:
        instance: The instance.
        problem: The task that renders and verifies it.
        reference: The stored reference; None where the file has none. `answer` is None where only its value
            is known.
        category: As the suite had it that was exported, or the problem's own.
        extra: Further fields of the record, such as `success_rate`.
    """

    instance: Instance
    problem: Task
    reference: Solution | None
    category: str
    extra: Mapping[str, object] = field(default_factory=dict)


def members(task: Task) -> list[Task]:
    """The problems that a task is made of: itself, or the members of a mixture."""
    return list(task.tasks.values()) if isinstance(task, Mixture) else [task]


class Problems:
    """The tasks of `distmatch.tasks.np` by name, and a user's own.

    Args:
        own: Further tasks by name; they come first.
    """

    def __init__(self, own: Mapping[str, Task] | None = None) -> None:
        self._known: dict[str, Task] = dict(own or {})

    def get(self, name: object, level: str | None = None) -> Task:
        """The task of that name; `level` decides nothing but is checked.

        Raises:
            BadRecord: There is no such task or level.
        """
        if not isinstance(name, str):
            raise BadRecord("task", f"{name!r} is not a name")
        if name not in self._known:
            self._known[name] = _shipped(name)
        problem = self._known[name]
        if level is not None and level not in problem.levels:
            raise BadRecord("level", f"{level!r} is unknown to task {name} ({', '.join(problem.levels)})")
        return problem


def _shipped(name: str) -> Task:
    names = {module.name for module in pkgutil.iter_modules(np_tasks.__path__)}
    module = importlib.import_module(f"{np_tasks.__name__}.{name}") if name in names else None
    for kind in vars(module).values() if module else ():
        if isinstance(kind, type) and issubclass(kind, Task) and kind.__module__ == module.__name__:
            return kind(kind.levels[0])
    raise BadRecord("task", f"there is no task {name!r}; a task of your own must be named in task.problems")


# ---- writing -----------------------------------------------------------------------------------------------


def to_row(
    task: Task, instance: Instance, category: str | None = None, spell: Spell | None = None, **extra: object
) -> Row:
    """An instance as a JSON object with both prompts and its reference.

    Args:
        task: The task, or a mixture that holds the instance's.
        instance: The instance.
        category: As the suite has it; the task's own if None.
        spell: Tells whether the small vocabulary can spell a compact prompt; one that it cannot is null.
        **extra: Further fields.
    """
    problem, reference = task.problem(instance), task.reference(instance)
    compact = task.render(instance, "compact").text
    return {
        "id": instance.id,
        "task": instance.task,
        "level": instance.level,
        "split": instance.split,
        "seed": instance.seed,
        "index": instance.index,
        "category": category or problem.category,
        "sense": problem.sense,
        "data": instance.data,
        "prompt": task.render(instance, "natural").text,
        "compact_prompt": compact if spell is None or spell(compact) else None,
        "reference": {"answer": reference.answer, "value": reference.value, "proved": reference.proved},
        **extra,
    }


class Spell:
    """Whether a text can be spelt in the vocabulary of the shipped tiny model."""

    def __init__(self) -> None:
        from importlib.resources import files

        from tokenizers import Tokenizer

        text = files("distmatch").joinpath("assets", "tiny", "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = Tokenizer.from_str(text)
        self._unknown = self._tokenizer.token_to_id("<unk>")

    def __call__(self, text: str) -> bool:
        """True if no word of `text` is unknown."""
        return self._unknown not in self._tokenizer.encode(text).ids


def to_line(row: Row) -> str:
    """One line of JSON."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def instance_of(row: Row) -> Instance:
    """The instance of a record that `to_row` made."""
    address = (row["task"], row["level"], row["split"], row["seed"], row["index"], row["data"])
    return Instance(*address)  # type: ignore[arg-type]


# ---- reading -----------------------------------------------------------------------------------------------

_FIELDS: Mapping[str, type] = {
    "id": str,
    "task": str,
    "level": str,
    "split": str,
    "seed": int,
    "index": int,
    "category": str,
    "sense": str,
    "data": dict,
    "reference": dict,
}
_KNOWN = {*_FIELDS, "prompt", "compact_prompt"}


def from_line(text: str) -> object:
    """The JSON value of a line.

    Raises:
        BadRecord: It is not JSON; NaN and infinities are not.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRecord("", f"not JSON: {str(error)[:100]}") from error


def from_row(row: object, problems: Problems) -> Record:
    """The record that `to_row` wrote.

    Raises:
        BadRecord: Something in it is missing, of the wrong type, unknown or contradictory.
    """
    if not isinstance(row, dict):
        raise BadRecord("", f"not a JSON object but a {type(row).__name__}")
    for name, kind in _FIELDS.items():
        if name not in row:
            raise BadRecord(name, f"is missing; an exported record has {', '.join(_FIELDS)}")
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            raise BadRecord(name, f"must be of type {kind.__name__}, not {row[name]!r:.60}")
    if row["split"] not in SPLITS:
        raise BadRecord("split", f"{row['split']!r} is unknown; there are {', '.join(SPLITS)}")
    problem = problems.get(row["task"], row["level"])
    if row["sense"] != problem.sense:
        raise BadRecord("sense", f"{row['sense']!r}, but {problem.name} is a {problem.sense} problem")
    instance = instance_of(row)
    check_data(problem, instance)
    if row["id"] != instance.id:
        raise BadRecord("id", f"{row['id']!r} does not belong to the data, whose id is {instance.id!r}")
    reference = _reference(problem, instance, row["reference"])
    extra = {name: value for name, value in row.items() if name not in _KNOWN}
    return Record(instance, problem, reference, row["category"], extra)


def check_data(problem: Task, instance: Instance) -> None:
    """Refuse data that the problem's own code cannot read.

    Raises:
        BadRecord: Something is not a number, or printing the question or judging an answer to it failed.
    """
    if isinstance(problem, IntegerAnswerTask):
        _check_leaves("data", instance.data)
    try:
        problem.render(instance, "compact")
        problem.verify(instance, problem.format(()))
        problem.verify(instance, "Answer: [0]")
    except DATA_ERRORS as error:
        why = f"not an instance of {problem.name} ({type(error).__name__}: {str(error)[:80]})"
        raise BadRecord("data", why) from error


def _check_leaves(path: str, value: object) -> None:
    """All leaves of the published forms are numbers."""
    if isinstance(value, Mapping | list):
        for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_leaves(f"{path}.{name}", part)
    elif not is_number(value):
        raise BadRecord(path, f"must be a number of at most {LARGEST:g}, not {value!r:.60}")


def is_number(value: object) -> bool:
    """Whether `value` is a finite number, small enough for exact sums; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def check_reference(problem: Task, instance: Instance, answer: object, value: float | None) -> float:
    """The value of a reference answer by the problem's verifier.

    Raises:
        BadRecord: The verifier rejects it, or finds another value than the one stated.
    """
    try:
        verdict = problem.verify(instance, problem.format(answer))
    except DATA_ERRORS as error:
        raise BadRecord("reference.answer", f"{answer!r:.60} is not an answer to {problem.name}") from error
    if not verdict.feasible or verdict.value is None:
        raise BadRecord("reference.answer", f"its own verifier rejects it: {verdict.reason}")
    if value is not None and verdict.value != value:
        raise BadRecord("reference.value", f"{value:g}, but the answer is worth {verdict.value:g}")
    return verdict.value


def _reference(problem: Task, instance: Instance, stored: Mapping[str, object]) -> Solution:
    for name in ("answer", "value", "proved"):
        if name not in stored:
            raise BadRecord(f"reference.{name}", "is missing")
    value, proved = stored["value"], stored["proved"]
    if not is_number(value):
        raise BadRecord("reference.value", f"must be a number, not {value!r:.60}")
    if not isinstance(proved, bool):
        raise BadRecord("reference.proved", f"must be true or false, not {proved!r:.60}")
    if stored["answer"] is not None:  # a foreign file may have told the value only
        check_reference(problem, instance, stored["answer"], float(value))
    return Solution(stored["answer"], float(value), proved)


def _refuse_constant(name: str) -> Iterator[object]:
    raise ValueError(f"{name} is not a number of JSON")
