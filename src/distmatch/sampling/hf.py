"""Sampling from the trainer's own weights: no engine, no copy, exact log-probabilities.

A prompt is prefilled once for its whole group, rows leave the batch at EOS, and every row draws from uniforms
of its own generator by inverse CDF, so that its tokens do not depend on which other rows it is sampled with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams


class HFSampler:
    """Samples with the policy module's own transformers model.

    Args:
        max_rows: Most rows (prompts times samples) decoded side by side; bounds the KV cache.
    """

    def __init__(self, max_rows: int = 512) -> None:
        if max_rows < 1:
            raise ValueError(f"sampler.max_rows must be at least 1, got {max_rows}")
        self.max_rows = max_rows
        self._policy: LanguageModel | None = None

    def setup(self, policy: LanguageModel) -> None:
        """Keep a handle on the policy."""
        self._policy = policy

    def sync(self, policy: LanguageModel) -> None:
        """Nothing to copy: the sampler reads the trainer's weights."""
        self._policy = policy

    def close(self) -> None:
        """Let go of the policy."""
        self._policy = None

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> Completions:
        """See `Sampler.sample`."""
        if self._policy is None:
            raise RuntimeError("HFSampler.sample was called before setup")
        if len(seeds) != len(prompts) * params.n:
            raise ValueError(
                f"{len(prompts)} prompts x {params.n} samples need as many seeds, got {len(seeds)}"
            )
        per_pass = max(1, self.max_rows // params.n)
        order = sorted(
            range(len(prompts)), key=lambda i: len(prompts[i])
        )  # like lengths together: less padding
        pieces: dict[int, Completions] = {}
        for start in range(0, len(order), per_pass):
            chosen = order[start : start + per_pass]
            rows = [r for i in chosen for r in range(i * params.n, (i + 1) * params.n)]
            part = _decode(self._policy, [prompts[i] for i in chosen], params, [seeds[r] for r in rows])
            for place, i in enumerate(chosen):
                rows_of = slice(place * params.n, (place + 1) * params.n)
                pieces[i] = Completions(
                    part.ids[rows_of], part.mask[rows_of], part.logprobs[rows_of], part.finished[rows_of]
                )
        return join_completions([pieces[i] for i in range(len(prompts))])


def join_completions(parts: Sequence[Completions]) -> Completions:
    """Stack completions of several prompts, padding all to the longest."""
    length = max(part.mask.sum(dim=1).max().item() for part in parts)

    def stack(name: str) -> Tensor:
        padded = []
        for part in parts:
            value = getattr(part, name)[:, :length]
            padded.append(torch.nn.functional.pad(value, (0, length - value.shape[1])))
        return torch.cat(padded)

    return Completions(stack("ids"), stack("mask"), stack("logprobs"), torch.cat([p.finished for p in parts]))


def left_pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask of prompts padded on the left, both (N, P)."""
    width = max(len(p) for p in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.as_tensor(prompt)
        mask[row, width - len(prompt) :] = True
    return ids.to(device), mask.to(device)


def _decode(
    policy: LanguageModel, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
) -> Completions:
    """One pass over prompts that fit side by side."""
    device = policy.device
    uniforms = _uniforms(seeds, params.max_tokens).to(device)  # (B, max_tokens)
    eos = torch.tensor(sorted(policy.eos_ids), device=device)
    prompt_ids, prompt_mask = left_pad(prompts, device)
    logits, cache, mask, positions = _prefill(policy, prompt_ids, prompt_mask, params.n)
    rows = mask.shape[0]
    ids = torch.zeros(rows, params.max_tokens, dtype=torch.long, device=device)
    logprobs = torch.zeros(rows, params.max_tokens, device=device)
    lengths = torch.full((rows,), params.max_tokens, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)
    live = torch.arange(rows, device=device)
    for step in range(params.max_tokens):
        token, logprob = draw(logits, uniforms[live, step], params)
        ids[live, step], logprobs[live, step] = token, logprob
        ended = torch.isin(token, eos)
        lengths[live[ended]], finished[live[ended]] = step + 1, True
        if bool(ended.all()) or step + 1 == params.max_tokens:
            break
        if bool(ended.any()):
            keep = (~ended).nonzero().squeeze(1)
            live, token, mask, positions = live[keep], token[keep], mask[keep], positions[keep]
            cache.batch_select_indices(keep)
        mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
        positions = positions + 1
        logits = _step(policy, token[:, None], mask, positions[:, None], cache)
    reached = torch.arange(params.max_tokens, device=device)[None] < lengths[:, None]
    return Completions(ids, reached, torch.where(reached, logprobs, 0.0), finished)


def _prefill(
    policy: LanguageModel, prompt_ids: Tensor, prompt_mask: Tensor, n: int
) -> tuple[Tensor, DynamicCache, Tensor, Tensor]:
    """Run the prompts once, repeat n times: last logits (B, V), cache, mask (B, P), positions (B,)."""
    mask = prompt_mask.long()
    cache = DynamicCache(config=policy.model.config)
    logits = _step(policy, prompt_ids, mask, (mask.cumsum(dim=1) - 1).clamp(min=0), cache)
    cache.batch_repeat_interleave(n)
    return (
        logits.repeat_interleave(n, dim=0),
        cache,
        mask.repeat_interleave(n, dim=0),
        (mask.sum(dim=1) - 1).repeat_interleave(n),
    )


def _step(policy: LanguageModel, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
    """Logits (b, V) after the last of `ids`, extending the cache."""
    output = policy.model(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
    )
    return output.logits[:, -1]


def draw(logits: Tensor, uniform: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Inverse-CDF draw: logits (b, V), uniforms in [0, 1) (b,) -> token ids and log-probabilities (b,).

    The cumulative sum runs in float64, so that a token's chance is right even in large vocabularies.
    """
    logp = (logits.float() / params.temperature).log_softmax(dim=-1)
    if params.top_p < 1:
        logp = nucleus(logp, params.top_p)
    cdf = logp.double().exp().cumsum(dim=-1)
    token = torch.searchsorted(cdf, (uniform.double() * cdf[:, -1])[:, None], right=True).squeeze(1)
    token = token.clamp(max=logits.shape[-1] - 1)
    return token, logp.gather(1, token[:, None]).squeeze(1)


def nucleus(logp: Tensor, top_p: float) -> Tensor:
    """Renormalised log-probabilities of the smallest set of tokens that holds `top_p` of the mass."""
    ordered, index = logp.sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(dim=-1) - ordered.exp()
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, index, before >= top_p)
    return logp.masked_fill(dropped, float("-inf")).log_softmax(dim=-1)


def _uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """A row of uniforms in [0, 1) for each seed, (B, length) float64, the same on every device."""
    generator = torch.Generator()
    rows = torch.empty(len(seeds), length, dtype=torch.float64)
    for row, seed in enumerate(seeds):
        generator.manual_seed(seed)
        torch.rand(length, generator=generator, dtype=torch.float64, out=rows[row])
    return rows
