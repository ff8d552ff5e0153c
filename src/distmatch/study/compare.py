"""The command of `compare.py`: plan, train, evaluate, report. See `distmatch.study.comparison`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distmatch.settings import lock
from distmatch.settings.cli import guarded, help_text
from distmatch.settings.compose import Catalogue
from distmatch.settings.errors import ConfigError, did_you_mean
from distmatch.study.comparison.cells import check_folders, has_checkpoint, is_finished, run_cells
from distmatch.study.comparison.existing import read_plan
from distmatch.study.comparison.plan import Plan, make_plan
from distmatch.study.comparison.request import GROUP, read_request

_FLAGS = {
    "--help": "this text",
    "--cells": "print the cells as commands and stop",
    "--config-dir": "a folder of your own with the layout of configs/, whose options are added",
}


@dataclass
class _Arguments:
    overrides: list[str] = field(default_factory=list)
    help: bool = False
    cells: bool = False
    config_dir: Path | None = None


def main(config: Path, usage: str, argv: Sequence[str] | None = None) -> int:
    """Do what a command line says.

    Args:
        config: `configs/compare.yaml`; `train.yaml` lies beside it, and `train.py` beside their folder.
        usage: Shown on top of `--help`.
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status: 0, 2 for a mistake in the settings, 1 if a cell failed, 130 for Ctrl-C.
    """
    return guarded(lambda: _do(config, usage, list(sys.argv[1:] if argv is None else argv)))


def _do(config: Path, usage: str, given: Sequence[str]) -> int:
    arguments = _read(given)
    catalogue = Catalogue(config.parent, config.stem, arguments.config_dir)
    if arguments.help:
        print(_help(catalogue, usage))
        return 0
    request = read_request(catalogue, arguments.overrides)
    training = Catalogue(config.parent, "train", arguments.config_dir)
    plan = read_plan(request) if request.runs else make_plan(request, training)
    if not request.runs:
        check_folders(plan.cells)
    if arguments.cells:
        print("\n".join(shlex.join(["python", "train.py", *cell.overrides]) for cell in plan.cells))
        return 0
    flags = [f"--config-dir={arguments.config_dir}"] if arguments.config_dir else []
    try:
        return _compare(plan, config.parent.parent / "train.py", flags, given)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on:\n  python compare.py {shlex.join(given)}")
        raise
    finally:
        lock.release()


def _compare(plan: Plan, program: Path, flags: Sequence[str], given: Sequence[str]) -> int:
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder={plan.folder}: cannot write {error.filename}: {error.strerror}") from error
    lock.hold(plan.folder, f"folder={plan.folder}")
    _announce(plan)
    failures = [] if plan.request.runs else run_cells(plan.cells, program, plan.request.jobs, flags)
    # Only now torch and matplotlib: before, they would only have delayed the first cell.
    from distmatch.study.comparison.figures import draw_all
    from distmatch.study.comparison.report import write_report
    from distmatch.study.comparison.results import collect
    from distmatch.study.comparison.summary import show

    if failures and not any(map(is_finished, plan.cells)):
        print(f"error: all {len(failures)} cells failed", file=sys.stderr)
        return 1
    results = collect(plan, failures)
    pictures = draw_all(results)
    write_report(results, ["python", "compare.py", *given], pictures)
    show(results)
    if failures:
        print(f"error: {len(failures)} of {len(plan.cells)} cells failed", file=sys.stderr)
    return 1 if failures else 0


def _announce(plan: Plan) -> None:
    done = sum(map(is_finished, plan.cells))
    begun = sum(has_checkpoint(cell) and not is_finished(cell) for cell in plan.cells)
    state = ", ".join(
        [f"{len(plan.cells)} cells", f"{done} finished", *([f"{begun} to be continued"] if begun else [])]
    )
    print(f"comparison {plan.name}: {state}; {plan.folder}", flush=True)
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)


def _help(catalogue: Catalogue, usage: str) -> str:
    """Usage, the comparison's own settings as its YAML explains them, flags."""
    text = help_text(catalogue, usage).partition("\n\nGroups")[0]
    own = (catalogue.folder / f"{catalogue.name}.yaml").read_text(encoding="utf-8").rstrip()
    flags = [f"  {flag:13}{meaning}" for flag, meaning in _FLAGS.items()]
    ready = ", ".join(catalogue.options(GROUP))
    return "\n".join([text, "", own, "", f"Ready-made, as experiment=<name>: {ready}", "", "Flags", *flags])


def _read(argv: Sequence[str]) -> _Arguments:
    """Split flags from settings."""
    arguments = _Arguments()
    rest = list(argv)
    while rest:
        text = rest.pop(0)
        flag, _, value = text.partition("=")
        if not text.startswith("-"):
            arguments.overrides.append(text)
        elif flag in ("-h", "--help"):
            arguments.help = True
        elif flag == "--cells":
            arguments.cells = True
        elif flag == "--config-dir":
            folder = Path(value or (rest.pop(0) if rest else ""))
            if folder == Path() or not folder.is_dir():
                raise ConfigError(f"--config-dir={folder}: there is no such folder")
            arguments.config_dir = folder
        else:
            hint = did_you_mean(flag, _FLAGS)
            raise ConfigError(f"{text} is not a flag; there are: {', '.join(_FLAGS)}.{hint}")
    return arguments
