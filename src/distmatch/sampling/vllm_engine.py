"""Starting and stopping vLLM inside the trainer's process, without a trace in the trainer.

The files `vllm*.py` of this folder hold all that the package knows of vLLM. None of them imports it before an
engine is asked for.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.engine_weights import plain_model
from distmatch.sampling.vllm_memory import Needs, cache_per_token, estimate
from distmatch.sampling.vllm_process import SECLUSION, needs_launcher, told_ranks
from distmatch.settings.engines import check_vllm
from distmatch.settings.errors import ConfigError

MIB = 1 << 20
DTYPES = ("auto", "float32", "bfloat16", "float16")
CPU_CACHE_MIB = 256
"""KV cache of a CPU engine, beside its longest sequence; vLLM itself would take a share of all memory."""


@dataclass(frozen=True)
class EngineSettings:
    """What `VLLMSampler` was asked for; its docstring explains each.

    Raises:
        ValueError: A value is out of its range.
    """

    dtype: str = "auto"
    max_model_len: int | None = None
    memory_fraction: float = 0.3
    kv_cache_mib: int | None = None
    tensor_parallel_size: int = 1
    sleep_level: int = 0
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"sampler.dtype={self.dtype!r} must be one of: {', '.join(DTYPES)}")
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"sampler.memory_fraction={self.memory_fraction} must be above 0 and at most 1")
        if self.sleep_level not in (0, 1, 2):
            raise ValueError(f"sampler.sleep_level={self.sleep_level} must be 0, 1 or 2")
        for name in ("max_model_len", "kv_cache_mib"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"sampler.{name}={value} must be at least 1, or null")
        if self.tensor_parallel_size < 1:
            raise ValueError(f"sampler.tensor_parallel_size={self.tensor_parallel_size} must be at least 1")


class Engine(Protocol):
    """The part of `vllm.LLM` that is used: public, and the same in every supported version."""

    def generate(
        self, prompts: Sequence[Any], sampling_params: Sequence[Any], *, use_tqdm: bool
    ) -> list[Any]:
        """Run all requests to their ends."""

    def collective_rpc(self, method: str, *, kwargs: Mapping[str, Any]) -> list[Any]:
        """Call a method of every worker."""

    def reset_prefix_cache(self) -> bool:
        """Forget the keys and values of all prompts; False if that was not possible."""

    def sleep(self, level: int) -> None:
        """Free memory: 1 moves the weights to host memory, 2 drops them; both drop the KV cache."""

    def wake_up(self, tags: list[str]) -> Any:
        """Take back the memory of `weights` or `kv_cache`."""


def engine_dtype(settings: EngineSettings, policy: LanguageModel) -> torch.dtype:
    """What the engine computes in: on a GPU at most two bytes, for vLLM's fast kernels take no float32."""
    own = next(policy.model.parameters()).dtype
    if settings.dtype != "auto":
        return getattr(torch, settings.dtype)
    return torch.bfloat16 if policy.device.type == "cuda" and own == torch.float32 else own


