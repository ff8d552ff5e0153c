"""Engines with weights of their own, on the HF sampler's numbers; all but the first lie in one known way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler, join_completions, left_pad


class Engine:
    """A copy of the policy that is written to by `sync`, and otherwise honest."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = getattr(torch, dtype)
        self.syncs = 0
        self._twin: LanguageModel | None = None

    def setup(self, policy: LanguageModel) -> None:
        self._twin = policy.frozen_copy().to(self.dtype)

    def sync(self, policy: LanguageModel) -> None:
        self.syncs += 1
        self.load(policy)

    def load(self, policy: LanguageModel) -> None:
        self._twin.load_state_dict(policy.state_dict())

    def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> Completions:
        return draw(self._twin, prompts, params, seeds)

    def close(self) -> None:
        self._twin = None


def draw(
    policy: LanguageModel,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    seeds: Sequence[int],
) -> Completions:
    sampler = HFSampler()
    sampler.setup(policy)
    return sampler.sample(prompts, params, seeds)


class SkipsSync(Engine):
    """Takes the first weights that it is given, and no others."""

    def load(self, policy: LanguageModel) -> None:
        if self.syncs == 1:
            super().load(policy)


class StopsSyncing(Engine):
    """Takes new weights until `frozen` is set."""

    frozen = False

    def load(self, policy: LanguageModel) -> None:
        if not self.frozen:
            super().load(policy)


class SkipsSyncOnRank1(SkipsSync):
    """One of two engines is broken."""

    def load(self, policy: LanguageModel) -> None:
        if torch.distributed.get_rank() == 0 or self.syncs == 1:
            Engine.load(self, policy)


class BaseOnly(Engine):
    """Every push brings the frozen base."""

    def sample(self, *request: object) -> Completions:
        with self._twin.model.disable_adapter():
            return super().sample(*request)


class Warmer(Engine):
    """Samples, and scores, at another temperature than it was asked for."""

    factor = 0.8

    def sample(self, prompts: object, params: SamplingParams, seeds: object) -> Completions:
        return super().sample(
            prompts, dataclasses.replace(params, temperature=params.temperature * self.factor), seeds
        )


class RawLogprobs(Engine):
    """Samples at the right temperature, and reports log-probabilities at temperature 1."""

    def sample(self, prompts: object, params: SamplingParams, seeds: object) -> Completions:
        out = super().sample(prompts, params, seeds)
        ids, mask = left_pad([p for p in prompts for _ in range(params.n)], torch.device("cpu"))
        with torch.no_grad():
            raw = self._twin(ids, mask, out.ids, out.mask, temperature=1.0).logprobs
        return dataclasses.replace(out, logprobs=raw)


class Nucleus(Engine):
    """Samples from the likeliest tokens only."""

    def sample(self, prompts: object, params: SamplingParams, seeds: object) -> Completions:
        return super().sample(prompts, dataclasses.replace(params, top_p=0.9), seeds)


class Optimist(Engine):
    """A tenth of a nat too much on every token."""

    def sample(self, *request: object) -> Completions:
        out = super().sample(*request)
        return dataclasses.replace(out, logprobs=torch.where(out.mask, out.logprobs + 0.1, 0.0))


class Shifted(Engine):
    """Moves tokens or log-probabilities by one place."""

    def __init__(self, field: str, by: int) -> None:
        super().__init__()
        self._field, self._by = field, by

    def sample(self, *request: object) -> Completions:
        out = super().sample(*request)
        return dataclasses.replace(out, **{self._field: getattr(out, self._field).roll(self._by, dims=1)})


class KeepsCache(Engine):
    """Answers prompts whose first tokens it knows with the weights of the time when it met them."""

    block = 16

    def setup(self, policy: LanguageModel) -> None:
        super().setup(policy)
        self._known: dict[tuple[int, ...], LanguageModel] = {}

    def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> Completions:
        parts = []
        for i, prompt in enumerate(prompts):
            with_block = len(prompt) >= self.block
            now = self._twin.frozen_copy()
            then = self._known.setdefault(tuple(prompt[: self.block]), now) if with_block else now
            parts.append(draw(then, [prompt], params, seeds[i * params.n : (i + 1) * params.n]))
        return join_completions(parts)
