"""`VLLMSampler` on a stand-in engine: the order of waking and loading, and what happens when it dies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.failure import SamplerFailure
from distmatch.sampling.vllm import VLLMSampler
from distmatch.sampling.vllm_engine import EngineSettings, arguments, engine_dtype, write_config

PARAMS = SamplingParams(n=2, max_tokens=3)


class FakeEngine:
    """Keeps the rules of `vllm.LLM` about sleeping, and raises where one is broken.

    Attributes:
        calls: What was done, in order.
        error: Raised by the next call that samples.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.resets = True
        self._memory = {"weights", "kv_cache"}
        self._loaded = False
        self._stale = True

    def generate(
        self, prompts: Sequence[Mapping[str, list[int]]], sampling_params: Sequence[Any], *, use_tqdm: bool
    ) -> list[Any]:
        assert self._memory == {"weights", "kv_cache"}, "sampling while asleep"
        assert self._loaded, "sampling from weights that were dropped or never loaded"
        assert not self._stale, "sampling with keys and values of other weights"
        self.calls.append("generate")
        if self.error:
            raise self.error
        answers = []
        for prompt, seed in zip(prompts, sampling_params, strict=True):
            ids = [len(prompt["prompt_token_ids"]), seed]
            logprobs = SimpleNamespace(token_ids=ids, logprobs=[-0.5, -1.0])
            row = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason="stop")
            answers.append(SimpleNamespace(outputs=[row]))
        return answers

    def collective_rpc(self, method: str, *, kwargs: Mapping[str, Any]) -> list[None]:
        assert method == "reload_weights"
        assert "weights" in self._memory, "loading weights into memory that was given back"
        assert len(list(kwargs["weights_iterator"])) == 25
        self.calls.append("load")
        self._loaded, self._stale = True, True
        return [None]

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        self._stale = not self.resets
        return self.resets

    def sleep(self, level: int) -> None:
        assert level in (1, 2)
        assert self._memory == {"weights", "kv_cache"}, "asleep already"
        self.calls.append(f"sleep {level}")
        self._memory = set()
        self._loaded = level == 1

    def wake_up(self, tags: list[str]) -> bool:
        assert not self._memory.intersection(tags), "awake already"
        self.calls += [f"wake {tag}" for tag in tags]
        self._memory |= set(tags)
        return len(self._memory) == 2


