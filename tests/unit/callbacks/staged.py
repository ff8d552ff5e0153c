"""A run without a language model: real Trainer, tasks and verdicts, planted completions and figures."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader

from distmatch.callbacks.rollout import RolloutCallback, Rollouts
from distmatch.data.rollouts import Query
from distmatch.rewards import NPPaper, score
from distmatch.sampling.base import SamplingParams
from distmatch.tasks.base import Instance, Task


class StagedRollouts(RolloutCallback):
    """Answers every prompt by a demonstration, the reference and nonsense."""

    def __init__(self, task: Task, group_size: int = 4) -> None:
        super().__init__(sampler=None, reward=NPPaper())  # type: ignore[arg-type]
        self._task, self._n = task, group_size

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pass

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.latest = self._rollouts("train", trainer.current_epoch)
        self.phase = "update"

    def on_train_batch_start(self, *args: object, **kwargs: object) -> None:
        pass

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.latest_eval = self._rollouts("val", trainer.current_epoch)

    def teardown(self, *args: object, **kwargs: object) -> None:
        pass

    def _rollouts(self, split: str, iteration: int) -> Rollouts:
        queries = [Query(self._task.instance(split, i), (1, 2), i) for i in range(4)]  # type: ignore[arg-type]
        texts = [text for query in queries for text in self._answers(query.instance)]
        instances = [query.instance for query in queries for _ in range(self._n)]
        outcomes = [score(self._task, i, t, NPPaper()) for i, t in zip(instances, texts, strict=True)]
        truncated = [False] * (len(texts) - 1) + [True]
        return Rollouts(iteration, queries, texts, outcomes, [len(t) for t in texts], truncated, self._n)

    def _answers(self, instance: Instance) -> Sequence[str]:
        best = self._task.problem(instance).format(self._task.reference(instance).answer)
        poor = self._task.problem(instance).demonstrate(instance, random.Random(0))
        return [best, poor, "I give up | <b>really</b>\n~~~\nAnswer: []", ""][: self._n]


class StagedData(LightningDataModule):
    """The settings that displays read, and one batch an iteration."""

    prompts_per_iteration, updates_per_rollout, max_prompt_tokens = 4, 1, 96
    sampling = SamplingParams(n=4, max_tokens=14, temperature=1.0)
    eval_sampling = SamplingParams(n=4, max_tokens=14, temperature=1.0)

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader([torch.zeros(1)], batch_size=None)

    def val_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader([torch.zeros(1)], batch_size=None)


class StagedPolicy:
    """A language model's style is all that is asked of it."""

    style = "compact"


class StagedModule(LightningModule):
    """Logs planted figures: `script[i]` in iteration i, the last one from then on."""

    def __init__(self, script: Sequence[Mapping[str, float]]) -> None:
        super().__init__()
        self.policy = StagedPolicy()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self._script = script

    def _now(self) -> Mapping[str, float]:
        return self._script[min(self.current_epoch, len(self._script) - 1)]

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        figures = {k: v for k, v in self._now().items() if not k.startswith("val/")}
        self.log_dict(figures, on_step=False, on_epoch=True, batch_size=1)
        return self.weight.sum()

    def on_train_batch_end(self, *args: object) -> None:
        self.log("step", float(self.global_step), on_step=False, on_epoch=True, batch_size=1)

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        self.log_dict({k: v for k, v in self._now().items() if k.startswith("val/")})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def staged_trainer(
    folder: Path,
    callbacks: Sequence[Callback],
    iterations: int,
    loggers: Sequence[Logger] = (),
    every: int = 1,
) -> Trainer:
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        max_epochs=iterations,
        check_val_every_n_epoch=every,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=list(callbacks),
        logger=list(loggers),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
    )
