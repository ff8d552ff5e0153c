"""`sampler=vllm` with a real engine: the same numbers as the trainer, and no trace of it in the trainer."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from distmatch.batch import Completions
from distmatch.modules.tiny import load_tiny
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler
from distmatch.sampling.vllm import VLLMSampler
from distmatch.settings.errors import ConfigError
from tests.vllm.models import EOS, LONG, NOISE, SHORT, SIZES, adapted, gaps, move, rows, seeds, tied, untied

pytestmark = pytest.mark.vllm


def state_of_torch() -> list[object]:
    functions = [torch.set_num_threads, torch.accelerator.synchronize, torch.accelerator.empty_cache]
    return [torch.get_num_threads(), *functions]


def next_numbers() -> list[float]:
    """What the three generators would draw next; they are left as they are."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return drawn


def test_a_whole_life_leaves_the_process_as_it_was() -> None:
    """Of two engines, one after another: generators, threads, functions of torch, the process group."""
    policy = untied()
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)
    before = next_numbers(), state_of_torch()
    tokens = []
    for _ in range(2):
        sampler = VLLMSampler()
        sampler.setup(policy)
        assert (next_numbers(), state_of_torch()) == before
        tokens.append(rows(sampler.sample(SHORT, SamplingParams(n=4, max_tokens=8), seeds(12))))
        assert (next_numbers(), state_of_torch()) == before
        sampler.close()
        assert not torch.distributed.is_initialized()
    assert (next_numbers(), state_of_torch()) == before
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("kind", [untied, adapted])
@pytest.mark.parametrize("prompts", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_trainers_before_and_after_an_update(running, kind, prompts, temperature) -> None:
    policy = kind()
    params = SamplingParams(n=4, max_tokens=24, temperature=temperature)
    told = seeds(4 * len(prompts))
    running.sync(policy)
    old = running.sample(prompts, params, told)
    assert gaps(policy, prompts, old, temperature).abs().max() < NOISE
    move(policy, 0.05)
    assert gaps(policy, prompts, old, temperature).abs().max() > 0.1  # so a stale engine would show
    running.sync(policy)
    new = running.sample(prompts, params, told)
    assert gaps(policy, prompts, new, temperature).abs().max() < NOISE
    assert rows(new) != rows(old)


@pytest.mark.parametrize("kind", [untied, adapted])
def test_greedy_tokens_are_those_of_the_hf_sampler(running, kind) -> None:
    policy = kind()
    running.sync(policy)
    reference = HFSampler()
    reference.setup(policy)
    params = SamplingParams(n=1, max_tokens=40, temperature=1e-6)
    for prompts in (SHORT, LONG):
        ours, theirs = (s.sample(prompts, params, seeds(len(prompts))) for s in (running, reference))
        assert rows(ours) == rows(theirs)
        assert torch.equal(ours.finished, theirs.finished)
        assert (ours.logprobs[ours.mask] - theirs.logprobs[theirs.mask]).abs().max() < NOISE


def test_rows_are_prompt_major_end_with_eos_and_repeat(running) -> None:
    policy = untied()
    running.sync(policy)
    params = SamplingParams(n=32, max_tokens=10)
    out = running.sample(SHORT, params, seeds(96))
    assert rows(running.sample(SHORT, params, seeds(96))) == rows(out)
    assert rows(running.sample(SHORT, params, seeds(96, first=2))) != rows(out)
    assert gaps(policy, SHORT, out).abs().max() < NOISE
    assert gaps(policy, [*SHORT[1:], SHORT[0]], out).abs().max() > 0.1
    assert 0 < out.finished.sum() < 96
    for row, finished in zip(rows(out), out.finished.tolist(), strict=True):
        assert EOS not in row[:-1]
        assert (row[-1] == EOS) == finished
        assert finished or len(row) == 10


def test_a_row_does_not_depend_on_the_others(running) -> None:
    """On a CPU in float32; a GPU computes batches of other sizes with other rounding."""
    running.sync(untied())
    together = running.sample(SHORT, SamplingParams(n=8, max_tokens=12), seeds(24))
    alone = [
        rows(running.sample([SHORT[k // 8]], SamplingParams(n=1, max_tokens=12), [seed]))[0]
        for k, seed in enumerate(seeds(24))
    ]
    assert rows(together) == alone


def test_any_eos_of_the_model_ends_a_row(running) -> None:
    """Chat models have several; the engine is told all, and no other."""
    policy = untied()
    favourite = rows(running_greedy(running, policy))[0][2]
    policy.eos_ids = frozenset({favourite})
    out = running_greedy(running, policy)
    assert rows(out)[0][-1] == favourite
    assert len(rows(out)[0]) <= 3
    assert out.finished[0]


def running_greedy(running: VLLMSampler, policy):
    running.sync(policy)
    return running.sample(SHORT, SamplingParams(n=1, max_tokens=8, temperature=1e-6), seeds(3))


def test_nucleus_sampling_is_renormalised_as_in_the_hf_sampler(running) -> None:
    """The reason why training refuses it: log-probabilities rise by the mass that was cut off."""
    policy = untied()
    running.sync(policy)
    out = running.sample(SHORT, SamplingParams(n=64, max_tokens=1, top_p=0.8), seeds(192))
    rise = gaps(policy, SHORT, out)
    assert (rise > 0).all()
    assert (rise < -np.log(0.8) + NOISE).all()
    reference = HFSampler()
    reference.setup(policy)
    theirs = reference.sample(SHORT, SamplingParams(n=64, max_tokens=1, top_p=0.8), seeds(192))
    ours, known = first_tokens(out), first_tokens(theirs)
    shared = ours.keys() & known.keys()
    assert len(shared) > 20
    assert max(abs(ours[key] - known[key]) for key in shared) < NOISE


def first_tokens(out: Completions) -> dict[tuple[int, int], float]:
    """Log-probability of each first token that was drawn, by (prompt, token), of 64 rows a prompt."""
    pairs = zip(out.ids[:, 0].tolist(), out.logprobs[:, 0].tolist(), strict=True)
    return {(row // 64, token): logprob for row, (token, logprob) in enumerate(pairs)}


def test_the_base_under_an_adapter_never_moves(running) -> None:
    """A hundred syncs; merging in place and back would drift."""
    policy = adapted()
    before = policy.frozen_hash(), policy.weights_hash()
    for _ in range(100):
        running.sync(policy)
    assert (policy.frozen_hash(), policy.weights_hash()) == before
    out = running.sample(SHORT, SamplingParams(n=4, max_tokens=8), seeds(12))
    assert gaps(policy, SHORT, out).abs().max() < NOISE


def test_what_does_not_fit_is_refused_by_name(running) -> None:
    running.sync(untied())
    with pytest.raises(ValueError, match=r"287 tokens and 300 more .* sampler.max_model_len=512"):
        running.sample(LONG[:1], SamplingParams(n=1, max_tokens=300), [1])


def test_an_engine_that_started_in_inference_mode_takes_new_weights() -> None:
    """Lightning validates in it, and that is when a run's engine starts."""
    policy, sampler = untied(), VLLMSampler()
    with torch.inference_mode():
        sampler.setup(policy)
        sampler.sample(SHORT, SamplingParams(n=1, max_tokens=4), seeds(3))
    move(policy, 0.05)
    sampler.sync(policy)
    out = sampler.sample(SHORT, SamplingParams(n=4, max_tokens=8), seeds(12))
    assert gaps(policy, SHORT, out).abs().max() < NOISE
    assert not out.logprobs.is_inference()
    sampler.close()


def test_an_engine_that_does_not_start_says_why() -> None:
    with pytest.raises(ConfigError, match=r"the engine did not start: .*KV cache"):
        VLLMSampler(kv_cache_mib=1).setup(load_tiny("random", **SIZES, window=8192))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tied_weights_arrive_and_the_floor_of_each_dtype(dtype) -> None:
    policy, params = tied(), SamplingParams(n=8, max_tokens=24)
    sampler = VLLMSampler(dtype=dtype)
    sampler.setup(policy)
    for _ in range(2):
        out = sampler.sample(SHORT, params, seeds(24))
        gap = gaps(policy, SHORT, out).abs()
        floor = {"float32": NOISE, "bfloat16": 0.1}[dtype]  # stale output weights: 0.7 on average
        assert gap.mean() < floor
        move(policy, 0.05)
        assert gaps(policy, SHORT, out).abs().mean() > 3 * floor
        sampler.sync(policy)
    sampler.close()
    print(f"engine in {dtype}, trainer in float32: mean {gap.mean():.1e}, max {gap.max():.1e} nats")
