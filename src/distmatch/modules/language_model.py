"""A causal language model with its tokenizer and prompt style: loading, encoding, scoring."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from distmatch.batch import PolicyOutput, Prompt, Style
from distmatch.ops import token_entropy, token_logprobs, where_mask

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Reference = Literal["initial_policy", "base"]


class LanguageModel(nn.Module):
    """A Hugging Face causal LM behind the four things the rest needs: encode, decode, score, and its EOS ids.

    Args:
        model: Any `PreTrainedModel` with a causal LM head, or a PEFT wrapper of one.
        tokenizer: Its tokenizer. The `natural` style needs a chat template.
        style: How tasks must phrase prompts for this model.
        adapted: Whether `model` is a frozen base under a LoRA adapter.

    Raises:
        ValueError: Natural style without a chat template, or no EOS token.
    """

    def __init__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, style: Style, *, adapted: bool = False
    ) -> None:
        super().__init__()
        if style == "natural" and tokenizer.chat_template is None:
            raise ValueError(
                "model.style=natural needs a tokenizer with a chat template, and this one has none; "
                "use an instruction-tuned model or model.style=compact"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.style: Style = style
        self.adapted = adapted
        self.eos_ids = _eos_ids(model, tokenizer)

    @property
    def window(self) -> int:
        """The longest sequence in tokens, prompt and completion together, that the model was built for."""
        return int(getattr(self.model.config, "max_position_embeddings", 1 << 30))

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.model.parameters()).device

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, ready to be continued; the only place where text becomes ids.

        Raises:
            ValueError: The prompt has pictures, or a compact one has a word that the vocabulary lacks.
        """
        if prompt.images:
            raise ValueError("this model reads text only, and the prompt has a picture; set task.form=text")
        if self.style == "compact":
            ids = list(self.tokenizer(prompt.text)["input_ids"])
            if self.tokenizer.unk_token_id is not None and self.tokenizer.unk_token_id in ids:
                raise ValueError(
                    f"the small vocabulary cannot spell this prompt: {prompt.text[:80]!r}; model=tiny "
                    "has words for the tiny suite (task.level=tiny); other tasks and levels need model=hf"
                )
            return ids
        messages = [{"role": "user", "content": prompt.text}]
        return list(
            self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion ids without special tokens: to verify and to read, never to train on."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def forward(
        self,
        prompt_ids: Tensor,  # (b, P)
        prompt_mask: Tensor,  # (b, P)
        completion_ids: Tensor,  # (b, T)
        completion_mask: Tensor,  # (b, T)
        *,
        temperature: float,
        entropy: bool = False,
        detach_entropy: bool = False,
        prompt_hidden: bool = False,
        value_head: nn.Module | None = None,
    ) -> PolicyOutput:
        """Score completions: log-probabilities at `temperature` and whatever else is asked for.

        Positions come from the mask, so left padding changes nothing. Masked places give zeros.
        """
        mask = torch.cat([prompt_mask, completion_mask], dim=1).long()
        length = completion_ids.shape[1]
        output = self.model(
            input_ids=torch.cat([prompt_ids, completion_ids], dim=1),
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            logits_to_keep=length + 1,
            use_cache=False,
            output_hidden_states=prompt_hidden or value_head is not None,
        )
        logits = output.logits[:, :-1]  # (b, T, V): the position before each completion token predicts it
        logprobs = token_logprobs(logits, completion_ids, temperature=temperature)
        spread = None
        if entropy:
            spread = token_entropy(logits.detach() if detach_entropy else logits, temperature=temperature)
        hidden = output.hidden_states[-1] if output.hidden_states else None  # (b, P+T, H)
        values = None if value_head is None else value_head(hidden[:, -length - 1 : -1]).squeeze(-1).float()
        return PolicyOutput(
            logprobs=where_mask(logprobs, completion_mask),
            entropy=None if spread is None else where_mask(spread, completion_mask),
            values=None if values is None else where_mask(values, completion_mask),
            prompt_hidden=_prompt_mean(hidden, prompt_mask) if prompt_hidden else None,
        )

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that training moves, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def frozen_hash(self) -> str:
        """Hex digest of the parameters that training leaves alone (the base under LoRA); '' if none."""
        frozen = [(name, p) for name, p in self.named_parameters() if not p.requires_grad]
        return _hash_tensors(frozen) if frozen else ""

    def weights_hash(self) -> str:
        """Hex digest of all parameters; of a LoRA model whose adapter changes nothing yet, that of its base.

        A new adapter has random numbers in A and zeros in B: it is another one in every process. Adapters of
        another form, as of embeddings, always count.
        """
        named = list(self.named_parameters())
        adapter = [(name, p) for name, p in named if "lora_" in name]
        if adapter and all(".lora_A." in n or (".lora_B." in n and not bool(p.any())) for n, p in adapter):
            base = [(name, p) for name, p in named if "lora_" not in name]
            # PEFT puts two words into the names of the base's weights.
            named = [(n.replace("base_model.model.", "").replace(".base_layer.", "."), p) for n, p in base]
        return _hash_tensors(named)

    def frozen_copy(self) -> LanguageModel:
        """A second model with these weights that never trains: the reference `initial_policy`."""
        twin = copy.copy(self)
        twin._modules = {"model": copy.deepcopy(self.model)}
        return twin.requires_grad_(False)

    def merged(self) -> PreTrainedModel:
        """The plain Hugging Face model that this policy is, adapters merged into a copy, never in place."""
        if not self.adapted:
            return self.model
        return copy.deepcopy(self.model).merge_and_unload()

    def save(self, folder: Path) -> None:
        """Write a plain Hugging Face folder that transformers and vLLM load."""
        self.merged().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_language_model(
    path: str,
    style: Style = "natural",
    dtype: str = "float32",
    lora: Mapping[str, object] | None = None,
    gguf_file: str | None = None,
    attn_implementation: str = "sdpa",
    revision: str | None = None,
) -> LanguageModel:
    """Load a policy from a hub id or a local folder.

    Dropout probabilities are set to zero in the config, not by eval mode, so that trainer and sampler agree.

    Args:
        path: Hub id or folder.
        style: `natural` for chat models, `compact` for the tiny model.
        dtype: Torch dtype of the weights by name.
        lora: Keyword arguments of `peft.LoraConfig`; None trains all parameters.
        gguf_file: Name of a GGUF file in `path` to load from.
        attn_implementation: Passed to transformers.
        revision: Branch, tag or commit on the hub.

    Raises:
        OSError: Nothing loadable at `path`.
        ValueError: See `LanguageModel`.
    """
    source = {"revision": revision} if gguf_file is None else {"gguf_file": gguf_file, "revision": revision}
    config = without_dropout(AutoConfig.from_pretrained(path, **source))
    extra = {} if gguf_file is None else {"quantization_config": _dequantize(), "gguf_file": gguf_file}
    model = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=attn_implementation,
        revision=revision,
        **extra,
    )
    tokenizer = AutoTokenizer.from_pretrained(path, **source)
    return LanguageModel(_with_lora(model, lora).train(), tokenizer, style, adapted=lora is not None)


def without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """The config with every dropout probability at zero."""
    for name, value in config.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
    return config


def _with_lora(model: PreTrainedModel, lora: Mapping[str, object] | None) -> nn.Module:
    if lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))


def _dequantize() -> object:
    from transformers import GgufConfig

    return GgufConfig(dequantize=True)


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    stated = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = {tokenizer.eos_token_id} | (set(stated) if isinstance(stated, list) else {stated})
    found = frozenset(i for i in ids if i is not None)
    if not found:
        raise ValueError(
            "the model has no EOS token, so no completion could ever end; set one in its tokenizer"
        )
    return found


def _prompt_mean(hidden: Tensor, prompt_mask: Tensor) -> Tensor:
    kept = where_mask(hidden[:, : prompt_mask.shape[1]].float(), prompt_mask[..., None])
    return kept.sum(dim=1) / prompt_mask.sum(dim=1, keepdim=True).clamp(min=1)  # (b, H)


def _hash_tensors(named: Sequence[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