def start_engine(policy: LanguageModel, settings: EngineSettings, folder: Path) -> Engine:
    """Start an engine with the policy's shape and no weights; they come with the first sync.

    Args:
        policy: Gives shape, dtype and device.
        settings: Of the sampler.
        folder: An empty folder for the model's config; it must outlive the engine.

    Raises:
        ConfigError: vLLM is missing, unsupported, built for another device, short of memory, or refuses.
    """
    set_environment()
    check_memory(policy, settings)
    write_config(policy, folder)
    with SECLUSION.entered(), told_ranks(policy.device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about vLLM's own use of torch
        vllm = import_vllm(policy.device)
        try:
            return vllm.LLM(**arguments(policy, settings, folder))
        except (*engine_errors(), ValueError) as error:
            raise ConfigError(f"sampler=vllm: the engine did not start: {error}") from error


def arguments(policy: LanguageModel, settings: EngineSettings, folder: Path) -> dict[str, Any]:
    """What `vllm.LLM` is called with."""
    given: dict[str, Any] = {
        "model": str(folder),
        "load_format": "dummy",  # no weights are read or written: the first sync brings them
        "skip_tokenizer_init": True,  # ids in, ids out
        "generation_config": "vllm",  # not the folder's top_k and penalties, which the trainer would not know
        "dtype": str(engine_dtype(settings, policy)).removeprefix("torch."),
        "max_model_len": settings.max_model_len or policy.window,
        "logprobs_mode": "processed_logprobs",  # after the temperature, as the trainer scores
        "enable_prefix_caching": True,
        "seed": 0,  # every request has its own
        "tensor_parallel_size": settings.tensor_parallel_size,
    }
    if needs_launcher(policy.device):
        given["distributed_executor_backend"] = "external_launcher"
    cache = settings.kv_cache_mib
    if policy.device.type != "cuda":
        size = cache * MIB if cache else _cpu_cache(policy, given["max_model_len"])
        return given | {"enforce_eager": True, "kv_cache_memory_bytes": size}
    given |= {"enforce_eager": settings.enforce_eager, "enable_sleep_mode": settings.sleep_level > 0}
    given |= {"gpu_memory_utilization": settings.memory_fraction}
    return given | ({"kv_cache_memory_bytes": cache * MIB} if cache else {})


def _cpu_cache(policy: LanguageModel, length: int) -> int:
    """Bytes for one sequence of the longest kind, which vLLM insists on, and some more."""
    per_token = 4 * cache_per_token(plain_model(policy).config.to_dict())
    return CPU_CACHE_MIB * MIB + length * per_token


def set_environment() -> None:
    """Environment variables that vLLM reads when it is imported or when an engine starts."""
    # The engine lives in this process: weights are handed over as tensors, and scheduling is deterministic.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing is sent anywhere
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # a start logs two screens, and each sync a warning


def import_vllm(device: torch.device) -> Any:
    """The module `vllm`, if it is one that works here.

    Raises:
        ConfigError: It is not installed, of an unsupported version, or built for another device.
    """
    if find_spec("vllm") is None:
        check_vllm(None)
    import vllm
    from vllm.platforms import current_platform

    check_vllm(vllm.__version__)
    if current_platform.is_cpu() != (device.type == "cpu"):
        built = "the CPU" if current_platform.is_cpu() else current_platform.device_type
        raise ConfigError(
            f"sampler=vllm: the installed vLLM is built for {built} and the policy is on {device.type}; set "
            "trainer.accelerator to match, or install the other build"
        )
    return vllm


def engine_errors() -> tuple[type[Exception], ...]:
    """What a failing engine raises: its own errors, torch's (memory, CUDA and NCCL too), the system's."""
    own = sys.modules.get("vllm.exceptions")  # not loaded: no engine has run
    return (RuntimeError, OSError, AssertionError, *((own.VLLMError,) if own else ()))


def check_memory(policy: LanguageModel, settings: EngineSettings) -> None:
    """Before a GPU engine starts: say what will need how much, and refuse what cannot fit.

    Raises:
        ConfigError: With the setting to change.
    """
    if policy.device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(policy.device).total_memory
    needs = Needs.of(policy, engine_dtype(settings, policy), settings.tensor_parallel_size)
    length = settings.max_model_len or policy.window
    plan = estimate(needs, total, settings.memory_fraction, length, sleeps=settings.sleep_level > 0)
    if not (dist.is_initialized() and dist.get_rank()):
        print(plan.text(), file=sys.stderr)
    if plan.refusal:
        raise ConfigError(plan.refusal)


def write_config(policy: LanguageModel, folder: Path) -> None:
    """The model's config as vLLM reads it: which architecture, how large."""
    model = plain_model(policy)
    config = copy.deepcopy(model.config)
    config.architectures = config.architectures or [type(model).__name__]
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config  # of the file that it was loaded from; the weights sent are plain
    config.save_pretrained(folder)
