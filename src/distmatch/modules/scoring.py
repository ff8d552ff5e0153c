"""Scoring a batch in chunks of rows, at the memory of one chunk and with the gradient of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.modules.language_model import LanguageModel


def score(
    model: LanguageModel, batch: RolloutBatch, temperature: float, chunks: int, wants: Mapping[str, Any]
) -> PolicyOutput:
    """Score all rows of a batch.

    With several chunks and a gradient, only a chunk's inputs are kept and it is recomputed in the backward
    pass (non-reentrant activation checkpointing).

    Args:
        model: The policy or a reference.
        batch: B rows.
        temperature: Of the sampling that is scored.
        chunks: Into how many parts the rows are cut.
        wants: What else to compute: keyword arguments of `LanguageModel.forward`.
    """
    inputs = (batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.completion_mask)
    length = batch.completion_ids.shape[1]
    parts = []
    for rows in torch.arange(batch.rows, device=batch.prompt_ids.device).chunk(chunks):
        piece = _trim(tuple(x[rows] for x in inputs))
        parts.append(_score_chunk(model, piece, length, temperature, wants, recompute=chunks > 1))
    merged = [None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)]
    return PolicyOutput(*merged)


def _trim(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Cut padding that no row of a chunk uses."""
    prompt_ids, prompt_mask, completion_ids, completion_mask = inputs
    left = int(prompt_mask.any(dim=0).long().argmax())
    right = max(1, int(completion_mask.sum(dim=1).max()))
    return prompt_ids[:, left:], prompt_mask[:, left:], completion_ids[:, :right], completion_mask[:, :right]


def _score_chunk(
    model: LanguageModel,
    inputs: tuple[Tensor, ...],
    length: int,
    temperature: float,
    wants: Mapping[str, Any],
    *,
    recompute: bool,
) -> tuple[Tensor | None, ...]:
    """The fields of `PolicyOutput` for some rows, padded back to `length`."""

    def run(*tensors: Tensor) -> tuple[Tensor | None, ...]:
        scored = model(*tensors, temperature=temperature, **wants)
        pad = (0, length - scored.logprobs.shape[1])
        rows = [scored.logprobs, scored.entropy, scored.values]
        padded = [None if x is None else torch.nn.functional.pad(x, pad) for x in rows]
        return (*padded, scored.prompt_hidden)

    if recompute and torch.is_grad_enabled():
        return checkpoint(run, *inputs, use_reentrant=False)
    return run(*inputs)
