"""Loading, encoding and scoring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from distmatch.batch import Prompt
from distmatch.modules.language_model import LanguageModel, load_language_model
from distmatch.modules.tiny import build_tokenizer, load_tiny, vocabulary
from distmatch.sampling.hf import left_pad

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)


def score(policy: LanguageModel, prompt: list[int], completion: list[int], pads: int = 0, tail: int = 0):
    prompt_ids, prompt_mask = left_pad([prompt], torch.device("cpu"))
    prompt_ids = torch.nn.functional.pad(prompt_ids, (pads, 0), value=7)
    prompt_mask = torch.nn.functional.pad(prompt_mask, (pads, 0))
    ids = torch.tensor([completion + [9] * tail])
    mask = torch.arange(len(completion) + tail)[None] < len(completion)
    return policy(prompt_ids, prompt_mask, ids, mask, temperature=1.0, entropy=True, prompt_hidden=True)


def gpt2() -> LanguageModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(vocabulary()), n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return LanguageModel(GPT2LMHeadModel(config).train().apply(no_dropout), build_tokenizer(), "compact")


def no_dropout(module: torch.nn.Module) -> None:
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0


def test_words_and_answers_survive_the_tokenizer() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer("Answer: [3, 0, 5]", add_special_tokens=False)["input_ids"]
    assert len(ids) == 6
    assert tokenizer.decode(ids) == "Answer: [3, 0, 5]"
    nested = "Answer: [[0, 1], [2, 3]]"
    assert tokenizer.decode(tokenizer(nested, add_special_tokens=False)["input_ids"]) == nested
    assert len(set(vocabulary())) == len(vocabulary())
    assert tokenizer("knapsack 21: 0 5/9, 1 3/4", add_special_tokens=False).tokens() == (
        ["knapsack", "21", "0", "5/9", "1", "3/4"]
    )


def test_a_word_outside_the_vocabulary_is_named(small_policy: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"cannot spell this prompt: 'tsp: 0-1=57'.*task.level=tiny"):
        small_policy.encode(Prompt("tsp: 0-1=57", "compact"))


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_left_and_right_padding_change_nothing(small_policy: LanguageModel, family: str) -> None:
    policy = small_policy if family == "qwen3" else gpt2()
    prompt, completion = [1, 8, 30, 31, 40], [4, 5, 22, 6, 2]
    plain = score(policy, prompt, completion)
    padded = score(policy, prompt, completion, pads=7, tail=3)
    assert torch.allclose(plain.logprobs, padded.logprobs[:, :5], atol=1e-5)
    assert torch.equal(padded.logprobs[:, 5:], torch.zeros(1, 3))
    assert torch.allclose(plain.entropy, padded.entropy[:, :5], atol=1e-5)
    assert torch.allclose(plain.prompt_hidden, padded.prompt_hidden, atol=1e-5)


def test_logprobs_are_those_of_plain_transformers(small_policy: LanguageModel) -> None:
    prompt, completion = [1, 8, 30], [4, 5, 6]
    logits = small_policy.model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    expected = [logits[2 + t, token].item() for t, token in enumerate(completion)]
    assert score(small_policy, prompt, completion).logprobs[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_prompt_of_one_token_and_an_empty_completion_are_legal(small_policy: LanguageModel) -> None:
    assert score(small_policy, [1], [2]).logprobs.shape == (1, 1)
    assert score(small_policy, [1], [], tail=2).logprobs.tolist() == [[0.0, 0.0]]


def test_natural_style_needs_a_chat_template(small_policy: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"model.style=natural needs a tokenizer with a chat template"):
        LanguageModel(small_policy.model, small_policy.tokenizer, "natural")


def test_natural_prompts_end_with_the_generation_header_and_have_one_bos(tmp_path: Path) -> None:
    policy = load_tiny("random", hidden_size=64, layers=1, heads=2, key_value_heads=1)
    policy.tokenizer.chat_template = "<bos>" + TEMPLATE
    policy.save(tmp_path)
    natural = load_language_model(str(tmp_path), "natural")
    ids = natural.encode(Prompt("tsp 3 4", "natural"))
    assert natural.tokenizer.convert_ids_to_tokens(ids) == ["<bos>", "tsp", "3", "4", "Answer:"]


def test_dropout_is_off_by_its_probability(tmp_path: Path) -> None:
    config = GPT2Config(
        vocab_size=len(vocabulary()), n_positions=64, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.5
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    policy = load_language_model(str(tmp_path), "compact")
    assert policy.training
    assert {m.p for m in policy.modules() if isinstance(m, torch.nn.Dropout)} <= {0.0}
    first, second = (score(policy, [1, 8], [4, 5]).logprobs for _ in range(2))
    assert torch.equal(first, second)


def test_export_reloads_in_plain_transformers_with_equal_logits(
    small_policy: LanguageModel, tmp_path: Path
) -> None:
    small_policy.save(tmp_path)
    twin = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[1, 8, 30, 31]])
    assert torch.equal(twin(ids).logits, small_policy.model(ids).logits)


@pytest.fixture
def adapted(small_policy: LanguageModel, tmp_path: Path) -> LanguageModel:
    small_policy.save(tmp_path)
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    policy = load_language_model(str(tmp_path), "compact", lora=lora)
    for name, parameter in policy.trainable().items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return policy


def test_lora_trains_the_adapter_only_and_merges_out_of_place(adapted: LanguageModel, tmp_path: Path) -> None:
    assert adapted.trainable()
    assert all("lora_" in name for name in adapted.trainable())
    before = adapted.frozen_hash()
    ids = torch.tensor([[1, 8, 30, 31]])
    for _ in range(3):
        adapted.save(tmp_path / "export")
    assert adapted.frozen_hash() == before
    twin = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert torch.allclose(twin(ids).logits, adapted.model(ids).logits, atol=1e-5)
    with adapted.model.disable_adapter():
        base = adapted.model(ids).logits
    assert not torch.allclose(twin(ids).logits, base, atol=1e-2)


def test_a_new_adapter_is_not_in_the_hash_and_a_trained_one_is(
    small_policy: LanguageModel, adapted: LanguageModel, tmp_path: Path
) -> None:
    """Stages and runs must agree on the reference, whatever the seed with which each makes its adapter."""
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    for seed in (0, 1):
        torch.manual_seed(seed)
        new = load_language_model(str(tmp_path), "compact", lora=lora)
        assert new.weights_hash() == small_policy.weights_hash()
    before = adapted.weights_hash()
    assert before != small_policy.weights_hash()
    with torch.no_grad():
        next(p for name, p in adapted.trainable().items() if "lora_A" in name).add_(1.0)
    assert adapted.weights_hash() != before


def test_an_adapter_of_the_embedding_counts_once_it_acts(small_policy: LanguageModel, tmp_path: Path) -> None:
    """There A begins with zeros and B with random numbers, under names of their own."""
    small_policy.save(tmp_path)
    lora = {"r": 4, "target_modules": ["embed_tokens"]}
    model = load_language_model(str(tmp_path), "compact", lora=lora)
    with torch.no_grad():
        next(p for name, p in model.trainable().items() if "lora_embedding_A" in name).add_(1.0)
    assert model.weights_hash() != small_policy.weights_hash()


def test_a_frozen_copy_keeps_the_weights_of_its_moment(small_policy: LanguageModel) -> None:
    reference = small_policy.frozen_copy()
    before = reference.weights_hash()
    with torch.no_grad():
        next(small_policy.model.parameters()).add_(1.0)
    assert reference.weights_hash() == before
    assert small_policy.weights_hash() != before
    assert not reference.trainable()
    assert small_policy.trainable()


def test_head_dimension_suits_vllm(small_policy: LanguageModel, tmp_path: Path) -> None:
    small_policy.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["head_dim"] >= 32


def test_missing_weights_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"model.weights='/no/such'"):
        load_tiny("/no/such")
