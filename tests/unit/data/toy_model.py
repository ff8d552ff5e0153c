"""A random language model of eight words, whose answers can be enumerated, and a stage that draws from it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from distmatch.modules.language_model import LanguageModel

TOY = "tests.unit.data.toy_model.load_toy"
LIMIT = 4
WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "a", "b", "lab", "0"]
EOS = 2


def load_toy(seed: int = 0, words: Sequence[str] = WORDS) -> LanguageModel:
    """A one-layer decoder with sharp random preferences."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = Qwen3Config(
        vocab_size=len(words),
        head_dim=32,
        intermediate_size=32,
        initializer_range=0.15,
        max_position_embeddings=16,
        attention_dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=EOS,
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return LanguageModel(model.train(), PreTrainedTokenizerFast(tokenizer_object=core, **special), "compact")


def all_answers(max_tokens: int) -> list[tuple[int, ...]]:
    """Every token string that ends with EOS, or that the limit cuts."""
    letters = [i for i in range(len(WORDS)) if i != EOS]
    ended = [(*s, EOS) for n in range(max_tokens) for s in itertools.product(letters, repeat=n)]
    return [*ended, *itertools.product(letters, repeat=max_tokens)]


def step_logprobs(policy: LanguageModel, prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> Tensor:
    """Next-token logits after each prefix, from plain forward passes without cache: (answers, T, V)."""
    width = max(map(len, answers))
    rows = torch.tensor([[*prompt, *a, *[0] * (width - len(a))] for a in answers])
    with torch.no_grad():
        logits = policy.model(input_ids=rows, use_cache=False).logits
    return logits[:, len(prompt) - 1 : -1].double()


def toy_config(folder: Path, **changes: object) -> DictConfig:
    """The parts of a run's config that the stage reads, on a model whose answers can be enumerated."""
    models = {
        "other": {"share": 1.0, "temperature": 0.9, "top_p": 1.0, "model": {"_target_": TOY, "seed": 1}}
    }
    cfg = OmegaConf.create(
        {
            "task": {
                "_target_": "distmatch.tasks.lab.Lab",
                "alphabet": 2,
                "length": 3,
                "modes": 1,
                "near": 2,
                "prompts": 1,
            },
            "reward": {"_target_": "distmatch.rewards.NPPaper"},
            "model": {"_target_": TOY, "seed": 0},
            "sampler": {"_target_": "distmatch.sampling.hf.HFSampler"},
            "data": {"temperature": 1.2, "max_tokens": LIMIT, "max_prompt_tokens": 8},
            "module": {"micro_batch_tokens": 512},
            "trainer": {"accelerator": "cpu"},
            "paths": {"cache_dir": str(folder / "cache"), "run_dir": str(folder / "run")},
            "proposals": {
                "prompts": 5,
                "samples": 6,
                "prompts_per_shard": 2,
                "seed": 0,
                "allow_truncated_support": False,
                "beta": 3.0,
                "partition": "sequence",
                "betas": [0, 3, 9],
                "models": models,
            },
        }
    )
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value, merge=False)
    return cfg
