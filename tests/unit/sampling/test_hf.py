"""The HF sampler: tokens of a row depend on its own seed, the numbers are exact, EOS ends a row."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler, draw, left_pad

PROMPTS = [[1, 8, 30, 31, 40, 41], [1, 9], [1, 10, 50]]


@pytest.fixture
def sampler(small_policy: LanguageModel) -> HFSampler:
    with torch.no_grad():  # a sharper model, that also ends some rows
        small_policy.model.get_input_embeddings().weight[2] += 0.4
    made = HFSampler()
    made.setup(small_policy)
    return made


def seeds(prompts: int, n: int) -> list[int]:
    return [1000 * p + k for p, k in itertools.product(range(prompts), range(n))]


def test_tokens_do_not_depend_on_the_batch(sampler: HFSampler, small_policy: LanguageModel) -> None:
    params = SamplingParams(n=4, max_tokens=12)
    together = sampler.sample(PROMPTS, params, seeds(3, 4))
    narrow = HFSampler(max_rows=4)
    narrow.setup(small_policy)
    backwards = narrow.sample(
        PROMPTS[::-1], params, [s for p in (2, 1, 0) for s in seeds(3, 4)[4 * p : 4 * p + 4]]
    )
    for prompt in range(3):
        ours, theirs = slice(4 * prompt, 4 * prompt + 4), slice(4 * (2 - prompt), 4 * (2 - prompt) + 4)
        for row, other in zip(range(12)[ours], range(12)[theirs], strict=True):
            mine, its = together.ids[row][together.mask[row]], backwards.ids[other][backwards.mask[other]]
            assert torch.equal(mine, its)
            assert torch.allclose(
                together.logprobs[row][together.mask[row]],
                backwards.logprobs[other][backwards.mask[other]],
                atol=1e-5,
            )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_its_logprobs_are_the_trainers(
    sampler: HFSampler, small_policy: LanguageModel, temperature: float
) -> None:
    params = SamplingParams(n=4, max_tokens=10, temperature=temperature)
    out = sampler.sample(PROMPTS, params, seeds(3, 4))
    prompt_ids, prompt_mask = left_pad([p for p in PROMPTS for _ in range(4)], torch.device("cpu"))
    scored = small_policy(prompt_ids, prompt_mask, out.ids, out.mask, temperature=temperature)
    assert (scored.logprobs - out.logprobs).abs().max() < 1e-5


def test_rows_end_at_eos_and_only_there(sampler: HFSampler, small_policy: LanguageModel) -> None:
    out = sampler.sample(PROMPTS, SamplingParams(n=64, max_tokens=12), seeds(3, 64))
    eos = next(iter(small_policy.eos_ids))
    assert out.finished.any()
    assert not out.finished.all()
    for ids, mask, finished in zip(out.ids, out.mask, out.finished, strict=True):
        kept = ids[mask]
        assert mask.sum() == mask.long().argmin() or mask.all()
        assert (kept[-1] == eos) == finished
        assert not (kept[:-1] == eos).any()
        assert finished or len(kept) == 12


def test_a_row_may_end_at_once(sampler: HFSampler) -> None:
    out = sampler.sample(
        [[1, 8 + k] for k in range(8)], SamplingParams(n=250, max_tokens=2), list(range(2000))
    )
    assert out.mask.sum(dim=1).min() == 1


def test_each_prompt_is_prefilled_once(sampler: HFSampler, small_policy: LanguageModel) -> None:
    calls: list[tuple[int, int]] = []
    small_policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    sampler.sample(PROMPTS, SamplingParams(n=8, max_tokens=4), seeds(3, 8))
    assert calls[0] == (3, 6)
    assert all(width == 1 and rows <= 24 for rows, width in calls[1:])


def test_inverse_cdf_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    uniform = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    tokens, logprobs = draw(probabilities.log().expand(1000, 4), uniform, SamplingParams())
    assert torch.bincount(tokens, minlength=4).tolist() == [500, 0, 300, 200]
    assert torch.allclose(logprobs.exp(), probabilities[tokens])


def test_nucleus_sampling_renormalises() -> None:
    probabilities = torch.tensor([0.2, 0.5, 0.3])
    uniform = (torch.arange(800, dtype=torch.float64) + 0.5) / 800
    tokens, logprobs = draw(probabilities.log().expand(800, 3), uniform, SamplingParams(top_p=0.6))
    assert torch.bincount(tokens, minlength=3).tolist() == [0, 500, 300]
    assert logprobs[tokens == 1][0].item() == pytest.approx(math.log(0.5 / 0.8), abs=1e-6)


def test_bad_parameters_are_named() -> None:
    for values, message in [
        ({"n": 0}, "n="),
        ({"temperature": 0.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
    ]:
        with pytest.raises(ValueError, match=message):
            SamplingParams(**values)
    with pytest.raises(ValueError, match="max_rows"):
        HFSampler(max_rows=0)


def test_seeds_are_counted(sampler: HFSampler) -> None:
    with pytest.raises(ValueError, match="need as many seeds, got 3"):
        sampler.sample(PROMPTS, SamplingParams(n=2, max_tokens=2), [1, 2, 3])
