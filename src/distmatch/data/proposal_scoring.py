"""Log-probabilities of many answers to one prompt, under any model, as that model would sample them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from distmatch.modules.language_model import LanguageModel
from distmatch.ops import token_logprobs, where_mask
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import nucleus


@torch.no_grad()
def answer_logprobs(
    policy: LanguageModel,
    prompt: Sequence[int],
    ids: Tensor,  # (n, T)
    mask: Tensor,  # (n, T)
    params: SamplingParams,
    rows: int = 512,
) -> Tensor:
    """Log-probability of each token, (n, T) float64; zero outside the mask.

    The prompt is read once for `rows` answers. With `top_p` below 1 the probabilities are those of the kept
    tokens, renormalised; a token that the model would have dropped has -inf.

    Args:
        policy: The model.
        prompt: Token ids.
        ids: Answers, right-padded.
        mask: True on their tokens, EOS included.
        params: Temperature and top_p; the rest is not used.
        rows: Answers scored side by side.
    """
    parts = []
    for start in range(0, len(ids), rows):
        part = slice(start, start + rows)
        logits = _logits(policy, prompt, ids[part], mask[part])
        parts.append(where_mask(_chosen(logits, ids[part], params).double(), mask[part]))
    return torch.cat(parts)


def _chosen(logits: Tensor, ids: Tensor, params: SamplingParams) -> Tensor:
    """From logits (n, T, V) the log-probability of each id, (n, T)."""
    if params.top_p == 1:  # without a second copy of the logits, which are large
        return token_logprobs(logits, ids, temperature=params.temperature)
    logp = (logits.float() / params.temperature).log_softmax(dim=-1)
    logp = nucleus(logp.flatten(0, 1), params.top_p).view_as(logp)
    return logp.gather(2, ids[..., None]).squeeze(2)


def _logits(policy: LanguageModel, prompt: Sequence[int], ids: Tensor, mask: Tensor) -> Tensor:
    """Logits before each answer token, (n, T, V)."""
    count, length = ids.shape
    head = torch.as_tensor(prompt, device=ids.device)[None]  # (1, P)
    cache = DynamicCache(config=policy.model.config)
    first = policy.model(input_ids=head, past_key_values=cache, logits_to_keep=1).logits  # (1, 1, V)
    first = first.expand(count, -1, -1)
    if length == 1:
        return first
    cache.batch_repeat_interleave(count)
    places = torch.arange(head.shape[1], head.shape[1] + length - 1, device=ids.device)
    seen = torch.cat([mask.new_ones(count, head.shape[1]), mask[:, :-1]], dim=1)
    rest = policy.model(
        input_ids=where_mask(ids, mask)[:, :-1],
        attention_mask=seen.long(),
        position_ids=places.expand(count, -1),
        past_key_values=cache,
    ).logits
    return torch.cat([first, rest], dim=1)
