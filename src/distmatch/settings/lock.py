"""One process at a time works in a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from distmatch.settings.errors import ConfigError

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"

_HELD: dict[tuple[int, int], int] = {}  # descriptors by device and inode: a folder keeps its lock when moved


def hold(folder: Path, setting: str) -> None:
    """Lock `folder` for this process until `release` or its end; processes that it starts hold nothing.

    Args:
        folder: The folder of a run.
        setting: What named it, such as `resume=logs/run`; the message begins with it.

    Raises:
        ConfigError: Another process holds it.
        OSError: The lock file cannot be made.
    """
    if fcntl is None:
        return
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    status = os.fstat(descriptor)
    place = (status.st_dev, status.st_ino)
    if place in _HELD:
        os.close(descriptor)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        message = f"{setting}: another process is using this folder; wait for it or stop it"
        raise ConfigError(message) from error
    except OSError:  # a file system without locks
        os.close(descriptor)
        return
    _HELD[place] = descriptor


def release() -> None:
    """Give up every lock of this process."""
    while _HELD:
        os.close(_HELD.popitem()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=release)  # closes the copies; the parent's locks stay
