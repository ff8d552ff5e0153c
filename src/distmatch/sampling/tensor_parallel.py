"""Ranks that share one engine: all of them must hand it the same requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist


class TensorParallelGroup:
    """This rank and the neighbours with which it shares an engine.

    Args:
        size: Ranks to an engine; 1 if each has its own.

    Raises:
        ValueError: The ranks do not divide into groups of that size.
    """

    def __init__(self, size: int) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world % size:
            raise ValueError(
                f"sampler.tensor_parallel_size={size} must divide the number of processes, and there are "
                f"{world}; set trainer.devices to a multiple of {size}"
            )
        self.size = size
        self._place, self._group = 0, None
        if size == 1:
            return
        for first in range(0, world, size):
            ranks = range(first, first + size)
            group = dist.new_group(list(ranks), backend="gloo")  # every rank must take part in making each
            if dist.get_rank() in ranks:
                self._place, self._group = dist.get_rank() - first, group

    def gather(
        self, rows: Sequence[Sequence[int]], seeds: Sequence[int]
    ) -> tuple[Sequence[Sequence[int]], Sequence[int], slice]:
        """The rows and seeds of all ranks of the group, and where this rank's own stand among them."""
        if self.size == 1:
            return rows, seeds, slice(0, len(rows))
        parts: list[tuple[Sequence[Sequence[int]], Sequence[int]]] = [([], [])] * self.size
        dist.all_gather_object(parts, (rows, seeds), group=self._group)
        first = sum(len(part[0]) for part in parts[: self._place])
        everyones = [row for part in parts for row in part[0]]
        return everyones, [seed for part in parts for seed in part[1]], slice(first, first + len(rows))
