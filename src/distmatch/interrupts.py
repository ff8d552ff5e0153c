"""Ctrl-C and SIGTERM: a run stops wherever it is, with the exit status that shells expect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals(Callback):
    """Turns both signals into KeyboardInterrupt while its context is open.

    An exception that is raised inside a weak reference's callback is swallowed by Python, so the signal is
    also remembered, and raised again before the next update.

    Attributes:
        number: The signal that came, 0 if none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            self._before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def status(self) -> int:
        """Exit status of a process that a signal ended."""
        return 128 + (self.number or signal.SIGINT)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do not sample after a signal."""
        self._raise()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Do not update after a signal."""
        self._raise()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt

    def _raise(self) -> None:
        if self.number:
            raise KeyboardInterrupt
