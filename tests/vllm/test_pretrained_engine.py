"""`sampler=vllm` with weights that somebody trained: opt-in, `pytest -m pretrained` in .venv-vllm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distmatch.batch import Prompt
from distmatch.modules.language_model import load_language_model
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler
from distmatch.sampling.vllm import VLLMSampler
from tests.vllm.models import NOISE, gaps, move, rows, seeds

pytestmark = pytest.mark.pretrained
SMOLLM2 = "DISTMATCH_SMOLLM2"
"""Environment variable with the path of a GGUF file of SmolLM2-135M-Instruct (tied weights)."""


def test_smollm2_writes_and_scores_as_the_trainer_does() -> None:
    pytest.importorskip("vllm")
    file = Path(os.environ.get(SMOLLM2, ""))
    if file.suffix != ".gguf" or not file.is_file():
        pytest.skip(f"{SMOLLM2} does not name a GGUF file")
    policy = load_language_model(str(file.parent), gguf_file=file.name)
    prompts = [policy.encode(Prompt(text, "natural")) for text in ("Name a fruit.", "What is 2 + 3?")]
    sampler, reference = VLLMSampler(max_model_len=512), HFSampler()
    sampler.setup(policy)
    reference.setup(policy)
    greedy = SamplingParams(n=1, max_tokens=24, temperature=1e-6)
    assert rows(sampler.sample(prompts, greedy, seeds(2))) == rows(
        reference.sample(prompts, greedy, seeds(2))
    )
    params = SamplingParams(n=4, max_tokens=24)
    out = sampler.sample(prompts, params, seeds(8))
    assert gaps(policy, prompts, out).abs().max() < 3 * NOISE
    move(policy, 1e-3)
    assert gaps(policy, prompts, out).abs().max() > 30 * NOISE
    sampler.sync(policy)
    assert gaps(policy, prompts, sampler.sample(prompts, params, seeds(8))).abs().max() < 3 * NOISE
    sampler.close()
