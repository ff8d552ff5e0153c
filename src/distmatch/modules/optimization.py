"""Optimizer and learning-rate schedule of a policy run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import get_scheduler

SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine", "inverse_sqrt")
"""The schedules of transformers that need no argument but the warm-up."""


@dataclass(frozen=True)
class Optimization:
    """AdamW and a schedule over optimizer steps.

    Attributes:
        lr: Learning rate at the top of the schedule.
        betas: Adam's moment rates.
        weight_decay: Decoupled weight decay.
        scheduler: A name of `SCHEDULES`.
        warmup_steps: Optimizer steps of linear warm-up.

    Raises:
        ValueError: An unknown schedule, or rates that are not two numbers in [0, 1).
    """

    lr: float
    betas: tuple[float, ...]
    weight_decay: float
    scheduler: str
    warmup_steps: int

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULES:
            raise ValueError(
                f"module.scheduler={self.scheduler!r} is unknown; choose one of {', '.join(SCHEDULES)}"
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"module.betas={list(self.betas)} must be two numbers of at least 0 and below 1")

    def configure(self, groups: list[dict[str, Any]], steps: int) -> dict[str, Any]:
        """What Lightning's `configure_optimizers` returns, for a run of `steps` optimizer steps."""
        optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)
        schedule = get_scheduler(
            self.scheduler, optimizer, num_warmup_steps=self.warmup_steps, num_training_steps=steps
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
