"""The folder of a run: its name, what is written into it first, and how a run is taken up again."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from distmatch.settings import lock
from distmatch.settings.compose import parse
from distmatch.settings.errors import ConfigError, listing

CONFIG_FILE = "config.yaml"
OVERRIDES_FILE = "overrides.yaml"
CHANGEABLE_ON_RESUME = ("trainer.max_epochs", "trainer.accelerator", "module.micro_batch_tokens")
"""Settings that leave the iterations already done what they were."""

_LONGEST_NAME = 60
_RESUME = re.compile(r"\+{0,2}resume=(.*)", re.DOTALL)
_PARTS = (
    "algo",
    "data",
    "model",
    "module",
    "paths",
    "task",
    "trainer",
)  # mappings in the config of every run


def safe_name(text: str) -> str:
    """`text` as one path component for every file system: at most 60 letters, digits, `.`, `_` and `-`.

    What had to be cut off is replaced by a hash, so that different texts keep different names.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 7]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def run_folder(cfg: DictConfig, now: datetime) -> Path:
    """`<log_dir>/train/<algo>-<task>/<time>-seed<seed>`; a stage other than `policy` replaces the algo."""
    choices = cfg.get("choices") or {}
    stage = cfg.get("stage", "policy")
    first = choices.get("algo", "run") if stage == "policy" else stage
    name = safe_name(f"{first}-{choices.get('task', 'task')}")
    return Path(cfg.paths.log_dir) / "train" / name / f"{now:%Y-%m-%d_%H-%M-%S}-seed{cfg.seed}"


def create_run_folder(cfg: DictConfig, overrides: Sequence[str]) -> Path:
    """Make the run's folder, set `cfg.paths.run_dir` to it, and write the config and the overrides there.

    Raises:
        ConfigError: The folder cannot be written, holds a run already, or is in use by another process.
    """
    given = OmegaConf.select(cfg, "paths.run_dir")
    try:
        folder = _claim(Path(given)) if given else _claim_new(run_folder(cfg, datetime.now()))
        with open_dict(cfg):
            cfg.paths.run_dir = folder.as_posix()
        write_config(cfg, folder)
        _write(folder / OVERRIDES_FILE, yaml.safe_dump(list(overrides), allow_unicode=True))
    except OSError as error:
        where = "paths.run_dir" if given else "paths.log_dir"
        value = given or cfg.paths.log_dir
        raise _unwritable(f"{where}={value}", error, value) from error
    return folder


def _unwritable(setting: str, error: OSError, folder: object) -> ConfigError:
    return ConfigError(f"{setting}: cannot write {error.filename or folder}: {error.strerror or error}")


def _claim(folder: Path) -> Path:
    """Make a given folder; one whose run ended before it had anything to keep is used again."""
    folder.mkdir(parents=True, exist_ok=True)
    lock.hold(folder, f"paths.run_dir={folder}")
    began = any((folder / "checkpoints").glob("*.ckpt")) or (folder / "metrics.json").exists()
    if began and (folder / CONFIG_FILE).exists():
        raise ConfigError(
            f"paths.run_dir={folder} holds a run already; continue it with resume={folder}, "
            "or name another folder"
        )
    return folder