class Sampler(VLLMSampler):
    """The real one around a stand-in."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.fake = FakeEngine()

    def setup(self, policy: LanguageModel) -> None:
        super().setup(policy)
        self._sleeps = self.settings.sleep_level > 0  # as on a GPU

    def _start(self, policy: LanguageModel, folder: Path) -> FakeEngine:
        assert folder.is_dir()
        return self.fake

    def _request(self, params: SamplingParams, seed: int) -> int:
        return seed


def iterations(sampler: Sampler, policy: LanguageModel, count: int = 2) -> list[str]:
    """What the engine was asked in each but the first."""
    for _ in range(count):
        sampler.fake.calls.clear()
        sampler.sync(policy)
        sampler.sample([[1, 2], [3]], PARAMS, [5, 6, 7, 8])
    return sampler.fake.calls


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_engine_wakes_loads_forgets_and_only_then_takes_its_cache(
    small_policy: LanguageModel, level: int
) -> None:
    sampler = Sampler(sleep_level=level)
    sampler.setup(small_policy)
    order = ["wake weights", "load", "reset", "wake kv_cache", "generate", f"sleep {level}"]
    assert iterations(sampler, small_policy) == order


def test_an_engine_that_stays_is_told_neither(small_policy: LanguageModel) -> None:
    sampler = Sampler()
    sampler.setup(small_policy)
    assert iterations(sampler, small_policy) == ["load", "reset", "generate"]


def test_sampling_twice_after_one_sync(small_policy: LanguageModel) -> None:
    """As an evaluation or a canary does: level 1 has its weights still, level 2 gets them again."""
    again = {1: ["wake weights", "wake kv_cache", "generate", "sleep 1"]}
    again[2] = ["wake weights", "load", "reset", "wake kv_cache", "generate", "sleep 2"]
    for level in (1, 2):
        sampler = Sampler(sleep_level=level)
        sampler.setup(small_policy)
        sampler.sample([[1]], PARAMS, [1, 2])
        sampler.fake.calls.clear()
        sampler.sample([[1]], PARAMS, [1, 2])
        assert sampler.fake.calls == again[level]


def test_rows_keep_their_prompts_and_seeds(small_policy: LanguageModel) -> None:
    sampler = Sampler()
    sampler.setup(small_policy)
    out = sampler.sample([[1, 2], [3, 4, 5]], PARAMS, [5, 6, 7, 8])
    assert out.ids.tolist() == [[2, 5], [2, 6], [3, 7], [3, 8]]
    assert out.logprobs.tolist() == [[-0.5, -1.0]] * 4
    assert out.finished.all()


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), OSError("gone"), AssertionError("x")])
def test_a_dead_engine_says_what_and_how_to_go_on(small_policy: LanguageModel, error: Exception) -> None:
    sampler = Sampler()
    sampler.setup(small_policy)
    sampler.fake.error = error
    with pytest.raises(SamplerFailure) as caught:
        sampler.sample([[1]], PARAMS, [1, 2])
    assert str(caught.value) == (
        f"vLLM failed while sampling: {type(error).__name__}: {error}. Iterations that were complete are "
        "saved: go on with `python train.py resume=<run folder>`"
    )
    sampler.close()


def test_a_cache_that_is_not_reset_stops_the_run(small_policy: LanguageModel) -> None:
    sampler = Sampler()
    sampler.setup(small_policy)
    sampler.fake.resets = False
    with pytest.raises(SamplerFailure, match="prefix cache"):
        sampler.sync(small_policy)


@pytest.mark.parametrize("fault", ["length", "token", "reason"])
def test_ids_and_logprobs_that_do_not_belong_together_stop_the_run(
    small_policy: LanguageModel, fault: str
) -> None:
    def wrong(self: Sampler, outputs: Sequence[Any]) -> Any:
        row = outputs[1].outputs[0]
        if fault == "length":
            row.token_ids = row.token_ids[:1]
        elif fault == "token":
            row.token_ids = row.token_ids[::-1]
        else:
            row.finish_reason = "abort"
        return VLLMSampler._completions(self, outputs)

    sampler = type("Wrong", (Sampler,), {"_completions": wrong})()
    sampler.setup(small_policy)
    with pytest.raises(SamplerFailure, match="vLLM returned"):
        sampler.sample([[1]], PARAMS, [1, 2])


def test_settings_are_refused_by_name() -> None:
    for values, words in [
        ({"dtype": "float8"}, "sampler.dtype='float8' must be one of"),
        ({"memory_fraction": 0.0}, "sampler.memory_fraction=0.0"),
        ({"memory_fraction": 1.5}, "sampler.memory_fraction=1.5"),
        ({"sleep_level": 3}, "sampler.sleep_level=3"),
        ({"max_model_len": 0}, "sampler.max_model_len=0"),
        ({"kv_cache_mib": -1}, "sampler.kv_cache_mib=-1"),
        ({"tensor_parallel_size": 0}, "sampler.tensor_parallel_size=0"),
    ]:
        with pytest.raises(ValueError, match=words):
            VLLMSampler(**values)


def test_ranks_must_divide_among_engines(small_policy: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"tensor_parallel_size=2 must divide .* are 1; set trainer.devices"):
        Sampler(tensor_parallel_size=2).setup(small_policy)


def test_misuse_is_named(small_policy: LanguageModel) -> None:
    sampler = Sampler()
    with pytest.raises(RuntimeError, match="before setup"):
        sampler.sample([[1]], PARAMS, [1, 2])
    sampler.setup(small_policy)
    with pytest.raises(ValueError, match="need as many seeds, got 1"):
        sampler.sample([[1]], PARAMS, [1])
    with pytest.raises(ValueError, match=r"data.temperature=2.5: vLLM takes at most 2"):
        sampler.sample([[1]], SamplingParams(n=1, max_tokens=3, temperature=2.5), [1])
    with pytest.raises(ValueError, match=r"127 tokens and 3 more .* sampler.max_model_len=128"):
        sampler.sample([[1] * 127], SamplingParams(n=1, max_tokens=3), [1])


def test_the_engine_is_told_the_trainers_distribution(small_policy: LanguageModel, tmp_path: Path) -> None:
    given = arguments(small_policy, EngineSettings(max_model_len=64, kv_cache_mib=8), tmp_path)
    assert given["logprobs_mode"] == "processed_logprobs"
    assert given["generation_config"] == "vllm"
    assert (given["max_model_len"], given["kv_cache_memory_bytes"]) == (64, 8 << 20)
    assert given["dtype"] == "float32"
    assert engine_dtype(EngineSettings(dtype="bfloat16"), small_policy) == torch.bfloat16


def test_the_config_names_the_architecture_and_no_file_format(
    small_policy: LanguageModel, tmp_path: Path
) -> None:
    small_policy.model.config.quantization_config = {"quant_method": "gguf"}
    write_config(small_policy, tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert '"Qwen3ForCausalLM"' in text
    assert "quantization_config" not in text
    assert small_policy.model.config.quantization_config  # the policy's own config is not touched
