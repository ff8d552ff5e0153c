"""The canary on a real engine: silent while all is well, and it names each planted fault."""

from __future__ import annotations

import pytest

from distmatch.callbacks.sync_check import SyncCheck, SyncError
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.vllm import VLLMSampler
from tests.vllm import faults
from tests.vllm.models import LONG, NOISE, SHORT, adapted, move, tied, untied

pytestmark = pytest.mark.vllm


def canary(temperature: float = 1.0) -> SyncCheck:
    """Two prompts longer than a block of the engine's cache, and a short one."""
    return SyncCheck([*LONG, SHORT[0]], SamplingParams(n=2, max_tokens=16, temperature=temperature))


@pytest.mark.parametrize("kind", [untied, adapted])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_it_is_silent_over_many_syncs(sharing, kind, temperature) -> None:
    policy, check = kind(), canary(temperature)
    sampler = sharing(VLLMSampler, policy)
    for step in range(5):
        assert check(policy, sampler).gap < NOISE
        move(policy, 0.03, seed=step)
        sampler.sync(policy)
    assert check(policy, sampler).gap < NOISE


@pytest.mark.parametrize(
    ("fault", "kind", "cause"),
    [
        (faults.SyncsOnce, untied, "old_weights"),
        (faults.KeepsCache, untied, "stale_cache"),
        (faults.PushesBase, adapted, "adapter_missing"),
        (faults.OwnTemperature, untied, "temperature"),
        (faults.ShiftsByOne, untied, "shifted"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_it_stops_and_names_the_fault(sharing, fault, kind, cause) -> None:
    """Faults of the first sync are seen at once, the others when the policy has changed."""
    policy, check = kind(), canary()
    sampler = sharing(fault, policy)
    with pytest.raises(SyncError) as caught:
        for step in range(3):
            check(policy, sampler)
            move(policy, 0.05, seed=step)
            sampler.sync(policy)
    assert caught.value.cause == cause


def test_it_finds_tied_output_weights_that_were_not_sent() -> None:
    policy, check = tied(), canary()
    sampler = faults.LeavesHeadOut()
    sampler.setup(policy)
    with pytest.raises(SyncError):
        for step in range(3):
            check(policy, sampler)
            move(policy, 0.05, seed=step)
            sampler.sync(policy)
    sampler.close()
