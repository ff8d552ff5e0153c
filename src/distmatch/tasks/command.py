"""What the commands beside train.py (export, audit, filter, lab, check) share: a command line like its own.

Settings are composed from the same `configs` tree and give the same errors; nothing slow is imported before
they are known to be right. No run folder is made.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from distmatch.settings.checks import check
from distmatch.settings.cli import help_text
from distmatch.settings.compose import Catalogue, compose
from distmatch.settings.errors import ConfigError
from distmatch.settings.numbers import Number


def main(
    name: str,
    run: Callable[[DictConfig], int],
    usage: str,
    numbers: Sequence[Number] = (),
    argv: Sequence[str] | None = None,
) -> int:
    """Do what a command line says.

    Args:
        name: The main config, `configs/<name>.yaml`.
        run: Called with the checked config; returns the exit status.
        usage: Shown on top of `--help`.
        numbers: What the command's own numbers must be.
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status: that of `run`, 2 for a mistake in the settings, 130 for Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        catalogue = Catalogue(configs_folder(name), name)
        if {"--help", "-h"} & set(arguments):
            print(help_text(catalogue, usage).partition("\nFlags")[0].rstrip())
            return 0
        cfg = compose(catalogue, arguments)
        _check_numbers(cfg, numbers)
        set_level(cfg)
        check(cfg)
        return run(cfg)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except InstantiationException as error:
        if not isinstance(error.__cause__, (ValueError, OSError)):
            raise
        place = str(error).rpartition("full_key: ")[2].splitlines()[0]
        print(f"error: {place}: {error.__cause__}", file=sys.stderr)
        return 2


def configs_folder(name: str) -> Path:
    """The `configs` tree: of the working folder if it has the command's config, else of this checkout.

    Raises:
        ConfigError: Neither has it.
    """
    candidates = [Path.cwd() / "configs", Path(__file__).resolve().parents[3] / "configs"]
    for folder in candidates:
        if (folder / f"{name}.yaml").is_file():
            return folder
    raise ConfigError(
        f"there is no configs/{name}.yaml in {candidates[0].parent}; run the command from the project's root"
    )


def _check_numbers(cfg: DictConfig, numbers: Sequence[Number]) -> None:
    for number in numbers:
        value = OmegaConf.select(cfg, number.key)
        if not number.accepts(value):
            raise ConfigError(f"{number.key}={value} must be {number.demand()}")


def set_level(cfg: DictConfig) -> None:
    """Put `level`, where a command has it and it is given, into the task or into every member of a mixture.

    Raises:
        ConfigError: The task has no levels.
    """
    if OmegaConf.select(cfg, "level") is None:
        return
    members = OmegaConf.select(cfg, "task.tasks")
    nodes = list(members.values()) if isinstance(members, DictConfig) else [cfg.task]
    for node in nodes:
        if not isinstance(node, DictConfig) or "level" not in node:
            raise ConfigError(f"level={cfg.level}: task={cfg.choices.task} has no level to set; leave it out")
        node.level = cfg.level


def fresh_folder(given: str | None, default: str) -> Path:
    """The folder that a command will make: `given`, or `logs/<default>`.

    Raises:
        ConfigError: It exists already.
    """
    folder = Path(given) if given else Path("logs") / default
    if folder.exists():
        raise ConfigError(f"out={folder} exists already; remove it, or name another folder with out=<folder>")
    return folder


@contextmanager
def moved_into_place(folder: Path) -> Iterator[Path]:
    """A scratch folder that becomes `folder` when all went well, and is removed otherwise.

    Raises:
        ConfigError: It cannot be made.
    """
    scratch = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)  # of a command that was killed
    try:
        scratch.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"out={folder}: cannot write {error.filename}: {error.strerror}") from error
    try:
        yield scratch
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def versions() -> dict[str, str]:
    """Versions of this package and of the solver behind proofs."""
    return {name: version(name) for name in ("distmatch", "ortools")}
