"""vLLM inside the trainer's process: what it changes there, kept apart from the trainer."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class Seclusion:
    """Keeps what an engine does to its process inside the calls to it.

    Starting one seeds the generators of Python, NumPy and torch; on the CPU it also replaces functions of
    torch by others that do nothing, and relies on them later. Outside the calls all is as it was.
    """

    _REPLACED = (
        (torch, "set_num_threads"),
        (torch.accelerator, "synchronize"),
        (torch.accelerator, "empty_cache"),
        (torch.accelerator, "get_memory_info"),
    )

    def __init__(self) -> None:
        self._engines: dict[tuple[object, str], Callable[..., Any]] = {}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, the engine finds its own functions, and makes tensors that can be written to later.

        Validation runs in inference mode: weights that were made in it could never be loaded anew.
        """
        trainers = {place: getattr(*place) for place in self._REPLACED}
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        for place, function in self._engines.items():
            setattr(*place, function)
        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                yield
        finally:
            for place, function in trainers.items():
                self._engines[place] = getattr(*place)
                setattr(*place, function)
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
            torch.cuda.set_rng_state_all(cuda)


SECLUSION = Seclusion()
"""One for the process, as torch's functions are."""


def needs_launcher(device: torch.device) -> bool:
    """Whether vLLM must be told its rank: several processes, or a GPU that is not the first."""
    several = dist.is_initialized() and dist.get_world_size() > 1
    return several or (device.type == "cuda" and (device.index or 0) > 0)


@contextmanager
def told_ranks(device: torch.device) -> Iterator[None]:
    """The variables of torchrun, which Lightning sets only in part."""
    if not needs_launcher(device):
        yield
        return
    several = dist.is_initialized()
    given = {
        "RANK": str(dist.get_rank() if several else 0),
        "WORLD_SIZE": str(dist.get_world_size() if several else 1),
        "LOCAL_RANK": str(device.index or 0) if device.type == "cuda" else os.environ.get("LOCAL_RANK", "0"),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT") or _free_port(),
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextmanager
def keeping_process_group(*, theirs: bool) -> Iterator[None]:
    """An engine that stops destroys torch's process group; inside this it cannot, if that is the trainer's.

    Args:
        theirs: Whether the group existed before the engine.
    """
    destroy = dist.destroy_process_group

    def spare_default(group: dist.ProcessGroup | None = None) -> None:
        if group is not None:
            destroy(group)

    dist.destroy_process_group = spare_default if theirs else destroy
    try:
        yield
    finally:
        dist.destroy_process_group = destroy
