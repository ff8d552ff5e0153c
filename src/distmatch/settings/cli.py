"""The command line of the entry points: help, printing a config, several runs, resuming, child processes.

Hydra's compose API is used rather than its decorator, so that errors are ours, so that Lightning starts the
other processes of a distributed run with the plain command line, and so that those read the parent's config
instead of composing one of their own.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from distmatch.settings import folder, lock
from distmatch.settings.checks import check
from distmatch.settings.compose import Catalogue, compose, parse
from distmatch.settings.errors import ConfigError, did_you_mean

CONFIG_VARIABLE = "DISTMATCH_CONFIG"
"""Where child processes of a distributed run find the config of their parent."""

_FLAGS = {
    "--help": "this text",
    "-h": "this text",
    "--cfg": "print the composed config and stop; `--cfg resolved` fills in the interpolations",
    "-m": "run every combination of comma-separated values, as in `-m algo=dmpo,grpo seed=1,2`",
    "--multirun": "the same as -m",
    "--config-dir": "a folder of your own with the layout of configs/, whose options are added",
}


@dataclass
class _Arguments:
    overrides: list[str] = field(default_factory=list)
    help: bool = False
    cfg: str | None = None
    multirun: bool = False
    config_dir: Path | None = None


def main(
    config: Path, run: Callable[[DictConfig], object], usage: str, argv: Sequence[str] | None = None
) -> int:
    """Do what a command line says.

    Args:
        config: The main config file; its folder holds the groups.
        run: Called with the checked config. Whatever is slow to import belongs inside.
        usage: Shown on top of `--help`.
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status: 0, 2 for a mistake in the settings, 1 if one of several runs failed, 130 for Ctrl-C.
    """
    return guarded(lambda: _do(config, run, usage, sys.argv[1:] if argv is None else argv))


def _do(config: Path, run: Callable[[DictConfig], object], usage: str, argv: Sequence[str]) -> int:
    arguments = _read(argv)
    catalogue = Catalogue(config.parent, config.stem, arguments.config_dir)
    if arguments.help:
        print(help_text(catalogue, usage))
        return 0
    if arguments.cfg:
        cfg = _composed(catalogue, arguments.overrides)
        print(OmegaConf.to_yaml(cfg, resolve=arguments.cfg == "resolved"), end="")
        return 0
    if arguments.multirun:
        return _run_each(catalogue, arguments)
    _start(run, *_prepare(catalogue, arguments.overrides, os.environ))
    return 0


def guarded(work: Callable[[], int]) -> int:
    """The exit status of `work`; mistakes in the settings are said in one line, without a traceback."""
    try:
        return work()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as shells have it; what can be gone on with was said by the run itself
    except InstantiationException as error:
        if not _is_refusal(error.__cause__):
            raise
        # A constructor refused a value or found no file or hub, and its message says why. Hydra adds
        # "full_key: <path>" to its own.
        place = str(error).rpartition("full_key: ")[2].splitlines()[0]
        print(f"error: {place}: {error.__cause__}", file=sys.stderr)
        return 2


def _start(run: Callable[[DictConfig], object], cfg: DictConfig, undo: Callable[[], None]) -> None:
    """Call `run`; where the settings turn out to be wrong only now, leave the disk as it was."""
    try:
        run(cfg)
    except (ConfigError, InstantiationException):
        undo()
        raise
    finally:
        lock.release()


def _is_refusal(cause: BaseException | None) -> bool:
    """Whether a constructor did not take its values; Lightning's own exception is known by its name only."""
    names = {kind.__name__ for kind in type(cause).__mro__}
    return isinstance(cause, (ValueError, TypeError, OSError)) or "MisconfigurationException" in names


def load_config(
    catalogue: Catalogue, overrides: Sequence[str], environment: Mapping[str, str] | None = None
) -> DictConfig:
    """The checked config of this process; makes its run folder and sets `DISTMATCH_CONFIG` for its children.

    A child of a distributed run takes its parent's config as it is; it neither composes nor creates anything.

    Raises:
        ConfigError: A setting cannot work.
    """
    return _prepare(catalogue, overrides, os.environ if environment is None else environment)[0]


def _prepare(
    catalogue: Catalogue, overrides: Sequence[str], environment: Mapping[str, str]
) -> tuple[DictConfig, Callable[[], None]]:
    """The checked config, and what takes back what was written for it."""
    inherited = environment.get(CONFIG_VARIABLE)
    if inherited and int(environment.get("LOCAL_RANK", "0")) > 0:
        return folder.load(Path(inherited)), _nothing
    cfg = _composed(catalogue, overrides)
    check(cfg)
    _check_launcher(cfg, environment)
    undo = _nothing if is_follower(environment) else _record(cfg, overrides)
    os.environ[CONFIG_VARIABLE] = str((Path(cfg.paths.run_dir) / folder.CONFIG_FILE).resolve())
    return cfg, undo


