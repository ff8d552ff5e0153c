"""What a running vLLM server says about itself, and whether it can sample for a training run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from distmatch.sampling.vllm_client import Host, Refused, ServerError
from distmatch.settings.engines import VLLM_RANGE, check_vllm
from distmatch.settings.errors import ConfigError

QUESTION_TIMEOUT = 60.0
"""Seconds for an answer about a server's settings; gathering them takes a while."""
START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve <model> --logprobs-mode processed_logprobs --max-model-len <tokens>"
)


@dataclass(frozen=True)
class Server:
    """What a server says about itself.

    Attributes:
        host: Where it is.
        model: The name that requests give.
        max_model_len: Longest prompt plus completion in tokens.
        dtype: Of its weights.
    """

    host: Host
    model: str
    max_model_len: int
    dtype: torch.dtype


def inspect(host: Host) -> Server:
    """Ask a server what it is.

    Raises:
        ConfigError: It does not answer, is of an unsupported version, or was started in another way.
    """
    host.start_watch()
    try:
        host.call("GET", "/health", timeout=QUESTION_TIMEOUT)
        version = str(host.call("GET", "/version", timeout=QUESTION_TIMEOUT)["version"])
        model = host.call("GET", "/v1/models", timeout=QUESTION_TIMEOUT)["data"][0]
        about = host.call("GET", "/server_info?config_format=json", timeout=QUESTION_TIMEOUT)
    except Refused as error:
        if error.status != 404:
            raise ConfigError(f"sampler.hosts: {error}") from error
        raise ConfigError(
            f"sampler.hosts: {host.url} does not take new weights; start it as `{START}`"
        ) from error
    except ServerError as error:
        raise ConfigError(f"sampler.hosts: {error}; start it as `{START}`, or use sampler=hf") from error
    _check_version(host, version)
    config = about["vllm_config"]["model_config"]
    if config["logprobs_mode"] != "processed_logprobs":
        raise ConfigError(
            f"sampler.hosts: {host.url} reports {config['logprobs_mode']}, which ignore the temperature; "
            "start it with --logprobs-mode processed_logprobs"
        )
    dtype = getattr(torch, str(config["dtype"]).removeprefix("torch."))
    return Server(host, str(model["id"]), int(model["max_model_len"]), dtype)


def _check_version(host: Host, version: str) -> None:
    try:
        check_vllm(version)
    except ConfigError:
        raise ConfigError(
            f"sampler.hosts: {host.url} runs vLLM {version}, and sampler=vllm_server supports {VLLM_RANGE}"
        ) from None
