"""Each way in which an engine can lie shows in the log-probabilities: what the canary looks at."""

from __future__ import annotations

import pytest

from distmatch.sampling.base import SamplingParams
from distmatch.sampling.vllm import VLLMSampler
from tests.vllm import faults
from tests.vllm.models import LONG, NOISE, SHORT, adapted, gaps, move, seeds, tied, untied

pytestmark = pytest.mark.vllm
PARAMS = SamplingParams(n=4, max_tokens=16)


def shown(sampler: VLLMSampler, policy, prompts=SHORT) -> float:
    """Mean distance between engine and policy after an update and a sync."""
    told = seeds(4 * len(prompts))
    sampler.sample(prompts, PARAMS, told)  # whatever a cache can hold, it holds now
    move(policy, 0.05)
    sampler.sync(policy)
    return float(gaps(policy, prompts, sampler.sample(prompts, PARAMS, told)).abs().mean())


def test_a_healthy_sampler_shows_nothing(sharing) -> None:
    for policy, prompts in ((untied(), SHORT), (untied(), LONG), (adapted(), SHORT)):
        assert shown(sharing(VLLMSampler, policy), policy, prompts) < NOISE


def test_a_skipped_sync_shows(sharing) -> None:
    policy = untied()
    assert shown(sharing(faults.SyncsOnce, policy), policy) > 0.05


def test_a_stale_cache_shows_with_prompts_longer_than_its_blocks(sharing) -> None:
    policy = untied()
    assert shown(sharing(faults.KeepsCache, policy), policy, LONG) > 0.01
    policy = untied()
    assert shown(sharing(faults.KeepsCache, policy), policy, SHORT) < NOISE  # these it never serves


def test_a_missing_adapter_shows(sharing) -> None:
    policy = adapted()
    assert shown(sharing(faults.PushesBase, policy), policy) > 0.05


def test_another_temperature_shows(sharing) -> None:
    policy = untied()
    assert shown(sharing(faults.OwnTemperature, policy), policy) > 0.05


def test_a_shift_by_one_shows(sharing) -> None:
    policy = untied()
    assert shown(sharing(faults.ShiftsByOne, policy), policy) > 0.05


def test_tied_output_weights_that_are_not_sent_show() -> None:
    """The engine gives no error: it goes on with the old ones."""
    policy = tied()
    sampler = faults.LeavesHeadOut()
    sampler.setup(policy)
    assert shown(sampler, policy) > 0.05
    sampler.close()
