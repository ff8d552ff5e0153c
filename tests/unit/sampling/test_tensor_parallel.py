"""Ranks that share an engine ask it for the same, and each takes its own answers."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp

from distmatch.sampling.tensor_parallel import TensorParallelGroup

PROMPTS = [[[1], [1, 2]], [[3]], [[4], [5], [6]], [[7]]]
"""Of four ranks; groups may differ in size."""


def ask(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=4)
    rows, seeds = PROMPTS[rank], [10 * rank + k for k in range(len(PROMPTS[rank]))]
    everyones, everyones_seeds, own = TensorParallelGroup(2).gather(rows, seeds)
    pair = (0, 1) if rank < 2 else (2, 3)
    assert everyones == [row for r in pair for row in PROMPTS[r]]
    assert everyones[own] == rows
    assert everyones_seeds[own] == seeds
    alone, alone_seeds, whole = TensorParallelGroup(1).gather(rows, seeds)
    assert (alone[whole], alone_seeds[whole]) == (rows, seeds)
    dist.destroy_process_group()


def test_neighbours_gather(tmp_path: Path) -> None:
    mp.spawn(ask, args=(str(tmp_path / "ranks"),), nprocs=4)
