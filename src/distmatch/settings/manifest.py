"""Folders that a stage makes: they appear whole, and a `manifest.json` in one says what it is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distmatch.settings.errors import ConfigError

MANIFEST = "manifest.json"


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A place beside `folder` to make it in; at the end it is moved there.

    If another process was faster, its result stays: the same settings give the same.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-", suffix=".tmp") as scratch:
        place = Path(scratch) / folder.name
        yield place
        try:
            place.rename(folder)
        except OSError:
            if not (folder / MANIFEST).exists():
                raise


def load_manifest(folder: Path) -> dict[str, Any]:
    """What the manifest in a folder says.

    Raises:
        ConfigError: It is damaged.
        OSError: It is not there.
    """
    file = folder / MANIFEST
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is damaged: {error}. {_AGAIN}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is damaged: it is no object. {_AGAIN}")
    return content


def json_text(content: Any) -> str:
    """Strict JSON with a line end; null for numbers that JSON does not have: nan and the infinities."""
    return json.dumps(_strict(content), indent=1, allow_nan=False) + "\n"


def numbers(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Figures as `load_manifest` gives them, with nan for null."""
    return {name: math.nan if value is None else float(value) for name, value in figures.items()}


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_AGAIN = "Delete the folder that it lies in; the next run makes it again"
