"""Training the cells of a comparison: processes of `train.py`, taken up where they stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from omegaconf import OmegaConf

from distmatch.settings.cli import CONFIG_VARIABLE
from distmatch.settings.errors import ConfigError
from distmatch.settings.folder import CHANGEABLE_ON_RESUME, CONFIG_FILE, load
from distmatch.study.comparison.existing import NEEDED, flatten
from distmatch.study.comparison.plan import Cell

OUTPUT = "output.txt"
LAST_LINES = 12
_POLL, _GRACE = 0.1, 15.0  # seconds
_PLACES = ("paths.run_dir", "resume", "callbacks.progress")


@dataclass(frozen=True)
class Failure:
    """A cell that did not end well.

    Attributes:
        cell: Which.
        status: Exit status of its process.
        lines: The last lines that it wrote.
    """

    cell: Cell
    status: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        text = "\n".join(f"    {line}" for line in self.lines)
        return f"{self.cell.name} failed with exit status {self.status}:\n{text}"


def is_finished(cell: Cell) -> bool:
    """Whether the run has ended and left everything that a comparison reads."""
    return all((cell.run / name).is_file() for name in NEEDED)


def has_checkpoint(cell: Cell) -> bool:
    """Whether an unfinished run can be gone on with."""
    return any((cell.run / "checkpoints").glob("*.ckpt"))


def check_folders(cells: Sequence[Cell]) -> None:
    """Refuse to mix: a run that lies in a cell's folder must have the cell's settings.

    Raises:
        ConfigError: Another run lies there.
    """
    for cell in cells:
        if not (is_finished(cell) or has_checkpoint(cell)):
            continue
        stored, wanted = (_comparable(cfg) for cfg in (load(cell.run / CONFIG_FILE), cell.cfg))
        keys = [key for key in {**stored, **wanted} if stored.get(key) != wanted.get(key)]
        if keys:
            texts = [f"{key} is {stored.get(key)} there and {wanted.get(key)} now" for key in keys[:4]]
            raise ConfigError(
                f"{cell.run} holds a run with other settings: {'; '.join(texts)}. Give this comparison "
                "another name=<name>, or delete that folder"
            )


def _comparable(cfg: object) -> dict[str, object]:
    flat = flatten(OmegaConf.to_container(cfg, resolve=False))
    return {key: value for key, value in flat.items() if not _is_place(key)}


def _is_place(key: str) -> bool:
    return key in CHANGEABLE_ON_RESUME[1:] or any(key == p or key.startswith(f"{p}.") for p in _PLACES)


def run_cells(cells: Sequence[Cell], program: Path, jobs: int, flags: Sequence[str] = ()) -> list[Failure]:
    """Train every cell that is not finished.

    Args:
        cells: All of them.
        program: `train.py`.
        jobs: How many at a time.
        flags: Further arguments for all, such as `--config-dir=...`.

    Returns:
        The cells that failed.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came; the running cells have been stopped as by Ctrl-C.
    """
    waiting = [cell for cell in cells if not is_finished(cell)]
    running: dict[int, _Process] = {}
    failures: list[Failure] = []
    try:
        with sigterm_interrupts():
            while waiting or running:
                while waiting and len(running) < jobs:
                    process = _Process(waiting.pop(0), program, flags)
                    running[process.pid] = process
                time.sleep(_POLL)
                for pid, process in list(running.items()):
                    if process.ended():
                        del running[pid]
                        failures += process.failure()
    except KeyboardInterrupt as stop:
        _stop(list(running.values()), at_once=isinstance(stop, _Terminated))
        raise
    return failures


class _Terminated(KeyboardInterrupt):
    """A SIGTERM, which unlike Ctrl-C in a terminal has not reached the cells."""


class _Process:
    """A cell that is being trained."""

    def __init__(self, cell: Cell, program: Path, flags: Sequence[str]) -> None:
        self.cell = cell
        resumed = has_checkpoint(cell)
        job = [f"resume={cell.run.as_posix()}"] if resumed else cell.overrides
        cell.run.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE}
        with (cell.run / OUTPUT).open("a" if resumed else "w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(program), *flags, *job],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self._started = time.monotonic()
        print(f"  {cell.name} {'goes on from its checkpoint' if resumed else 'starts'}", flush=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def failure(self) -> list[Failure]:
        """Say how it ended."""
        status = self._process.returncode
        seconds = time.monotonic() - self._started
        if status == 0 and is_finished(self.cell):
            print(f"  {self.cell.name} is done, {seconds:.0f} s", flush=True)
            return []
        text = (self.cell.run / OUTPUT).read_text(encoding="utf-8", errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        failure = Failure(self.cell, status, tuple(lines[-LAST_LINES:]))
        print(failure, file=sys.stderr, flush=True)
        return [failure]

    def stop(self, signal_number: int) -> None:
        self._process.send_signal(signal_number)

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _stop(processes: Sequence[_Process], *, at_once: bool) -> None:
    """Wait for cells that Ctrl-C has reached too; tell those that are still there after a while."""
    deadline = time.monotonic() + (0 if at_once else _GRACE)
    left = [process for process in processes if not process.wait(max(0, deadline - time.monotonic()))]
    for process in left:
        process.stop(signal.SIGTERM)
    for process in left:
        if not process.wait(_GRACE):
            process.stop(signal.SIGKILL)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt while the context is open; only for a process's main thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