def _claim_new(folder: Path) -> Path:
    """Make `folder`, or `folder-2`, `folder-3`, ... when another run took the name in the same second."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        candidate = folder if attempt == 1 else folder.with_name(f"{folder.name}-{attempt}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        lock.hold(candidate, candidate.as_posix())
        return candidate
    raise ConfigError(f"{folder} and 998 numbered folders beside it exist; set paths.run_dir")


def discard(folder: Path) -> None:
    """Remove a run folder in which nothing but what is written before a run lies."""
    harmless = {CONFIG_FILE, OVERRIDES_FILE, lock.LOCK_FILE, "hparams.yaml"}
    names = (path.name for path in folder.rglob("*") if not path.is_dir())
    if all(name in harmless or name.startswith("events.out.tfevents") for name in names):
        shutil.rmtree(folder, ignore_errors=True)


def write_config(cfg: DictConfig, folder: Path) -> Path:
    """Write `config.yaml`. Interpolations stay as they are, so that a moved folder can be taken up again."""
    path = folder / CONFIG_FILE
    _write(path, OmegaConf.to_yaml(cfg))
    return path


def _write(path: Path, text: str) -> None:
    """Write a whole file or none of it."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def load(path: Path) -> DictConfig:
    """Read a `config.yaml` that `write_config` wrote.

    Raises:
        ConfigError: It is empty or damaged.
    """
    try:
        cfg = OmegaConf.load(path)
        OmegaConf.to_container(cfg, resolve=True)
        whole = isinstance(cfg, DictConfig) and all(OmegaConf.is_dict(cfg.get(part)) for part in _PARTS)
    except (OSError, UnicodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read as a config: {error}") from error
    if not whole or not isinstance(cfg, DictConfig):
        parts = listing(_PARTS)
        raise ConfigError(f"{path} is not the config of a run, or it is damaged: it must have {parts}")
    OmegaConf.set_struct(cfg, True)
    return cfg


def resumed_folder(overrides: Sequence[str]) -> Path | None:
    """The folder that `resume=<folder>` names, whatever characters it has; None without one.

    Raises:
        ConfigError: There are two of them, or nothing follows the equals sign.
    """
    given = [found[1] for text in overrides if (found := _RESUME.fullmatch(text))]
    if len(given) > 1:
        raise ConfigError(f"resume={given[-1]}: resume is given {len(given)} times; name one folder")
    if given == [""]:
        raise ConfigError("resume= must be followed by the folder of a run, logs/train/.../...")
    return Path(given[0]).expanduser() if given and given != ["null"] else None


def resume(overrides: Sequence[str]) -> DictConfig:
    """The config of the run that `resume=<folder>` names, with `paths.run_dir` set to that folder.

    Args:
        overrides: The whole command line; besides `resume` only `CHANGEABLE_ON_RESUME` may be set.

    Raises:
        ConfigError: The folder holds no run or no checkpoint, or another setting is given.
    """
    folder = resumed_folder(overrides)
    if folder is None:
        raise ConfigError("resume=<folder> must be given")
    changes = [parse(text) for text in overrides if not _RESUME.fullmatch(text)]
    _check_resumable(folder)
    for change in changes:
        if change.key_or_group not in CHANGEABLE_ON_RESUME:
            raise ConfigError(
                f"{change.input_line}: a resumed run keeps its settings; only "
                f"{listing(CHANGEABLE_ON_RESUME)} may be given. For other settings start a new run"
            )
    cfg = load(folder / CONFIG_FILE)
    with open_dict(cfg):
        for change in changes:
            OmegaConf.update(cfg, change.key_or_group, change.value())
        cfg.resume = folder.as_posix()
        cfg.paths.run_dir = folder.as_posix()
    return cfg


def record_resume(cfg: DictConfig, overrides: Sequence[str]) -> Callable[[], None]:
    """Keep the run folder's own files up to date with what the resumed run changed.

    Returns:
        Puts the files back as they were, for a run that could not be built.
    """
    folder = Path(cfg.paths.run_dir)
    try:
        lock.hold(folder, f"resume={folder}")
        before = {file: _text(file) for file in (folder / CONFIG_FILE, folder / OVERRIDES_FILE)}
        changes = [text for text in overrides if not _RESUME.fullmatch(text)]
        earlier = _earlier_overrides(folder / OVERRIDES_FILE)
        _write(folder / OVERRIDES_FILE, yaml.safe_dump([*earlier, *changes], allow_unicode=True))
        write_config(cfg, folder)
    except OSError as error:
        raise _unwritable(f"resume={folder}", error, folder) from error
    return lambda: _restore(before)


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _restore(texts: dict[Path, str | None]) -> None:
    for file, text in texts.items():
        if text is None:
            file.unlink(missing_ok=True)
        else:
            _write(file, text)


def _earlier_overrides(file: Path) -> list[str]:
    try:
        earlier = yaml.safe_load(_text(file) or "[]")
    except (UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} is damaged: {error}; delete it, it is only a record") from error
    return earlier if isinstance(earlier, list) else []


def _check_resumable(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(
            f"resume={folder}: there is no such folder; give the folder of a run, logs/train/.../..."
        )
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(f"resume={folder} has no {CONFIG_FILE}, so it is not the folder of a run")
    if not any((folder / "checkpoints").glob("*.ckpt")):
        raise ConfigError(
            f"resume={folder} has no checkpoint (checkpoints/*.ckpt): the run ended before its first "
            "iteration did; start it anew"
        )
