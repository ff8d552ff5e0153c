"""Pure tensor functions that losses and modules share. Shapes use the letters of `distmatch.batch`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to plus and minus this many nats before they are exponentiated."""

_LOG_FLOOR = -1e6
"""Stands for log 0 in group softmaxes: exp gives exactly zero, and its square is still finite in float32."""


def where_mask(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where `mask` is True, zero elsewhere; never a product, so masked inf or nan cannot leak."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over True positions of `mask` along `dim` (everything when None)."""
    kept = where_mask(values, mask)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over True positions of `mask` along `dim`; of nothing it is zero, with its graph attached."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim) / count.clamp(min=1)


def log_ratio(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """`new - old` where `mask` is True, else zero; clamped to +-`LOG_RATIO_LIMIT`, so exp stays finite.

    Both inputs are masked before they are subtracted: -inf minus -inf at a masked place gives no nan
    gradient.
    """
    return (where_mask(new, mask) - where_mask(old, mask)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sequence_logprob(logprobs: Tensor, mask: Tensor, *, length_normalize: bool) -> Tensor:
    """Log-probability of each row, (B, T) -> (B,): sum over tokens, or mean with `length_normalize`.

    A row without a True token gives zero.
    """
    return masked_mean(logprobs, mask, dim=1) if length_normalize else masked_sum(logprobs, mask, dim=1)


def group_centred(rewards: Tensor, group_size: int, live: Tensor | None = None) -> Tensor:
    """Rewards minus the mean of their group's live rows, (B,) -> (B,); zero in flat groups and on dead rows.

    Args:
        rewards: (B,), prompt-major.
        group_size: G.
        live: Rows that train, (B,) bool; all of them when None. The others do not enter the mean.
    """
    grouped, alive = rewards.view(-1, group_size), _grouped_live(rewards, group_size, live)
    centred = grouped - masked_mean(grouped, alive, dim=1)[:, None]
    return where_mask(centred, alive & ~_flat(grouped, alive)[:, None]).reshape(-1)


def group_zscore(
    rewards: Tensor, group_size: int, live: Tensor | None = None, *, eps: float = 1e-6
) -> Tensor:
    """Rewards minus their group's mean, over its standard deviation (ddof 1) plus `eps`, (B,) -> (B,).

    Equal rewards, and groups of one, give exactly zero. Mean and deviation are over the rows in `live` (all
    when None). Source: DeepSeekMath (arXiv 2402.03300) eq. 3; ddof as in verl.
    """
    centred = group_centred(rewards, group_size, live).view(-1, group_size)
    alive = _grouped_live(rewards, group_size, live)
    variance = centred.square().sum(dim=1, keepdim=True) / (alive.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    return (centred / (variance.sqrt() + eps)).reshape(-1)


def flat_groups(rewards: Tensor, group_size: int, live: Tensor | None = None) -> Tensor:
    """Groups without signal: the rewards of their live rows (all when None) are equal, (B,) -> (N,) bool.

    A group with one live row, or none, is flat.
    """
    return _flat(rewards.view(-1, group_size), _grouped_live(rewards, group_size, live))


def group_log_softmax(scores: Tensor, live: Tensor) -> Tensor:
    """Log-softmax over the live rows of each group, (N, G) and (N, G) bool -> (N, G).

    Dead rows get a probability of exactly zero and no gradient. Scores of -inf are read as a very small
    number, so that neither values nor gradients are nan; the figures of a group without live rows mean
    nothing.
    """
    floor = torch.full((), _LOG_FLOOR, dtype=scores.dtype, device=scores.device)
    return torch.where(live, scores.clamp(min=_LOG_FLOOR), 2 * floor).log_softmax(dim=1)


def _grouped_live(rewards: Tensor, group_size: int, live: Tensor | None) -> Tensor:
    kept = torch.ones_like(rewards, dtype=torch.bool) if live is None else live
    return kept.view(-1, group_size)


def _flat(grouped: Tensor, alive: Tensor) -> Tensor:
    highest = grouped.masked_fill(~alive, -torch.inf).max(dim=1).values
    lowest = grouped.masked_fill(~alive, torch.inf).min(dim=1).values
    return highest <= lowest


def token_logprobs(logits: Tensor, ids: Tensor, *, temperature: float = 1.0, chunk: int = 1024) -> Tensor:
    """Log-probability of each id under its logits, (b, T, V) and (b, T) -> (b, T) in float32 or finer.

    Works through positions in chunks, forward and backward: beside the logits and their gradient, never more
    than one chunk of them exists in float32.
    """
    flat = _TokenLogprobs.apply(logits.reshape(-1, logits.shape[-1]), ids.reshape(-1), temperature, chunk)
    return flat.view(ids.shape)


class _TokenLogprobs(torch.autograd.Function):
    """Keeps the logits as they are and one normaliser a position; softmax is made again when it is needed."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float, chunk: int) -> Tensor:
        chosen = torch.empty(ids.shape, dtype=_fine(logits), device=logits.device)
        normalizer = torch.empty_like(chosen)
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            scaled = logits[part].to(chosen.dtype) / temperature
            normalizer[part] = scaled.logsumexp(dim=1)
            chosen[part] = scaled.gather(1, ids[part, None]).squeeze(1)
        ctx.save_for_backward(logits, ids, normalizer)
        ctx.settings = (temperature, chunk)
        return chosen - normalizer

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        logits, ids, normalizer = ctx.saved_tensors
        temperature, chunk = ctx.settings
        gradient = torch.empty_like(logits)
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            weight = upstream[part, None] / temperature
            softmax = (logits[part].to(upstream.dtype) / temperature - normalizer[part, None]).exp_()
            gradient[part] = softmax.mul_(-weight).scatter_add_(1, ids[part, None], weight)
        return gradient, None, None, None


def _fine(tensor: Tensor) -> torch.dtype:
    """The dtype to compute in: float32, or the tensor's own where that is finer."""
    return torch.promote_types(tensor.dtype, torch.float32)


def token_entropy(logits: Tensor, *, temperature: float = 1.0, chunk: int = 1024) -> Tensor:
    """Entropy in nats of each next-token distribution over the whole vocabulary, (b, T, V) -> (b, T)."""
    flat = logits.reshape(-1, logits.shape[-1])
    parts = [flat.new_empty(0, dtype=_fine(logits))]
    for start in range(0, flat.shape[0], chunk):
        logp = (flat[start : start + chunk].to(_fine(logits)) / temperature).log_softmax(dim=1)
        # A masked token, of log-probability -inf, adds nothing, neither here nor to the gradient.
        finite = logp.masked_fill(logp.isinf(), 0.0)
        parts.append(-(finite.exp() * finite).sum(dim=1))
    return torch.cat(parts).view(logits.shape[:-1])
