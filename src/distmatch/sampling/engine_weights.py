"""The policy's weights as an engine wants them: plain Hugging Face names, whole tensors, adapters merged.

Tensors come one at a time, so that only one is copied, cast, gathered or merged at any moment; the policy
itself is never written to.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from distmatch.modules.language_model import LanguageModel

_ADAPTER = "lora_"
"""What PEFT's own parameters begin with; a base weight beside them is `<module>.base_layer.<name>`."""


def plain_model(policy: LanguageModel) -> PreTrainedModel:
    """The Hugging Face model itself; under LoRA with the adapter's layers still inside."""
    return policy.model.get_base_model() if policy.adapted else policy.model


def engine_weights(policy: LanguageModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its plain name, tied ones under each of their names.

    A tied `lm_head.weight` must be among them: an engine may keep a packed copy of it, which stays as it was
    unless it is sent, and then the engine samples from a mixture of old and new weights without an error.

    Args:
        policy: The model; under LoRA each adapted weight is `W + scaling * B A`, computed out of place, in
            the policy's dtype, before it is cast.
        dtype: What floating-point weights are cast to.

    Yields:
        Name and detached tensor. Sharded weights are gathered, so every rank must run the loop to its end.

    Raises:
        ValueError: An adapter that is not `W + scaling * B A`, or weights that are flattened or quantised.
    """
    model = plain_model(policy)
    check_weights(policy)
    layers = _adapted_layers(policy)
    for name, tensor in model.state_dict().items():
        if f".{_ADAPTER}" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        owner, _, kind = plain.rpartition(".")
        weight = _whole(tensor)
        if kind == "weight" and owner in layers:
            weight = weight + _whole(_delta(layers[owner]))
        yield plain, weight.to(dtype) if weight.is_floating_point() else weight


def check_weights(policy: LanguageModel) -> None:
    """Refuse what `engine_weights` could only give wrongly.

    Raises:
        ValueError: See `engine_weights`.
    """
    model = plain_model(policy)
    for name, tensor in model.named_parameters():
        if "_flat_param" in name:
            raise ValueError(
                "this strategy flattens weights (FSDP1), and an engine needs them by name; "
                "use trainer.strategy=ddp or one that keeps them apart (FSDP2, `ModelParallelStrategy`)"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{name} is {tensor.dtype}: a quantised policy cannot be sent to an engine")
    tied = model.get_input_embeddings()
    for name, layer in _adapted_layers(policy).items():
        if _is_more_than_a_product(layer):
            raise ValueError(
                f"model.lora: the adapter of {name} is more than W + scaling * B A (DoRA, a bias, several "
                "adapters); a sampling engine takes plain LoRA, so leave use_dora, lora_bias and the like out"
            )
        if layer is tied and model.config.tie_word_embeddings:
            raise ValueError(f"model.lora adapts {name}, which is tied to lm_head; leave it out")
    strange = [n for n, _ in model.named_parameters() if ".modules_to_save." in n or "trainable_tokens" in n]
    if strange:
        raise ValueError(f"model.lora also trains {strange[0]}, which is no plain LoRA; leave it out")


def _adapted_layers(policy: LanguageModel) -> dict[str, nn.Module]:
    if not policy.adapted:
        return {}
    from peft.tuners.lora import LoraLayer

    found = plain_model(policy).named_modules()
    return {name: layer for name, layer in found if isinstance(layer, LoraLayer)}


def _is_more_than_a_product(layer: nn.Module) -> bool:
    biased = any(layer.lora_bias.values())
    return biased or bool(layer.lora_variant) or len(layer.active_adapters) != 1 or layer.merged


@torch.no_grad()
def _delta(layer: nn.Module) -> Tensor:
    return layer.get_delta_weight(layer.active_adapters[0])


def _whole(tensor: Tensor) -> Tensor:
    """A detached tensor with all its shards; a collective call where there are any."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
