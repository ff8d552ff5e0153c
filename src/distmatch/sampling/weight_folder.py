"""Writing a policy's weights for servers that load them from disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 4 << 30
"""No more than this is held in memory and written into one file."""


def write_weights(
    weights: Iterable[tuple[str, Tensor]], folder: Path, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write weights as safetensors files and move the folder into place, so that nobody reads half of it.

    Args:
        weights: Name and tensor; every tensor is stored under its own name, tied ones too.
        folder: Where it shall lie; one that is there is replaced.
        shard_bytes: Largest file, unless a single tensor is larger.

    Raises:
        OSError: The disk is full or cannot be written to; the iterator is run to its end all the same, as
            sharded weights are gathered by all ranks together.
    """
    remaining = iter(weights)
    scratch = folder.with_name(f"{folder.name}.tmp")
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        for number, shard in enumerate(_shards(remaining, shard_bytes), start=1):
            save_file(shard, scratch / f"model-{number:05}.safetensors", metadata={"format": "pt"})
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        for _ in remaining:
            pass
        raise


def remove_others(folder: Path) -> None:
    """Leave no other folder of its kind beside `folder`: neither old weights nor half-written ones."""
    kind = folder.name.partition("-")[0]
    for other in folder.parent.glob(f"{kind}-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


def _shards(weights: Iterable[tuple[str, Tensor]], limit: int) -> Iterable[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    held = 0
    for name, tensor in weights:
        size = tensor.numel() * tensor.element_size()
        if shard and held + size > limit:
            yield shard
            shard, held = {}, 0
        # A copy of its own: safetensors refuses tied weights, whose memory is shared.
        shard[name] = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        held += size
    if shard:
        yield shard
