"""Instances from files as a task: exports of this package, and the published formats.

Verdicts and prompts come from the problem's own class, references from the file. Files are read whole at the
start and checked record by record, so nothing is found out in the middle of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

from distmatch.tasks.base import SPLITS, Instance, Solution, Split, Task
from distmatch.tasks.forwarding import ForwardingTask
from distmatch.tasks.published import Line, np_engine_lines, npmm_lines, to_record
from distmatch.tasks.records import BadRecord, Problems, Record, Row, from_line, from_row

Layout = Literal["distmatch", "np_engine", "npmm"]
OnBadRecord = Literal["stop", "skip"]
SHOWN = 3  # bad records that a report quotes


class StoredTask(ForwardingTask):
    """The instances of one or several files.

    A file serves the split that its records name, or the one that `path` gives it. Evaluation meets each
    instance at most once: an index beyond the file's end is refused in `val` and `test`. Training goes round:
    index i is instance i modulo their number.

    Args:
        path: A file or the folder of an export; or a file for each split that is wanted.
        layout: What wrote it.
        on_bad_record: `stop` at the first record that cannot be used, or `skip` and report them on stderr.
        problem: Name of the task of all records, for files of `np_engine` that do not say it.
        problems: Tasks that are not in `distmatch.tasks.np`, by name.

    Attributes:
        skipped: One line for each record that was left out.

    Raises:
        ValueError: A file is missing or empty, has records of several splits, or a record is bad: file, line,
            field and reason.
    """

    name = "stored"

    def __init__(
        self,
        path: str | Mapping[Split, str],
        layout: Layout = "distmatch",
        on_bad_record: OnBadRecord = "stop",
        problem: str | None = None,
        problems: Mapping[str, Task] | None = None,
    ) -> None:
        for key, value, allowed in (
            ("layout", layout, Layout),
            ("on_bad_record", on_bad_record, OnBadRecord),
        ):
            if value not in get_args(allowed):
                raise ValueError(f"{key}={value!r} is unknown; choose one of {', '.join(get_args(allowed))}")
        self._layout, self._skips, self._problem = layout, on_bad_record == "skip", problem
        self._problems = Problems(problems)
        self.skipped: list[str] = []
        self.records: dict[Split, list[Record]] = {}
        self._by_problem: dict[str, Record] = {}
        self._categories: dict[str, str] = {}
        self._load(path)

    # ---- loading -------------------------------------------------------------------------------------------

    def _load(self, path: str | Mapping[Split, str]) -> None:
        if not isinstance(path, str | Mapping) or not path:
            raise ValueError(f"path={path!r} must be a file, or a file for each split")
        if isinstance(path, str):
            records = self._read(Path(path))
            self.records[records[0].instance.split] = records
        else:
            for split, file in path.items():
                if split not in SPLITS:
                    raise ValueError(f"path.{split}: there is no such split; there are {', '.join(SPLITS)}")
                self.records[split] = self._read(Path(file))
        for record in (r for records in self.records.values() for r in records):
            self._by_problem.setdefault(record.instance.fingerprint, record)

    def _read(self, path: Path) -> list[Record]:
        file = _file_of(path)
        records: list[Record] = []
        known: dict[str, int] = {}
        bad: list[str] = []
        for line, content in self._lines(file):
            try:
                record = self._record(content, line)
                self._check_company(record, records, known)
            except BadRecord as error:
                where = f"{file}, line {line}, {error}"
                if not self._skips:
                    raise ValueError(f"{where}; on_bad_record=skip leaves such records out") from error
                bad.append(where)
                continue
            known[record.instance.id] = line
            self._categories[record.instance.task] = record.category
            records.append(record)
        self._report(file, bad, len(records))
        return records

    def _lines(self, file: Path) -> Iterator[Line]:
        if self._layout == "np_engine":
            return np_engine_lines(file, self._problem)
        if self._layout == "npmm":
            return npmm_lines(file)
        return _parquet_lines(file) if file.suffix == ".parquet" else _text_lines(file)

    def _record(self, content: object, line: int) -> Record:
        if isinstance(content, BadRecord):
            raise content
        if self._layout == "distmatch":
            row = from_line(content) if isinstance(content, str) else content
            return from_row(row, self._problems)
        return to_record(content, line, self._problems)

    def _check_company(self, record: Record, before: list[Record], known: Mapping[str, int]) -> None:
        instance = record.instance
        if before and before[0].instance.split != instance.split:
            raise BadRecord(
                "split", f"{instance.split!r}, but the file begins with {before[0].instance.split!r}"
            )
        category = self._categories.get(instance.task, record.category)
        if record.category != category:
            raise BadRecord(
                "category", f"{record.category!r}, but {instance.task} was in {category!r} before"
            )
        if instance.id in known:
            raise BadRecord("id", f"{instance.id!r} is on line {known[instance.id]} already")

    def _report(self, file: Path, bad: list[str], good: int) -> None:
        if not good:
            raise ValueError(
                f"{file} holds no usable record" + (f"; the first bad one: {bad[0]}" if bad else "")
            )
        if bad:
            more = f" ... and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            print(
                f"{file}: {len(bad)} of {len(bad) + good} records left out: {'; '.join(bad[:SHOWN])}{more}",
                file=sys.stderr,
            )
        self.skipped += bad

    # ---- as a task -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(map(len, self.records.values()))

    def instance(self, split: Split, index: int) -> Instance:
        """The record at that place, in the order of the file."""
        if split not in self.records:
            raise ValueError(
                f"split={split!r} is not stored here, only {', '.join(self.records)}; "
                f"name a file for it, as in task.path={{{split}: <file>}}"
            )
        records = self.records[split]
        if index < 0 or (index >= len(records) and split != "train"):
            raise ValueError(
                f"index={index}: the stored split {split!r} has {len(records)} instances; "
                f"set data.eval_prompts={len(records)} or less"
            )
        return records[index % len(records)].instance

    def categories(self) -> dict[str, str]:
        """The category of every problem in the files, as stored."""
        return dict(self._categories)

    def problem(self, instance: Instance) -> Task:
        """The class that the instance belongs to."""
        return self._problems.get(instance.task)

    def reference(self, instance: Instance) -> Solution:
        """The stored reference; where the file lacks it, or its answer, the problem's solver helps out."""
        record = self._by_problem.get(instance.fingerprint)
        stored = record.reference if record else None
        if stored is not None and stored.answer is not None:
            return stored
        solution = self.problem(instance).reference(instance)
        if stored is None or solution.value == stored.value:
            return Solution(
                solution.answer, solution.value, solution.proved if stored is None else stored.proved
            )
        return stored


def _file_of(path: Path) -> Path:
    """The file with the records: `path` itself, or the one in the folder of an export."""
    if path.is_dir():
        found = [path / f"instances.{form}" for form in ("jsonl", "parquet")]
        path = next((file for file in found if file.is_file()), found[0])
    if not path.is_file():
        raise ValueError(f"path={path}: there is no such file")
    return path


def _text_lines(file: Path) -> Iterator[Line]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                yield number, BadRecord("", f"not UTF-8 at byte {error.start}")
                continue
            if text.strip():
                yield number, text


def _parquet_lines(file: Path) -> Iterator[Line]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ValueError(f"{file} needs pyarrow: pip install 'distmatch[data]'") from error
    for number, row in enumerate(pq.read_table(file).to_pylist(), start=1):
        yield number, _nested(row)


def _nested(row: Row) -> Row | BadRecord:
    """The record whose mappings were written as JSON text."""
    try:
        return row | {name: from_line(str(row[name])) for name in ("data", "reference") if name in row}
    except BadRecord as error:
        return error
