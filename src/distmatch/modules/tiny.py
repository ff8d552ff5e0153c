"""The default model: a small stock Qwen3 decoder that reads compact prompts word by word.

Every word of a compact prompt is one token: a node `3`, an edge `0-3`, an edge with its length `0-3=7`, an
item's weight and value `5/9`. Commas and spaces only separate, so an answer `Answer: [3, 0, 5]` costs one
token an item.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from distmatch.modules.language_model import LanguageModel, load_language_model

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
TASK_WORDS = (
    "knapsack",
    "tsp",
    "coloring",
    "clique",
    "independent_set",
    "hamiltonian",
    "bisection",
    "set_cover",
    "subset_sum",
    "meeting",
    "vertex_cover",
    "dominating_set",
    "maximum_cut",
    "feedback_vertex_set",
    "lab",
)
NODES = 8
"""Node and edge tokens exist for graphs of at most this many nodes."""


def load_tiny(
    weights: str = "shipped",
    hidden_size: int = 128,
    layers: int = 5,
    heads: int = 4,
    key_value_heads: int = 2,
    intermediate_size: int = 384,
    init_std: float = 0.06,
    window: int = 128,
    seed: int = 0,
) -> LanguageModel:
    """The tiny model.

    Args:
        weights: `shipped` for the warm-started checkpoint in the package, `random` for fresh ones of the
            sizes below, or a folder that `stage=warm_start` or an export wrote.
        hidden_size: H of random weights, like all that follows.
        layers: Decoder layers.
        heads: Attention heads of dimension 32.
        key_value_heads: Heads that keys and values have.
        intermediate_size: Width of the feed-forward layers.
        init_std: Standard deviation of random weights; 0.06 learns to read faster than the usual 0.02 at this
            size.
        window: Longest sequence in tokens.
        seed: Of random weights.

    Raises:
        ValueError: The folder does not exist, or the heads do not divide.
    """
    if heads % key_value_heads:
        raise ValueError(f"model.key_value_heads={key_value_heads} must divide model.heads={heads}")
    if weights == "random":
        sizes = {"hidden_size": hidden_size, "num_hidden_layers": layers, "num_attention_heads": heads}
        sizes |= {"num_key_value_heads": key_value_heads, "intermediate_size": intermediate_size}
        model = build_model(seed, initializer_range=init_std, max_position_embeddings=window, **sizes)
        return LanguageModel(model.train(), build_tokenizer(), "compact")
    folder = shipped_folder() if weights == "shipped" else Path(weights)
    if not (folder / "config.json").exists():
        raise ValueError(
            f"model.weights={weights!r}: no model in {folder}; use 'shipped', 'random' or a model folder"
        )
    return load_language_model(str(folder), style="compact")


def shipped_folder() -> Path:
    """Where the package keeps the warm-started checkpoint and its manifest."""
    return Path(str(files("distmatch"))) / "assets" / "tiny"


def build_model(seed: int, **sizes: float) -> Qwen3ForCausalLM:
    """A Qwen3 decoder with random weights, tied embeddings and the smallest heads that vLLM takes, 32."""
    config = Qwen3Config(
        vocab_size=len(vocabulary()),
        head_dim=32,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"),
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def vocabulary() -> list[str]:
    """All words, in the order of their ids."""
    digits = range(1, 10)
    edges = [f"{i}-{j}" for i in range(NODES) for j in range(i + 1, NODES)]
    return [
        *SPECIAL,
        "Answer:",
        "[",
        "]",
        *TASK_WORDS,
        *(str(n) for n in range(100)),
        *"abcdefgh",
        *(f"{weight}/{value}" for weight in digits for value in digits),
        *edges,
        *(f"{edge}={length}" for edge in edges for length in digits),
    ]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Splits at spaces, commas and colons, and puts the commas of a list of numbers back when it decodes."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary())}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?<!Answer):|[\s,]+"), "removed"),
            pre_tokenizers.Split(Regex(r"[\[\]]"), "isolated"),
        ]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", SPECIAL.index("<bos>"))]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=\d) (?=\d)"), ", "),
            decoders.Replace("[ ", "["),
            decoders.Replace(" ]", "]"),
            decoders.Replace("] [", "], ["),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
