"""What `gpu_check` runs: models of known sizes with random weights, trained on made-up rewards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel, without_dropout
from distmatch.modules.tiny import build_tokenizer
from distmatch.sampling.base import Sampler, SamplingParams
from distmatch.sampling.hf import left_pad


@dataclass(frozen=True)
class Size:
    """A model's shape, and how much to sample from it.

    Attributes:
        hub: Where weights of this shape are.
        config: As `transformers.Qwen2Config` takes it.
        prompts, samples: N and G.
        prompt_tokens, new_tokens: Lengths.
    """

    hub: str
    config: dict[str, int | bool]
    prompts: int = 32
    samples: int = 8
    prompt_tokens: int = 512
    new_tokens: int = 512


def _qwen(
    hidden: int, layers: int, heads: int, kv: int, inner: int, words: int, tied: bool
) -> dict[str, int | bool]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": words,
        "tie_word_embeddings": tied,
    }


SIZES = {
    "tiny": Size("", _qwen(128, 2, 4, 2, 256, 512, True), 4, 4, 160, 16),
    "0.5B": Size("Qwen/Qwen2.5-0.5B", _qwen(896, 24, 14, 2, 4864, 151936, True)),
    "1.5B": Size("Qwen/Qwen2.5-1.5B", _qwen(1536, 28, 12, 2, 8960, 151936, True)),
    "7B": Size("Qwen/Qwen2.5-7B", _qwen(3584, 28, 28, 4, 18944, 152064, False)),
}
"""`tiny` is for a CPU, to try the script; the others are the shapes of Qwen2.5."""


def build(size: Size, device: torch.device, dtype: torch.dtype, *, lora: bool, hub: bool) -> LanguageModel:
    """A policy of this size; its tokenizer is a stand-in, for only token ids are used.

    Args:
        size: Which.
        device: Where it trains.
        dtype: Of its weights.
        lora: Freeze it under an adapter of rank 16.
        hub: Take its weights from the hub.

    Raises:
        OSError: The hub cannot be reached.
    """
    torch.manual_seed(0)
    if hub:
        config = without_dropout(AutoConfig.from_pretrained(size.hub))
        model = AutoModelForCausalLM.from_pretrained(size.hub, config=config, dtype=dtype).to(device)
    else:
        config = Qwen2Config(
            **size.config, attention_dropout=0.0, max_position_embeddings=2048, eos_token_id=2
        )
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if lora:
        model = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
        )
        model.enable_input_require_grads()  # or checkpointed layers of a frozen base pass no gradient
    model.gradient_checkpointing_enable()
    return LanguageModel(model.train(), build_tokenizer(), "compact", adapted=lora)


def prompts_of(size: Size) -> list[list[int]]:
    """Prompts of random words."""
    words, rng = int(size.config["vocab_size"]), torch.Generator().manual_seed(1)
    return torch.randint(10, words, (size.prompts, size.prompt_tokens), generator=rng).tolist()


class Clock:
    """Seconds by phase, summed; waits for the GPU at both ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        _wait()
        began = time.perf_counter()
        yield
        _wait()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Trainer:
    """A plain policy gradient with made-up rewards: one update a rollout, row by row in small chunks.

    Args:
        policy: What trains.
        lr: AdamW's learning rate.
        rows: Rows to a chunk.
    """

    def __init__(self, policy: LanguageModel, lr: float, rows: int = 4) -> None:
        self._policy = policy
        self._optimizer = torch.optim.AdamW(policy.trainable().values(), lr=lr, weight_decay=0.0)
        self._rows = rows

    def update(self, prompts: Sequence[Sequence[int]], out: Completions) -> None:
        """One optimizer step."""
        n = len(out.ids) // len(prompts)
        ids, mask = left_pad([p for p in prompts for _ in range(n)], self._policy.device)
        advantages = torch.linspace(-1, 1, len(ids), device=ids.device)
        words, kept = out.ids.to(ids.device), out.mask.to(ids.device)
        for first in range(0, len(ids), self._rows):
            rows = slice(first, first + self._rows)
            scored = self._policy(ids[rows], mask[rows], words[rows], kept[rows], temperature=1.0)
            (-(advantages[rows, None] * scored.logprobs).sum() / kept.sum()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def iterate(
    policy: LanguageModel, sampler: Sampler, size: Size, clock: Clock, *, iterations: int, lr: float
) -> int:
    """Train for some iterations, and return how many tokens were sampled."""
    trainer, prompts = Trainer(policy, lr), prompts_of(size)
    params = SamplingParams(n=size.samples, max_tokens=size.new_tokens)
    tokens = 0
    for step in range(iterations):
        with clock("sync"):
            sampler.sync(policy)
        with clock("sample"):
            seeds = range(1 + step * 10**6, 1 + step * 10**6 + size.prompts * size.samples)
            out = sampler.sample(prompts, params, list(seeds))
        with clock("update"):
            trainer.update(prompts, out)
        tokens += int(out.mask.sum())
    return tokens
