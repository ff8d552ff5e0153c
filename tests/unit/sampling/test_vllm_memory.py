"""The estimate before a GPU engine starts, for models whose figures are known."""

from __future__ import annotations

import torch

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.vllm_memory import GIB, WORKSPACE, Needs, cache_per_token, estimate

QWEN_7B = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}
QWEN_05B = {"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896}
PARAMETERS = 7_615_616_512
ADAPTER = Needs(2 * PARAMETERS + 160_000_000, 160_000_000, 320_000_000, 2 * PARAMETERS, 57_344)


def test_a_token_takes_two_heads_full_in_every_layer() -> None:
    """Qwen2.5-7B in bfloat16: 28 layers x 4 heads x 128 x keys and values x 2 bytes = 57,344."""
    assert 2 * cache_per_token(QWEN_7B) == 57_344
    assert 2 * cache_per_token(QWEN_05B) == 24 * 2 * 64 * 2 * 2
    assert cache_per_token(QWEN_7B | {"head_dim": 64}) == 28 * 4 * 64 * 2
    assert cache_per_token({k: v for k, v in QWEN_7B.items() if k != "num_key_value_heads"}) == 28 * 3584 * 2


def test_needs_are_counted_from_the_policy(small_policy: LanguageModel) -> None:
    count = sum(p.numel() for p in small_policy.parameters())
    needs = Needs.of(small_policy, torch.bfloat16)
    assert (needs.weights, needs.gradients, needs.optimizer) == (4 * count, 4 * count, 8 * count)
    assert needs.engine_weights == 2 * count
    assert needs.cache_per_token == 2 * 2 * 1 * 32 * 2  # keys and values x layers x heads x width x bytes
    assert Needs.of(small_policy, torch.bfloat16, tensor_parallel_size=2).engine_weights == count
    for weight in list(small_policy.parameters())[1:]:
        weight.requires_grad_(False)
    embeddings = next(small_policy.parameters()).numel()
    assert Needs.of(small_policy, torch.float32).optimizer == 8 * embeddings


def test_a_7b_adapter_fits_on_80_gib() -> None:
    plan = estimate(ADAPTER, 80 * GIB, 0.3, 4096)
    assert plan.refusal == ""
    assert plan.cache == int(24 * GIB) - 2 * PARAMETERS - WORKSPACE
    assert plan.free == 80 * GIB - int(24 * GIB) - (2 * PARAMETERS + 640_000_000)
    text = plan.text()
    tokens = plan.cache // 57_344
    for words in ("80.0 GiB", "14.2 GiB", f"{tokens:,} tokens", "30%", "sampler.memory_fraction"):
        assert words in text
    for knob in ("module.micro_batch_tokens", "sampler.max_model_len"):
        assert knob in text


def test_full_weights_in_float32_do_not_and_the_settings_are_named() -> None:
    needs = Needs(4 * PARAMETERS, 4 * PARAMETERS, 8 * PARAMETERS, 2 * PARAMETERS, 57_344)
    refusal = estimate(needs, 80 * GIB, 0.3, 4096).refusal
    assert "113.5 GiB" in refusal
    for knob in ("sampler.memory_fraction", "sampler.sleep_level=1", "model.lora"):
        assert knob in refusal
    assert estimate(needs, 141 * GIB, 0.15, 4096).refusal == ""


def test_too_small_a_share_names_the_least_that_works() -> None:
    refusal = estimate(ADAPTER, 80 * GIB, 0.1, 4096).refusal
    assert "sampler.memory_fraction=0.1 of 80.0 GiB" in refusal
    least = float(refusal.partition("set it to ")[2].split()[0])
    assert 0.19 < least < 0.21  # 14.2 + 1 + 0.2 GiB of 80
    assert estimate(ADAPTER, 80 * GIB, least, 4096).refusal == ""


def test_a_sleeping_engine_leaves_its_memory() -> None:
    needs = Needs(20 * GIB, 10 * GIB, 20 * GIB, 10 * GIB, 57_344)
    assert "sampler.sleep_level=1" in estimate(needs, 64 * GIB, 0.3, 4096).refusal
    plan = estimate(needs, 64 * GIB, 0.3, 4096, sleeps=True)
    assert plan.refusal == ""
    assert plan.free == 14 * GIB


def test_a_model_that_is_too_large_is_sent_to_more_gpus() -> None:
    assert "sampler.tensor_parallel_size" in estimate(ADAPTER, 12 * GIB, 0.9, 4096).refusal
