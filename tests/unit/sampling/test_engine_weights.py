"""Weights for engines: plain names, all of them, adapters merged without a trace in the policy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.engine_weights import check_weights, engine_weights


def adapted(policy: LanguageModel, **lora: object) -> LanguageModel:
    """The policy under an adapter whose B is not zero."""
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | lora
    model = get_peft_model(policy.model, LoraConfig(task_type="CAUSAL_LM", **given))
    made = LanguageModel(model, policy.tokenizer, "compact", adapted=True)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.trainable().values():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=rng))
    return made


def test_tied_weights_are_sent_under_both_names(small_policy: LanguageModel) -> None:
    weights = dict(engine_weights(small_policy, torch.float32))
    assert weights.keys() == small_policy.model.state_dict().keys()
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert not any(weight.requires_grad for weight in weights.values())


def test_weights_are_cast_one_by_one(small_policy: LanguageModel) -> None:
    before = small_policy.weights_hash()
    for name, weight in engine_weights(small_policy, torch.bfloat16):
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, small_policy.model.state_dict()[name].bfloat16())
    assert small_policy.weights_hash() == before


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_is_merged_as_by_the_formula(small_policy: LanguageModel, rslora: bool) -> None:
    """W + alpha / r * B A, or alpha / sqrt(r) for rank-stabilised adapters."""
    base = {name: weight.clone() for name, weight in small_policy.model.state_dict().items()}
    policy = adapted(small_policy, use_rslora=rslora)
    scaling = 8 / 4**0.5 if rslora else 8 / 4
    weights = dict(engine_weights(policy, torch.float32))
    assert weights.keys() == base.keys()
    changed = 0
    for name, weight in weights.items():
        layer = policy.model.get_base_model()
        factors = dict(layer.named_parameters())
        owner = name.removesuffix(".weight")
        down, up = (factors.get(f"{owner}.lora_{side}.default.weight") for side in "AB")
        expected = base[name] if down is None else base[name] + scaling * up @ down
        changed += down is not None
        assert torch.allclose(weight, expected, atol=1e-6)
    assert changed == 14


def test_a_hundred_readings_leave_the_policy_bit_for_bit(small_policy: LanguageModel) -> None:
    policy = adapted(small_policy)
    before = policy.frozen_hash(), policy.weights_hash()
    for _ in range(100):
        list(engine_weights(policy, torch.bfloat16))
    assert (policy.frozen_hash(), policy.weights_hash()) == before


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"use_dora": True}, "plain LoRA"),
        ({"lora_bias": True, "target_modules": ["q_proj"]}, "plain LoRA"),
        ({"modules_to_save": ["norm"]}, "norm"),
        ({"target_modules": ["embed_tokens"]}, "tied to lm_head"),
    ],
)
def test_other_adapters_are_refused(small_policy: LanguageModel, lora: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_weights(adapted(small_policy, **lora))


def test_an_adapter_merged_in_place_is_refused(small_policy: LanguageModel) -> None:
    policy = adapted(small_policy)
    policy.model.merge_adapter()
    with pytest.raises(ValueError, match="plain LoRA"):
        check_weights(policy)


@pytest.fixture
def mesh(tmp_path) -> Iterator[object]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_sharded_weights_arrive_whole(small_policy: LanguageModel, mesh: object) -> None:
    policy = adapted(small_policy)
    whole = dict(engine_weights(policy, torch.float32))
    for module in policy.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            shards = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            module.register_parameter(name, torch.nn.Parameter(shards))
    again = dict(engine_weights(policy, torch.float32))
    assert again.keys() == whole.keys()
    assert not any(isinstance(weight, DTensor) for weight in again.values())
    assert all(torch.equal(again[name], whole[name]) for name in whole)
