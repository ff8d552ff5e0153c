"""Samplers with one fault each, of the kind that training would not notice by itself, and one that dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.engine_weights import plain_model
from distmatch.sampling.vllm import VLLMSampler


class SyncsOnce(VLLMSampler):
    """Keeps the weights of the first sync."""

    loads = 0

    def _load_weights(self, policy: LanguageModel) -> None:
        self.loads += 1
        if self.loads == 1:
            super()._load_weights(policy)


class KeepsCache(VLLMSampler):
    """Never forgets the keys and values of old weights."""

    def _reset_cache(self) -> None:
        pass


class LeavesHeadOut(VLLMSampler):
    """Sends what `named_parameters` lists: of tied weights one name only."""

    def _weights(self, policy: LanguageModel) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in super()._weights(policy) if name != "lm_head.weight")


class PushesBase(VLLMSampler):
    """Sends the frozen base without its adapter."""

    def _weights(self, policy: LanguageModel) -> Iterator[tuple[str, Tensor]]:
        state = plain_model(policy).state_dict().items()
        return ((name.replace(".base_layer.", "."), w) for name, w in state if ".lora_" not in name)


class OwnTemperature(VLLMSampler):
    """Samples at another temperature than it was told."""

    def _request(self, params: SamplingParams, seed: int) -> Any:
        return super()._request(dataclasses.replace(params, temperature=0.6 * params.temperature), seed)


class ShiftsByOne(VLLMSampler):
    """Reports each token's log-probability one place late."""

    def _completions(self, outputs: Sequence[Any]) -> Completions:
        out = super()._completions(outputs)
        return dataclasses.replace(out, logprobs=torch.where(out.mask, out.logprobs.roll(1, dims=1), 0.0))


class Dies(VLLMSampler):
    """Its engine is found dead when the third state of the policy is to be loaded."""

    states: frozenset[str] = frozenset()

    def _load_weights(self, policy: LanguageModel) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        self.states |= {policy.weights_hash()}
        if len(self.states) == 3:
            raise EngineDeadError
        super()._load_weights(policy)
