"""Small policies for a real engine, and what they themselves say about completions."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import Qwen3ForCausalLM

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.tiny import SPECIAL, load_tiny
from distmatch.sampling.hf import left_pad

SIZES = {"hidden_size": 64, "layers": 2, "heads": 2, "key_value_heads": 1, "intermediate_size": 128}
EOS = SPECIAL.index("<eos>")
SHORT = [[1, 8, 30, 31, 40, 41], [1, 9], [1, 10, 50]]
BLOCK = 128
"""Tokens of a block of the CPU engine's prefix cache: shorter prompts are never taken from it."""
LONG = [[1, *(7 + (37 * k + 11 * row) % 480 for k in range(2 * BLOCK + 30))] for row in range(2)]
NOISE = 1e-4  # nats, between engine and trainer in float32


def tied(seed: int = 0) -> LanguageModel:
    """A Qwen3 decoder whose output weights are its embeddings; it ends some rows early."""
    policy = load_tiny("random", **SIZES, window=512, seed=seed)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[EOS] += 0.4
    return policy


def untied(seed: int = 0) -> LanguageModel:
    """The same with output weights of their own."""
    origin = tied(seed)
    config = copy.deepcopy(origin.model.config)
    config.tie_word_embeddings = False
    model = Qwen3ForCausalLM(config)
    model.load_state_dict(origin.model.state_dict())
    return LanguageModel(model.train(), origin.tokenizer, "compact")


def adapted(seed: int = 0) -> LanguageModel:
    """The untied one under a LoRA adapter that already changes it."""
    origin = untied(seed)
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear")
    policy = LanguageModel(
        get_peft_model(origin.model, lora).train(), origin.tokenizer, "compact", adapted=True
    )
    move(policy, 0.2)
    return policy


@torch.no_grad()
def move(policy: LanguageModel, by: float, seed: int = 1) -> None:
    """Change every trainable weight, as an optimizer would over many steps."""
    rng = torch.Generator().manual_seed(seed)
    for weight in policy.trainable().values():
        weight.add_(by * torch.randn(weight.shape, generator=rng))


@torch.no_grad()
def gaps(
    policy: LanguageModel, prompts: Sequence[Sequence[int]], out: Completions, temperature: float = 1.0
) -> Tensor:
    """Engine minus policy, in nats, of every sampled token (all of them in one row)."""
    n = len(out.ids) // len(prompts)
    ids, mask = left_pad([p for p in prompts for _ in range(n)], policy.device)
    own = policy(ids, mask, out.ids, out.mask, temperature=temperature).logprobs
    return (out.logprobs - own)[out.mask]


def rows(out: Completions) -> list[list[int]]:
    """The sampled tokens of each row."""
    return [ids[mask].tolist() for ids, mask in zip(out.ids, out.mask, strict=True)]


def seeds(count: int, first: int = 1) -> list[int]:
    return [first + 7919 * k for k in range(count)]
