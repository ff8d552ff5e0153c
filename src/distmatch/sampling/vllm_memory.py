"""Will trainer and engine fit on one GPU? An estimate before anything starts, with the setting to turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.engine_weights import plain_model

GIB = 1 << 30
WORKSPACE = GIB
"""An allowance for the engine's activations and CUDA graphs; vLLM measures the real figure when it starts."""


@dataclass(frozen=True)
class Needs:
    """What a model needs on one GPU, in bytes.

    Attributes:
        weights, gradients, optimizer: Of the trainer. AdamW holds two numbers for every trained one.
        engine_weights: The engine's copy.
        cache_per_token: Keys and values of one token in the engine.
    """

    weights: int
    gradients: int
    optimizer: int
    engine_weights: int
    cache_per_token: int

    @classmethod
    def of(cls, policy: LanguageModel, dtype: torch.dtype, tensor_parallel_size: int = 1) -> Needs:
        """Count a policy's parameters, and an engine's in `dtype`; sharded ones count by this rank's part."""
        everything = list(policy.parameters())
        trained = sum(_bytes(p) for p in everything if p.requires_grad)
        plain = [p for name, p in policy.named_parameters() if ".lora_" not in name]
        copied = sum(p.numel() for p in plain) * dtype.itemsize
        config = plain_model(policy).config
        cache = cache_per_token(config.to_dict()) * dtype.itemsize
        shards = tensor_parallel_size
        return cls(sum(map(_bytes, everything)), trained, 2 * trained, copied // shards, -(-cache // shards))


@dataclass(frozen=True)
class MemoryPlan:
    """How a GPU's memory would be shared.

    Attributes:
        total: Of the GPU, in bytes.
        fraction: The engine's share.
        needs: What is known.
        cache: What the engine's share leaves for keys and values.
        free: What the trainer keeps for activations, logits and a reference model.
        length: The longest sequence, in tokens.
        refusal: Why this cannot work, with the setting to change; empty if it can.
    """

    total: int
    fraction: float
    needs: Needs
    cache: int
    free: int
    length: int
    refusal: str

    def text(self) -> str:
        """A few lines for the start of a run."""
        needs, share = self.needs, self.total * self.fraction
        tokens = max(0, self.cache) // needs.cache_per_token
        return (
            f"memory of the GPU, estimated: {_gib(self.total)}\n"
            f"  trainer: weights {_gib(needs.weights)}, gradients {_gib(needs.gradients)}, optimizer "
            f"{_gib(needs.optimizer)}; left for activations, logits and a reference: {_gib(self.free)} "
            "(module.micro_batch_tokens)\n"
            f"  engine, {self.fraction:.0%} (sampler.memory_fraction): {_gib(share)}: weights "
            f"{_gib(needs.engine_weights)}, working memory {_gib(WORKSPACE)}, KV cache {_gib(self.cache)} = "
            f"{tokens:,} tokens, {tokens // self.length} sequences of {self.length:,} (sampler.max_model_len)"
        )


def estimate(needs: Needs, total: int, fraction: float, length: int, *, sleeps: bool = False) -> MemoryPlan:
    """Share out a GPU.

    Args:
        needs: Of trainer and engine.
        total: Memory of the GPU in bytes.
        fraction: The engine's share.
        length: The longest sequence in tokens; the cache must hold one at least.
        sleeps: Whether the engine gives its memory back while the trainer updates.
    """
    cache = int(total * fraction) - needs.engine_weights - WORKSPACE
    trainer = needs.weights + needs.gradients + needs.optimizer
    free = total - trainer - (0 if sleeps else int(total * fraction))
    return MemoryPlan(
        total, fraction, needs, cache, free, length, _refusal(needs, total, fraction, length, cache, free)
    )


def _refusal(needs: Needs, total: int, fraction: float, length: int, cache: int, free: int) -> str:
    least = (needs.engine_weights + WORKSPACE + length * needs.cache_per_token) / total
    if cache < length * needs.cache_per_token:
        advice = f"set it to {least + 0.005:.2f} or more, or lower sampler.max_model_len={length}"
        if least > 1:
            advice = "the model is too large for this GPU: raise sampler.tensor_parallel_size"
        return (
            f"sampler.memory_fraction={fraction} of {_gib(total)} does not hold the engine's weights "
            f"({_gib(needs.engine_weights)}) and one sequence of {length} tokens; {advice}"
        )
    if free <= 0:
        trainer = _gib(needs.weights + needs.gradients + needs.optimizer)
        return (
            f"the trainer's weights, gradients and optimizer need {trainer} beside the engine's "
            f"{_gib(total * fraction)} of {_gib(total)}: lower sampler.memory_fraction "
            f"(at least {least + 0.005:.2f}), set sampler.sleep_level=1, or train an adapter with model.lora"
        )
    return ""


def cache_per_token(config: Mapping[str, object]) -> int:
    """Numbers that a token leaves in the KV cache: keys and values, in every layer, for every KV head.

    Args:
        config: A Hugging Face model config as a dictionary.
    """
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head


def _bytes(parameter: torch.nn.Parameter) -> int:
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return local.numel() * local.element_size()


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
