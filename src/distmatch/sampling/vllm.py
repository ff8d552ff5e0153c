"""Sampling with vLLM, in the trainer's process and on its device.

The engine has weights of its own. Three things can silently go wrong with that, and each is one method here:
weights that are not the policy's (`_load_weights`), keys and values of old weights (`_reset_cache`), and
log-probabilities of another distribution than the trainer scores (`_request`).
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import tempfile
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.engine_weights import check_weights, engine_weights
from distmatch.sampling.failure import SamplerFailure
from distmatch.sampling.tensor_parallel import TensorParallelGroup
from distmatch.sampling.vllm_engine import (
    Engine,
    EngineSettings,
    engine_dtype,
    engine_errors,
    start_engine,
)
from distmatch.sampling.vllm_process import SECLUSION, keeping_process_group
from distmatch.settings.engines import VLLM_HIGHEST_TEMPERATURE

LEAST_TEMPERATURE = 0.01
"""vLLM raises lower ones to this, with a warning; here they take the likeliest token."""


class VLLMSampler:
    """An engine beside the trainer: every rank has its own, or shares one with its neighbours.

    Args:
        dtype: Of the engine. `auto`: bfloat16 on a GPU for a policy in float32, else the policy's own.
        max_model_len: Longest prompt plus completion in tokens; null takes the model's window. A lower value
            lets more sequences run side by side.
        memory_fraction: Share of the GPU's memory for the engine: weights, working memory, KV cache.
        kv_cache_mib: Size of the KV cache; null: what `memory_fraction` leaves, 256 on the CPU.
        tensor_parallel_size: Neighbouring ranks that share one engine, for models that do not fit on one GPU.
        sleep_level: What the engine does while the trainer updates: 0 stays, 1 moves its weights to host
            memory, 2 drops them; 1 and 2 free its KV cache. No effect on the CPU.
        enforce_eager: Skip CUDA graphs: starts sooner, samples slower.

    Raises:
        ValueError: A value is out of its range.
    """

    def __init__(
        self,
        dtype: str = "auto",
        max_model_len: int | None = None,
        memory_fraction: float = 0.3,
        kv_cache_mib: int | None = None,
        tensor_parallel_size: int = 1,
        sleep_level: int = 0,
        enforce_eager: bool = False,
    ) -> None:
        self.settings = EngineSettings(
            dtype,
            max_model_len,
            memory_fraction,
            kv_cache_mib,
            tensor_parallel_size,
            sleep_level,
            enforce_eager,
        )
        self._engine: Engine | None = None
        self._policy: LanguageModel | None = None
        self._asleep: set[str] = set()

    # ---- the contract --------------------------------------------------------------------------------------

    def setup(self, policy: LanguageModel) -> None:
        """Start the engine, if it does not run yet, and give it the policy's weights.

        Raises:
            ConfigError: vLLM is missing, unsupported, built for another device, or short of memory.
            ValueError: The policy's weights cannot be sent to an engine, or the ranks do not divide.
        """
        if self._engine is None:
            check_weights(policy)
            self._ranks = TensorParallelGroup(self.settings.tensor_parallel_size)
            self._joined_group = dist.is_initialized()
            self._folder = tempfile.TemporaryDirectory(prefix="distmatch-vllm-")
            self._sleeps = self.settings.sleep_level > 0 and policy.device.type == "cuda"
            self._engine = self._start(policy, Path(self._folder.name))
            atexit.register(self.close)  # a run that an error ends does not reach its teardown
        self.sync(policy)

    def sync(self, policy: LanguageModel) -> None:
        """Load the policy's weights in place and forget what was computed from older ones.

        The order is fixed: memory for weights, weights, prefix cache, memory for keys and values.
        """
        self._policy = policy
        with self._guarded("loading weights"):
            self._wake("weights")
            self._load_weights(policy)
            self._reset_cache()
            self._wake("kv_cache")

    def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> Completions:
        """See `Sampler.sample`. Tensors are on the CPU.

        Temperatures below 0.01, the least that vLLM knows, take the likeliest token with log-probability 0.

        Raises:
            SamplerFailure: The engine failed.
        """
        policy = self._ready(prompts, params, seeds)
        if self._asleep and self.settings.sleep_level == 2:
            self.sync(policy)  # its weights are gone
        rows = [prompt for prompt in prompts for _ in range(params.n)]
        rows, seeds, own = self._ranks.gather(rows, seeds)
        requests = [self._request(params, seed) for seed in seeds]
        tokens = [{"prompt_token_ids": list(row)} for row in rows]
        with self._guarded("sampling"):
            self._wake("weights", "kv_cache")
            outputs = self._engine.generate(tokens, requests, use_tqdm=False)
            self._sleep()
        drawn = self._completions(outputs[own])
        if params.temperature < LEAST_TEMPERATURE:  # no draw at all: vLLM reports the values at temperature 1
            drawn = dataclasses.replace(drawn, logprobs=torch.zeros_like(drawn.logprobs))
        return drawn

    def close(self) -> None:
        """Stop the engine and give its memory back; safe to call twice."""
        if self._engine is None:
            return
        atexit.unregister(self.close)
        with SECLUSION.entered(), keeping_process_group(theirs=self._joined_group):
            alive = weakref.ref(self._engine)
            self._engine = self._policy = None  # the last reference: vLLM shuts down
            if alive() is not None:
                gc.collect()  # an exception's traceback held it
        self._asleep = set()
        self._folder.cleanup()

    # ---- what must not go wrong ----------------------------------------------------------------------------

    def _load_weights(self, policy: LanguageModel) -> None:
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights(policy)})

    def _weights(self, policy: LanguageModel) -> Iterator[tuple[str, Tensor]]:
        return engine_weights(policy, engine_dtype(self.settings, policy))

    def _reset_cache(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise SamplerFailure("vLLM did not reset its prefix cache, so old weights would speak through it")

    def _request(self, params: SamplingParams, seed: int) -> Any:
        """One row's request: nothing but temperature and top_p changes the distribution."""
        from vllm import SamplingParams as Request

        return Request(
            n=1,  # a row of its own for each seed; the prefix cache reads a prompt only once
            temperature=params.temperature if params.temperature >= LEAST_TEMPERATURE else 0.0,
            top_p=params.top_p,
            max_tokens=params.max_tokens,
            seed=seed,
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            stop_token_ids=sorted(self._policy.eos_ids),
            ignore_eos=True,  # the line above names all of them
            detokenize=False,
        )

    def _completions(self, outputs: Sequence[Any]) -> Completions:
        """Requests as padded tensors, in the order in which they were made."""
        rows = [output.outputs[0] for output in outputs]
        ids = [list(row.token_ids) for row in rows]
        for row, tokens in zip(rows, ids, strict=True):
            if row.finish_reason not in ("stop", "length") or list(row.logprobs.token_ids) != tokens:
                raise SamplerFailure(
                    f"vLLM returned {len(tokens)} tokens, {len(row.logprobs.token_ids)} log-probabilities, "
                    f"and the reason {row.finish_reason!r}"
                )
        return Completions(
            ids=_padded(ids, torch.long),
            mask=_padded([[True] * len(tokens) for tokens in ids], torch.bool),
            logprobs=_padded([list(row.logprobs.logprobs) for row in rows], torch.float32),
            finished=torch.tensor([row.finish_reason == "stop" for row in rows]),
        )

    # ---- details -------------------------------------------------------------------------------------------

    def _start(self, policy: LanguageModel, folder: Path) -> Engine:
        return start_engine(policy, self.settings, folder)

    def _ready(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> LanguageModel:
        if self._engine is None or self._policy is None:
            raise RuntimeError("VLLMSampler.sample was called before setup")
        if len(seeds) != len(prompts) * params.n:
            raise ValueError(
                f"{len(prompts)} prompts x {params.n} samples need as many seeds, got {len(seeds)}"
            )
        if params.temperature > VLLM_HIGHEST_TEMPERATURE:
            raise ValueError(
                f"data.temperature={params.temperature}: vLLM takes at most {VLLM_HIGHEST_TEMPERATURE}; "
                "use sampler=hf"
            )
        longest = max(map(len, prompts))
        room = self.settings.max_model_len or self._policy.window
        if longest + params.max_tokens > room:
            raise ValueError(
                f"a prompt of {longest} tokens and {params.max_tokens} more do not fit into "
                f"sampler.max_model_len={room}"
            )
        return self._policy

    def _wake(self, *parts: str) -> None:
        for part in parts:
            if part in self._asleep:
                self._engine.wake_up(tags=[part])
                self._asleep.discard(part)

    def _sleep(self) -> None:
        if self._sleeps:
            self._engine.sleep(level=self.settings.sleep_level)
            self._asleep = {"weights", "kv_cache"}

    @contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        """A call to the engine: the process stays as it was, and what the engine raises becomes one error."""
        try:
            with SECLUSION.entered(), _uncompiled(self._policy.device):
                yield
        except engine_errors() as error:
            if isinstance(error, SamplerFailure):
                raise
            traceback.clear_frames(error.__traceback__)  # or they keep the engine alive beyond `close`
            raise SamplerFailure(f"vLLM failed while {doing}: {type(error).__name__}: {error}") from error


@contextmanager
def _uncompiled(device: torch.device) -> Iterator[None]:
    """On the CPU the first sampling would compile a kernel for 5 to 18 seconds, to no use."""
    if device.type == "cuda":
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows], dtype=dtype)
