"""Supervised data that tasks make of themselves: prompts with demonstrations, for the warm start."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from distmatch.modules.language_model import LanguageModel
from distmatch.tasks.base import Instance, Task, instance_rng

STREAM = 10**15
"""Demonstrations are of training instances from here on, far from any that a training run meets."""


@dataclass(frozen=True)
class DemonstrationBatch:
    """Right-padded sequences, prompt and demonstration together.

    Attributes:
        ids: Token ids, (B, P+T) long.
        target: True where a token of the demonstration (EOS included) is to be learnt, (B, P+T) bool.
    """

    ids: Tensor
    target: Tensor

    def to(self, device: torch.device | str) -> DemonstrationBatch:
        """The same batch on another device."""
        return DemonstrationBatch(self.ids.to(device), self.target.to(device))


class Demonstrations(Dataset[DemonstrationBatch]):
    """Batch i of the stream: always the same, whoever asks and in whatever order.

    Args:
        task: A task that can `demonstrate`.
        policy: Encodes prompts and demonstrations.
        batch_size: B.
        steps: Number of batches.
        seed: Of the stream; far from any training run's stream of prompts.
        best_of: Demonstrations that are drawn for every instance; the best one is kept. 1 keeps them
            mediocre.

    Raises:
        ValueError: `best_of` is below 1.
    """

    def __init__(
        self, task: Task, policy: LanguageModel, batch_size: int, steps: int, seed: int, best_of: int = 1
    ) -> None:
        if best_of < 1:
            raise ValueError(f"warm_start.best_of={best_of} must be at least 1")
        self._task = task
        self._policy = policy
        self._batch_size = batch_size
        self._steps = steps
        self._seed = seed
        self._best_of = best_of

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> DemonstrationBatch:
        if index >= self._steps:
            raise IndexError(index)
        first = STREAM + index * self._batch_size
        return collate([self._row(first + place) for place in range(self._batch_size)])

    def _row(self, index: int) -> tuple[list[int], list[int]]:
        instance = self._task.instance("train", index)
        rng = instance_rng("demonstration", self._seed, index)
        prompt = self._policy.encode(self._task.render(instance, self._policy.style))
        text = best_demonstration(self._task, instance, rng, self._best_of)
        answer = self._policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        return prompt, [*answer, self._policy.tokenizer.eos_token_id]


def best_demonstration(task: Task, instance: Instance, rng: random.Random, count: int) -> str:
    """The best of `count` demonstrations, by feasibility and then by value; the first of equals."""
    texts = [task.demonstrate(instance, rng) for _ in range(count)]
    if count == 1:
        return texts[0]
    sign = 1 if task.problem(instance).sense == "max" else -1
    values = [task.verify(instance, text).value for text in texts]
    worth = [-math.inf if value is None else sign * value for value in values]
    return texts[worth.index(max(worth))]


def collate(rows: Sequence[tuple[list[int], list[int]]]) -> DemonstrationBatch:
    """Pad (prompt, answer) pairs on the right; with causal attention padding needs no mask."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    target = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(rows):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        target[row, len(prompt) : len(prompt) + len(answer)] = True
    return DemonstrationBatch(ids, target)


class DemonstrationDataModule(LightningDataModule):
    """Serves `Demonstrations` to a Lightning trainer, made ahead by `workers` processes."""

    def __init__(self, demonstrations: Demonstrations, workers: int = 1) -> None:
        super().__init__()
        self._demonstrations = demonstrations
        self._workers = workers

    def train_dataloader(self) -> DataLoader[DemonstrationBatch]:
        """Batches in order."""
        return DataLoader(self._demonstrations, batch_size=None, num_workers=self._workers)
