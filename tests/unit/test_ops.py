"""Tensor functions against plain torch, at the edges, and in memory."""

from __future__ import annotations

import pytest
import torch

from distmatch.ops import masked_mean, sequence_logprob, token_entropy, token_logprobs


def naive(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    return (logits / temperature).log_softmax(dim=-1).gather(-1, ids[..., None]).squeeze(-1)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_logprobs_and_their_gradient(chunk: int, temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 11, (2, 5))
    ours = token_logprobs(logits, ids, temperature=temperature, chunk=chunk)
    assert torch.allclose(ours, naive(logits, ids, temperature), atol=1e-12)
    weights = torch.randn(2, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((ours * weights).sum(), logits)
    (expected,) = torch.autograd.grad((naive(logits, ids, temperature) * weights).sum(), logits)
    assert torch.allclose(gradient, expected, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda x: token_logprobs(x, ids, temperature=temperature, chunk=chunk), logits
    )


def test_low_precision_logits_are_scored_in_float32() -> None:
    logits = torch.randn(1, 4, 50).bfloat16().requires_grad_()
    ids = torch.tensor([[0, 3, 7, 49]])
    ours = token_logprobs(logits, ids)
    assert ours.dtype == torch.float32
    assert torch.allclose(ours, naive(logits.float(), ids, 1.0), atol=1e-5)
    ours.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


def test_no_float32_copy_of_all_logits_exists() -> None:
    """512 positions of a vocabulary of 50,000 in bfloat16: 51 MB; a float32 copy would be 102 MB."""
    logits = torch.randn(1, 512, 50_000).bfloat16().requires_grad_()
    ids = torch.randint(0, 50_000, (1, 512))

    def peak(score) -> int:
        with torch.profiler.profile(
            profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
        ) as seen:
            score().sum().backward()
        held = highest = 0
        for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
            if event.name() == "[memory]":
                held += event.nbytes()
                highest = max(highest, held)
        logits.grad = None
        return highest

    gradient = logits.numel() * 2
    assert peak(lambda: token_logprobs(logits, ids, chunk=32)) < gradient + 40e6
    assert peak(lambda: naive(logits.float(), ids, 1.0)) > gradient + 200e6


def test_entropy_of_uniform_masked_and_certain_distributions() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -torch.inf, -torch.inf], [99.0, 0.0, 0.0, 0.0]])
    logits.requires_grad_()
    entropy = token_entropy(logits, chunk=2)
    assert entropy.tolist() == pytest.approx([1.386294, 0.693147, 0.0], abs=1e-5)
    assert (entropy >= 0).all()
    entropy.sum().backward()
    assert logits.grad.abs().max() < 1e-6


def test_empty_selections_are_zero_with_a_graph() -> None:
    values = torch.full((2, 3), float("nan"), requires_grad=True)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    mean = masked_mean(values, nothing)
    mean.backward()
    assert mean == 0
    assert (values.grad == 0).all()
    assert sequence_logprob(values, nothing, length_normalize=True).tolist() == [0, 0]
    assert token_logprobs(torch.zeros(1, 0, 5), torch.zeros(1, 0, dtype=torch.long)).shape == (1, 0)
