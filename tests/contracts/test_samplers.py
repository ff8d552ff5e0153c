"""What every sampler YAML promises: shapes, masks, honest log-probabilities. New files are picked up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.tiny import SPECIAL
from distmatch.sampling.base import Sampler, SamplingParams
from distmatch.sampling.hf import left_pad
from tests.fake_vllm import FakeServer

CONFIGS = Path(__file__).parents[2] / "configs"
ENGINES = {"vllm": "vllm"}
"""YAML name to the package that it needs; run with `pytest -m <package>`, in a process of its own."""

PROMPTS = [[1, 8, 30, 31, 40, 41], [1, 9], [1, 10, 50]]
EOS = SPECIAL.index("<eos>")
TOLERANCE = 1e-4  # nats, between the engine's log-probabilities and the policy's own


def cases() -> list[object]:
    """One a YAML; those of an engine carry its mark, and are skipped where it is not installed."""
    found = []
    for file in sorted((CONFIGS / "sampler").glob("*.yaml")):
        package = ENGINES.get(file.stem)
        reason = f"sampler={file.stem} needs the package {package}, which is not installed"
        absent = package is not None and find_spec(package) is None
        marks = [pytest.mark.skipif(absent, reason=reason)] if package else []
        marks += [getattr(pytest.mark, package)] if package else []
        found.append(pytest.param(file.stem, marks=marks, id=file.stem))
    return found


@pytest.fixture(params=cases())
def sampler(request: pytest.FixtureRequest, small_policy: LanguageModel, tmp_path: Path) -> Iterator[Sampler]:
    overrides = [f"+sampler={request.param}", f"+paths.run_dir={tmp_path}"]
    if request.param == "vllm_server":  # tests/vllm has a real one
        server = FakeServer(small_policy)
        request.addfinalizer(server.kill)
        overrides.append(f'sampler.hosts=["{server.url}"]')
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        made = instantiate(compose(overrides=overrides).sampler)
    yield made
    made.close()


@pytest.fixture
def policy(small_policy: LanguageModel) -> LanguageModel:
    """Ends about one row in ten at each step, so that lengths differ."""
    favour_eos(small_policy)
    return small_policy


def favour_eos(policy: LanguageModel) -> None:
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[EOS] += 0.4


def seeds(count: int, first: int = 0) -> list[int]:
    return [first + 7919 * k for k in range(count)]


def ready(sampler: Sampler, policy: LanguageModel) -> Sampler:
    sampler.setup(policy)
    sampler.sync(policy)
    return sampler


def own_scores(
    policy: LanguageModel, prompts: Sequence[Sequence[int]], out: Completions, temperature: float = 1.0
) -> Tensor:
    """What the policy says about completions, (B, T)."""
    n = len(out.ids) // len(prompts)
    prompt_ids, prompt_mask = left_pad([p for p in prompts for _ in range(n)], policy.device)
    with torch.no_grad():
        return policy(prompt_ids, prompt_mask, out.ids, out.mask, temperature=temperature).logprobs


def gap(policy: LanguageModel, prompts: Sequence[Sequence[int]], out: Completions, **how: float) -> float:
    """The largest difference between reported and own log-probabilities of sampled tokens, in nats."""
    difference = own_scores(policy, prompts, out, **how) - out.logprobs
    return float(difference[out.mask].abs().max())


def rows(out: Completions) -> list[list[int]]:
    """The sampled tokens of each row."""
    return [ids[mask].tolist() for ids, mask in zip(out.ids, out.mask, strict=True)]


def check_masks(out: Completions, eos: frozenset[int], max_tokens: int) -> None:
    """A row is a run of sampled tokens from the first place on; EOS is its last token or not in it."""
    for row, mask, finished in zip(rows(out), out.mask.tolist(), out.finished.tolist(), strict=True):
        assert mask == [True] * len(row) + [False] * (len(mask) - len(row))
        assert 1 <= len(row) <= max_tokens
        assert not eos.intersection(row[:-1])
        assert (row[-1] in eos) == finished
        assert finished or len(row) == max_tokens


def test_shapes_and_types(sampler: Sampler, policy: LanguageModel) -> None:
    out = ready(sampler, policy).sample(PROMPTS, SamplingParams(n=4, max_tokens=9), seeds(12))
    length = out.ids.shape[1]
    assert out.ids.shape == out.mask.shape == out.logprobs.shape == (12, length)
    assert 1 <= length <= 9
    assert out.finished.shape == (12,)
    assert (out.ids.dtype, out.mask.dtype) == (torch.long, torch.bool)
    assert (out.logprobs.dtype, out.finished.dtype) == (torch.float32, torch.bool)
    assert torch.isfinite(out.logprobs).all()
    assert (out.logprobs[out.mask] <= 0).all()


def test_masks_end_with_eos_or_at_the_limit(sampler: Sampler, policy: LanguageModel) -> None:
    out = ready(sampler, policy).sample(PROMPTS, SamplingParams(n=48, max_tokens=8), seeds(144))
    assert out.finished.any()
    assert not out.finished.all()
    check_masks(out, policy.eos_ids, 8)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_are_the_policys_own(sampler: Sampler, policy: LanguageModel, temperature: float) -> None:
    params = SamplingParams(n=4, max_tokens=9, temperature=temperature)
    out = ready(sampler, policy).sample(PROMPTS, params, seeds(12))
    assert gap(policy, PROMPTS, out, temperature=temperature) < TOLERANCE


def test_rows_are_prompt_major(sampler: Sampler, policy: LanguageModel) -> None:
    """Only under its own prompt does a row have the log-probabilities that came with it."""
    out = ready(sampler, policy).sample(PROMPTS, SamplingParams(n=4, max_tokens=9), seeds(12))
    assert gap(policy, PROMPTS, out) < TOLERANCE
    assert gap(policy, [*PROMPTS[1:], PROMPTS[0]], out) > 100 * TOLERANCE


def test_equal_seeds_give_equal_tokens_and_others_do_not(sampler: Sampler, policy: LanguageModel) -> None:
    params = SamplingParams(n=4, max_tokens=9)
    ready(sampler, policy)
    first, again, other = (sampler.sample(PROMPTS, params, seeds(12, first)) for first in (0, 0, 1))
    assert rows(first) == rows(again)
    assert rows(first) != rows(other)
    assert len({tuple(row) for row in rows(first)}) > 6  # rows of a group are separate draws


def test_torchs_global_generator_decides_nothing(sampler: Sampler, policy: LanguageModel) -> None:
    params = SamplingParams(n=4, max_tokens=9)
    ready(sampler, policy)
    torch.manual_seed(0)
    first = sampler.sample(PROMPTS, params, seeds(12))
    torch.manual_seed(1)
    assert rows(sampler.sample(PROMPTS, params, seeds(12))) == rows(first)


@pytest.mark.parametrize("count", [0, 5, 7])
def test_seeds_are_counted(sampler: Sampler, policy: LanguageModel, count: int) -> None:
    ready(sampler, policy)
    with pytest.raises(ValueError):  # its words are the sampler's own
        sampler.sample(PROMPTS, SamplingParams(n=2, max_tokens=2), seeds(count))


def test_sync_brings_new_weights(sampler: Sampler, policy: LanguageModel) -> None:
    """The log-probabilities are those of the weights at the last sync, not of older ones."""
    params = SamplingParams(n=4, max_tokens=9)
    ready(sampler, policy)
    before = sampler.sample(PROMPTS, params, seeds(12))
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.mul_(1.1)
    assert gap(policy, PROMPTS, before) > 100 * TOLERANCE
    for _ in range(2):  # a second sync, without a change, is safe
        sampler.sync(policy)
        assert gap(policy, PROMPTS, sampler.sample(PROMPTS, params, seeds(12))) < TOLERANCE


def test_temperature_is_honoured(sampler: Sampler, policy: LanguageModel) -> None:
    """Colder samples are likelier under the policy itself; near zero they are its favourites."""
    ready(sampler, policy)
    likelihood = {}
    for temperature in (0.001, 0.7, 2.0):
        params = SamplingParams(n=16, max_tokens=6, temperature=temperature)
        out = sampler.sample(PROMPTS, params, seeds(48))
        likelihood[temperature] = float(own_scores(policy, PROMPTS, out)[out.mask].mean())
        if temperature == 0.001:
            assert [len({tuple(r) for r in rows(out)[i : i + 16]}) for i in (0, 16, 32)] == [1, 1, 1]
    assert likelihood[0.001] > likelihood[0.7] + 0.1 > likelihood[2.0] + 0.2


def test_prompts_of_one_token_and_completions_of_one(sampler: Sampler, policy: LanguageModel) -> None:
    ready(sampler, policy)
    for prompts in ([[1]], [[1], [1, 8, 30, 31], [9]]):
        for max_tokens in (1, 5):
            params = SamplingParams(n=3, max_tokens=max_tokens)
            out = sampler.sample(prompts, params, seeds(3 * len(prompts)))
            assert len(out.ids) == 3 * len(prompts)
            check_masks(out, policy.eos_ids, max_tokens)
            assert gap(policy, prompts, out) < TOLERANCE


def test_a_single_sample_of_a_single_prompt(sampler: Sampler, policy: LanguageModel) -> None:
    out = ready(sampler, policy).sample(PROMPTS[:1], SamplingParams(n=1, max_tokens=4), [5])
    assert out.ids.shape[0] == 1
    check_masks(out, policy.eos_ids, 4)


@pytest.mark.parametrize("special", ["pad is eos", "pad is sampled"])
def test_masks_are_never_read_off_ids(sampler: Sampler, policy: LanguageModel, special: str) -> None:
    """Neither a pad token that is EOS, nor one that the policy writes, moves the end of a row."""
    if special == "pad is eos":
        policy.tokenizer.pad_token = "<eos>"
        policy.model.config.pad_token_id = EOS
    else:
        with torch.no_grad():
            policy.model.get_input_embeddings().weight[SPECIAL.index("<pad>")] += 0.4
    out = ready(sampler, policy).sample(PROMPTS, SamplingParams(n=48, max_tokens=8), seeds(144))
    check_masks(out, policy.eos_ids, 8)
    assert gap(policy, PROMPTS, out) < TOLERANCE
    token = EOS if special == "pad is eos" else SPECIAL.index("<pad>")
    assert any(token in row for row in rows(out))


def test_closed_twice_and_set_up_again(sampler: Sampler, policy: LanguageModel) -> None:
    """Lightning tears down after validation, after training and after the last validation."""
    params = SamplingParams(n=2, max_tokens=4)
    first = ready(sampler, policy).sample(PROMPTS, params, seeds(6))
    sampler.close()
    sampler.close()
    assert rows(ready(sampler, policy).sample(PROMPTS, params, seeds(6))) == rows(first)


def test_sampling_leaves_the_policy_as_it_was(sampler: Sampler, policy: LanguageModel) -> None:
    before, training = policy.weights_hash(), policy.training
    out = ready(sampler, policy).sample(PROMPTS, SamplingParams(n=2, max_tokens=4), seeds(6))
    assert policy.weights_hash() == before
    assert policy.training == training
    assert not out.logprobs.requires_grad
    assert all(parameter.grad is None for parameter in policy.parameters())
