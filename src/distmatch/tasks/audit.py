"""Try to break a task: its solutions, its verifier, its stream of instances, its speed.

python -m distmatch.tasks.audit task=np_tiny n=40
python -m distmatch.tasks.audit task=tsp level=bench
python -m distmatch.tasks.audit task=np_bench n=1000

One row a task, one column a check; what failed is listed below. Exit status 1 if anything did.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from distmatch.settings.errors import ConfigError
from distmatch.settings.numbers import Number
from distmatch.tasks.command import main

if TYPE_CHECKING:
    from distmatch.tasks.audit_checks import Finding
    from distmatch.tasks.base import Task

NUMBERS = (
    Number("n", low=1),
    Number("answers", low=1),
    Number("proofs", low=0),
    Number("seconds", float, above=0),
    Number("max_duplicates", float, low=0, high=1),
    Number("min_verified", float, low=0),
    Number("min_generated", float, low=0),
)
SHOWN = 5  # failures of one check that are listed


def run(cfg: DictConfig) -> int:
    """Audit what the config says, print the table; 1 if a check failed."""
    from hydra.utils import instantiate

    from distmatch.tasks.audit_checks import CHECKS, Limits, Probe, checked

    task: Task = instantiate(cfg.task)
    limits = Limits(**{key: cfg[key] for key in Limits.__dataclass_fields__})
    found = {}
    for problem in audited(task, str(cfg.choices.task)):
        probe = Probe(problem, limits)
        found[f"{problem.name} {problem.level}"] = {
            name: checked(check, probe) for name, check in CHECKS.items()
        }
    show(found)
    return int(any(finding.failures for row in found.values() for finding in row.values()))


def audited(task: Task, name: str) -> list[Task]:
    """The generating problems of a task: itself, its members, or those of all levels of a curriculum.

    Raises:
        ConfigError: The task generates nothing.
    """
    from distmatch.tasks.curriculum import Curriculum
    from distmatch.tasks.records import members
    from distmatch.tasks.stored import StoredTask

    if isinstance(task, StoredTask):
        raise ConfigError(
            f"task={name}: {len(task)} records were checked when loaded; audit the task that made them"
        )
    if isinstance(task, Curriculum):
        return [problem for mixture in task.stages.values() for problem in members(mixture)]
    return members(task)


def show(found: dict[str, dict[str, Finding]]) -> None:
    """Print the table, then the failures."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Without a terminal a table would be folded to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=not sys.stdout.isatty())
    columns: Sequence[str] = list(next(iter(found.values())))
    table = Table("task", *columns, box=box.SIMPLE_HEAD)
    for name, row in found.items():
        table.add_row(name, *(_cell(row[column]) for column in columns))
    console.print(table)
    for name, row in found.items():
        for column, finding in row.items():
            for failure in finding.failures[:SHOWN]:
                console.print(f"FAILED {name}, {column}: {failure}", markup=False, highlight=False)


def _cell(finding: Finding) -> str:
    if finding.figure is None:
        return "-"
    return f"[red]FAILED[/] {finding.figure}" if finding.failures else f"ok {finding.figure}"


if __name__ == "__main__":
    sys.exit(main("audit", run, __doc__, NUMBERS))
