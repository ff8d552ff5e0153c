"""The folder of a run: its name, what is written into it first, and how a run is taken up again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from distmatch.settings.compose import parse
from distmatch.settings.errors import ConfigError, listing

CONFIG_FILE = "config.yaml"
OVERRIDES_FILE = "overrides.yaml"
CHANGEABLE_ON_RESUME = ("trainer.max_epochs", "trainer.accelerator", "module.micro_batch_tokens")
"""Settings that leave the iterations already done what they were."""

_LONGEST_NAME = 60


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
        ConfigError: The folder cannot be written, or holds a run already.
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
        raise ConfigError(f"{where}={value}: cannot write {error.filename}: {error.strerror}") from error
    return folder


def _claim(folder: Path) -> Path:
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(
            f"paths.run_dir={folder} holds a run already; continue it with resume={folder}, "
            "or name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
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
        return candidate
    raise ConfigError(f"{folder} and 998 numbered folders beside it exist; set paths.run_dir")


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
    """Read a `config.yaml` that `write_config` wrote."""
    try:
        cfg = OmegaConf.load(path)
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read as a config: {error}") from error
    if not isinstance(cfg, DictConfig):
        raise ConfigError(f"{path} is not a config of a run")
    OmegaConf.set_struct(cfg, True)
    return cfg


def resume(overrides: Sequence[str]) -> DictConfig:
    """The config of the run that `resume=<folder>` names, with `paths.run_dir` set to that folder.

    Args:
        overrides: The whole command line; besides `resume` only `CHANGEABLE_ON_RESUME` may be set.

    Raises:
        ConfigError: The folder holds no run or no checkpoint, or another setting is given.
    """
    parsed = [parse(text) for text in overrides]
    folder = Path(str(next(o.value() for o in parsed if o.key_or_group == "resume"))).expanduser()
    changes = [o for o in parsed if o.key_or_group != "resume"]
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


def record_resume(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Keep the run folder's own files up to date with what the resumed run changed."""
    folder = Path(cfg.paths.run_dir)
    try:
        earlier = yaml.safe_load((folder / OVERRIDES_FILE).read_text(encoding="utf-8")) or []
        changes = [text for text in overrides if not text.startswith("resume=")]
        _write(folder / OVERRIDES_FILE, yaml.safe_dump([*earlier, *changes], allow_unicode=True))
        write_config(cfg, folder)
    except OSError as error:
        raise ConfigError(f"resume={folder}: cannot write {error.filename}: {error.strerror}") from error


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
