"""The `manifest.json` of what a stage made: that it is there means that the folder is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distmatch.settings.errors import ConfigError

MANIFEST = "manifest.json"


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


_AGAIN = "Delete the folder that it lies in; the next run makes it again"
