"""What a loss costs beside the update that it drives: seconds of both, measured in turns in one process."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.base import Loss
from distmatch.modules.policy import PolicyModule
from distmatch.modules.tiny import load_tiny
from distmatch.sampling.base import SamplingParams

PROMPT_TOKENS = 32


@dataclass(frozen=True)
class Cost:
    """Seconds on this machine; only their ratio means something elsewhere.

    Attributes:
        loss: The loss and its backward pass down to what the policy put out.
        update: Scoring in chunks, loss, backward pass and optimizer step of the tiny model.
    """

    loss: float
    update: float

    @property
    def share(self) -> float:
        """Loss over update."""
        return self.loss / self.update


def loss_cost(loss: Loss, rows: int = 128, tokens: int = 512, group_size: int = 8, rounds: int = 2) -> Cost:
    """Measure a loss on a batch of realistic size, on the CPU, in turns with the update: A B A B.

    Args:
        loss: What is measured.
        rows: B.
        tokens: T, length of every completion.
        group_size: G.
        rounds: Updates; the loss is called five times for each. The median counts.
    """
    model = load_tiny("random", window=PROMPT_TOKENS + tokens)
    module = PolicyModule(model, loss, SamplingParams(group_size, tokens), log_entropy=False)
    optimizer = torch.optim.AdamW(module.parameters())
    batch = module.annotate(_batch(rows, tokens, group_size, len(model.tokenizer)))
    with torch.no_grad():
        scored = module(batch)
    batch = dataclasses.replace(batch, old_logprobs=scored.logprobs, sampler_logprobs=scored.logprobs)

    def evaluate() -> None:
        loss(batch, _leaves(scored)).loss.backward()

    def update() -> None:
        optimizer.zero_grad()
        loss(batch, module(batch)).loss.backward()
        optimizer.step()

    evaluate()  # what is made on the first call (a projection, memory) is not counted
    costs: list[float] = []
    updates: list[float] = []
    for _ in range(rounds):
        updates.append(_seconds(update))
        costs += [_seconds(evaluate) for _ in range(5)]
    return Cost(median(costs), median(updates))


def _batch(rows: int, tokens: int, group_size: int, vocabulary: int) -> RolloutBatch:
    rng = torch.Generator().manual_seed(0)
    live = torch.ones(rows, tokens, dtype=torch.bool)
    groups = torch.arange(rows) // group_size
    prompts = torch.randint(4, vocabulary, (rows // group_size, PROMPT_TOKENS), generator=rng)
    return RolloutBatch(
        prompt_ids=prompts[groups],
        prompt_mask=torch.ones(rows, PROMPT_TOKENS, dtype=torch.bool),
        completion_ids=torch.randint(4, vocabulary, (rows, tokens), generator=rng),
        completion_mask=live,
        loss_mask=live,
        rewards=torch.rand(rows, generator=rng),
        group_size=group_size,
        group_ids=groups,
        truncated=torch.zeros(rows, dtype=torch.bool),
        sampler_logprobs=torch.zeros(rows, tokens),
    )


def _leaves(scored: PolicyOutput) -> PolicyOutput:
    def leaf(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.detach().requires_grad_()

    return PolicyOutput(
        leaf(scored.logprobs), leaf(scored.entropy), leaf(scored.values), leaf(scored.prompt_hidden)
    )


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
