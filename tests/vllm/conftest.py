"""One engine for all tests of a file: a sync brings it another policy of the same shape."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.vllm import VLLMSampler
from distmatch.sampling.vllm_engine import Engine
from tests.vllm.models import untied


@pytest.fixture(scope="module")
def running() -> Iterator[VLLMSampler]:
    """A sampler with its engine, for untied models in float32."""
    sampler = VLLMSampler()
    sampler.setup(untied())
    yield sampler
    sampler.close()


@pytest.fixture
def sharing(running: VLLMSampler) -> Iterator[Callable[[type[VLLMSampler], LanguageModel], VLLMSampler]]:
    """Makes a sampler of some class that works with the engine that runs already."""
    made: list[VLLMSampler] = []

    def make(kind: type[VLLMSampler], policy: LanguageModel) -> VLLMSampler:
        def borrowed(self: VLLMSampler, policy: LanguageModel, folder: Path) -> Engine:
            return running._engine

        sampler = type(kind.__name__, (kind,), {"_start": borrowed})()
        sampler.setup(policy)
        made.append(sampler)
        return sampler

    yield make
    for sampler in made:  # it lets go of the engine without stopping it
        atexit.unregister(sampler.close)
        sampler._engine = None
