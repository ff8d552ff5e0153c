"""Finding and reading the checkpoints of a run."""

from __future__ import annotations

import itertools
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from distmatch.settings.errors import ConfigError


def newest_checkpoint(folder: Path) -> Path:
    """The latest readable checkpoint of a run; one that a kill left half written is passed over.

    Raises:
        ConfigError: None is there.
    """
    files = sorted((folder / "checkpoints").glob("*.ckpt"), key=lambda f: f.stat().st_mtime, reverse=True)
    damaged = list(itertools.takewhile(lambda file: not is_readable(file), files))
    if len(damaged) == len(files):
        raise ConfigError(
            f"resume={folder}: no whole checkpoint in {folder / 'checkpoints'}; start the run anew"
        )
    for file in damaged:
        print(
            f"{file.name} is damaged (the run was killed while writing it); using the one before",
            file=sys.stderr,
        )
    return files[len(damaged)]


def is_readable(file: Path) -> bool:
    """Whether a checkpoint is whole: torch writes zip archives, with a directory at the end and checksums."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return archive.testzip() is None


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Tensors and plain values only: nothing in a checkpoint can run code."""
    return torch.load(file, map_location="cpu", weights_only=True)