def _composed(catalogue: Catalogue, overrides: Sequence[str]) -> DictConfig:
    resuming = folder.resumed_folder(overrides) is not None
    return folder.resume(overrides) if resuming else compose(catalogue, overrides)


def _record(cfg: DictConfig, overrides: Sequence[str]) -> Callable[[], None]:
    """Write the config into the run's folder; the result takes that back."""
    if folder.resumed_folder(overrides) is not None:
        return folder.record_resume(cfg, overrides)
    given = OmegaConf.select(cfg, "paths.run_dir")
    existed = given is not None and Path(given).exists()
    made = folder.create_run_folder(cfg, overrides)
    return _nothing if existed else partial(folder.discard, made)


def _nothing() -> None:
    """Take nothing back."""


def is_follower(environment: Mapping[str, str]) -> bool:
    """Whether an outside launcher (torchrun, Slurm) started this process as another than the first."""
    return any(
        int(environment.get(name, "0")) > 0 for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK")
    )


def _check_launcher(cfg: DictConfig, environment: Mapping[str, str]) -> None:
    together = int(environment.get("WORLD_SIZE", "1")) > 1 or is_follower(environment)
    if together and OmegaConf.select(cfg, "paths.run_dir") is None:
        raise ConfigError(
            "paths.run_dir must be given when torchrun or Slurm starts the processes, so that all of them "
            "use one folder; on one machine start a single process with trainer.devices=<n> instead"
        )


def _run_each(catalogue: Catalogue, arguments: _Arguments) -> int:
    """Check every combination, then run them one after another, each in a process and a folder of its own."""
    jobs = combinations(arguments.overrides)
    for job in jobs:
        check(_composed(catalogue, job))
    extra = [f"--config-dir={arguments.config_dir}"] if arguments.config_dir else []
    environment = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE}
    failed = []
    for number, job in enumerate(jobs, start=1):
        print(f"run {number} of {len(jobs)}: {' '.join(job)}", flush=True)
        status = _run_process([sys.executable, sys.argv[0], *extra, *job], environment)
        if status:
            failed.append(f"{' '.join(job)} (exit status {status})")
    if failed:
        print(f"error: {len(failed)} of {len(jobs)} runs failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_process(command: Sequence[str], environment: Mapping[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C reached it too: it saves what it has and says how to go on
        raise


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that sweeping overrides list, the last one varying fastest."""
    axes = []
    for text in overrides:
        override = parse(text)
        if override.is_sweep_override():
            key = text.partition("=")[0]
            axes.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            axes.append([text])
    return [list(job) for job in itertools.product(*axes)]


def help_text(catalogue: Catalogue, usage: str) -> str:
    """What `--help` prints: usage, flags, and the groups with their options as they lie on disk."""
    defaults: dict[str, object] = {}
    for entry in catalogue.main().get("defaults", []):
        if isinstance(entry, DictConfig):
            for key in entry:
                value = "required" if OmegaConf.is_missing(entry, key) else entry[key]
                defaults[str(key).removeprefix("override ")] = value
    lines = [usage.strip(), "", "Groups (choose one option each; the default is in brackets)"]
    for group in catalogue.groups():
        options = ", ".join(catalogue.options(group)) or "(no options yet)"
        lines.append(f"  {group:11}[{defaults.get(group) or 'none'}] {options}")
    lines += [
        "",
        "Any setting: <group>.<key>=<value>; +<group>.<key>=<value> for one that the YAML does not name",
        "",
    ]
    lines += [
        "Flags",
        *(f"  {flag:13}{text}" for flag, text in _FLAGS.items() if flag not in ("-h", "--multirun")),
    ]
    return "\n".join(lines)


def _read(argv: Sequence[str]) -> _Arguments:
    """Split flags from overrides."""
    arguments = _Arguments()
    rest = list(argv)
    while rest:
        text = rest.pop(0)
        if not text.startswith("-"):
            arguments.overrides.append(text)
            continue
        flag, equals, value = text.partition("=")
        if flag in ("-h", "--help"):
            arguments.help = True
        elif flag in ("-m", "--multirun"):
            arguments.multirun = True
        elif flag == "--cfg":
            arguments.cfg = value if equals else _next(rest, ("job", "resolved"))
        elif flag == "--config-dir":
            arguments.config_dir = _folder(value if equals else _next(rest))
        else:
            raise ConfigError(
                f"{text} is not a flag; there are: {', '.join(_FLAGS)}.{did_you_mean(flag, _FLAGS)}"
            )
    return arguments


def _next(rest: list[str], allowed: Sequence[str] = ()) -> str:
    """The value after a flag; one of `allowed`, or its first one where the value is left out."""
    if allowed and (not rest or rest[0] not in allowed):
        return allowed[0]
    if not rest:
        raise ConfigError("--config-dir needs a folder")
    return rest.pop(0)


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise ConfigError(f"--config-dir={text}: there is no such folder")
    return path
