"""What is said and kept when a number is not finite."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from distmatch.batch import RolloutBatch
from distmatch.modules.language_model import LanguageModel


class NonFiniteError(RuntimeError):
    """A loss, gradient, weight or log-probability is nan or infinite; nothing was updated with it."""


def blame(policy: LanguageModel) -> str:
    """Which weights or gradients are to blame, in words that continue a sentence."""
    parameters = list(policy.named_parameters())
    weights = [n for n, p in parameters if not bool(p.isfinite().all())]
    grads = [n for n, p in parameters if p.grad is not None and not bool(p.grad.isfinite().all())]
    for what, names in (("weights", weights), ("gradients", grads)):
        if names:
            return f"; {what} with nan or inf: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
    return "; all weights are finite"


def keep(batch: RolloutBatch, file: Path) -> str:
    """Write a batch as a dictionary of plain tensors, and say where, in words that continue a sentence."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch) if f.name != "totals"}
    torch.save(fields, file)
    return f"; the batch is kept in {file}"
