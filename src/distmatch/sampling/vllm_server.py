"""Sampling with running vLLM servers, on this machine or on others.

Every row is a request of its own, with its own seed, so that a request that failed can be sent again. New
weights reach the servers as a folder that both sides can read, because that works for every kind of engine
and needs nothing but HTTP; the engine's own transfer over NCCL would be faster between GPUs and is not used,
as no GPU has run it here.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distmatch.batch import Completions
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.engine_weights import check_weights, engine_weights
from distmatch.sampling.failure import SamplerFailure
from distmatch.sampling.vllm import LEAST_TEMPERATURE
from distmatch.sampling.vllm_client import Host, ServerError
from distmatch.sampling.vllm_host import QUESTION_TIMEOUT, Server, inspect
from distmatch.sampling.weight_folder import remove_others, write_weights
from distmatch.settings.errors import ConfigError

HEARTBEAT = 2.0
"""Seconds between two looks at the servers' health."""


@dataclass(frozen=True)
class Job:
    """One POST request to one server."""

    host: Host
    path: str
    body: Mapping[str, Any]


class VLLMServerSampler:
    """Spreads rows over servers by their place in the batch, and pushes weights to all of them.

    Args:
        hosts: Addresses such as http://node7:8000.
        weights: A folder that this process can write and all servers can read, under the same path.
        requests_at_once: Rows that wait for an answer at the same time, over all servers.
        request_timeout: Seconds that a single completion, or loading weights, may take.
        patience: Seconds without a sign of life after which a server counts as dead and the run ends.

    Raises:
        ValueError: No host, one twice, an address that is none, or numbers out of range.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        weights: str,
        requests_at_once: int = 256,
        request_timeout: float = 1800.0,
        patience: float = 15.0,
    ) -> None:
        if not hosts or len(set(hosts)) != len(hosts):
            raise ValueError(f"sampler.hosts={list(hosts)} must be at least one address, each once")
        if requests_at_once < 1:
            raise ValueError(f"sampler.requests_at_once={requests_at_once} must be at least 1")
        if not (request_timeout > 0 and patience > 0):
            raise ValueError("sampler.request_timeout and sampler.patience must be above 0 seconds")
        self._hosts = [Host(url, patience) for url in hosts]
        self._weights = Path(weights).absolute()
        self._at_once, self._timeout = requests_at_once, request_timeout
        self._servers: list[Server] = []
        self._policy: LanguageModel | None = None

    # ---- the contract --------------------------------------------------------------------------------------

    def setup(self, policy: LanguageModel) -> None:
        """Ask the servers whether they can do what is needed.

        Raises:
            ConfigError: A server does not answer, is of an unsupported version, or was started otherwise.
            ValueError: The policy's weights cannot be sent to an engine.
        """
        check_weights(policy)
        self._policy = policy
        self._servers = [inspect(host) for host in self._hosts]
        if len({server.dtype for server in self._servers}) > 1:
            raise ConfigError(f"sampler.hosts={self._urls()}: the servers have different --dtype settings")

    def sync(self, policy: LanguageModel) -> None:
        """Write the weights, have every server load them and forget its cached prefixes.

        Rank 0 does it while the others wait; if it fails, all of them raise.

        Raises:
            SamplerFailure: A server is dead or cannot load them, or the folder cannot be written.
        """
        self._policy = policy
        if dist.is_initialized():
            dist.barrier()  # nobody may be sampling still
        weights = engine_weights(policy, self._servers[0].dtype)
        failed = None
        if _rank() == 0:
            try:
                self._push(weights)
            except (ServerError, OSError) as error:
                failed = str(error)
        else:
            for _ in weights:  # sharded weights are gathered by all ranks together
                pass
        failed = _from_rank_0(failed, policy.device)
        if failed is not None:
            raise SamplerFailure(f"the weights did not reach the vLLM servers: {failed}")

    def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> Completions:
        """See `Sampler.sample`. Tensors are on the CPU; temperatures below 0.01 are as with `sampler=vllm`.

        Raises:
            SamplerFailure: A server is dead, or answers what cannot be.
            ValueError: Another number of seeds than of rows, or a prompt too long for a server.
        """
        if not self._servers:
            raise RuntimeError("VLLMServerSampler.sample was called before setup")
        if len(seeds) != len(prompts) * params.n:
            raise ValueError(
                f"{len(prompts)} prompts x {params.n} samples need as many seeds, got {len(seeds)}"
            )
        self._check_lengths(prompts, params)
        eos = sorted(self._policy.eos_ids)
        jobs = []
        for row, seed in enumerate(seeds):
            place = row // params.n  # all rows of a prompt go to one server, which computes the prompt once
            server = self._servers[place % len(self._servers)]
            body = {"model": server.model, "prompt": list(prompts[place]), "seed": int(seed)}
            jobs.append(Job(server.host, "/v1/completions", body | _request(params, eos)))
        try:
            rows = [_row(answer) for answer in self._ask_all(jobs)]
        except ServerError as error:
            raise SamplerFailure(str(error)) from error
        drawn = _completions(rows, self._policy.eos_ids)
        if params.temperature < LEAST_TEMPERATURE:  # no draw at all: vLLM reports the values at temperature 1
            drawn = dataclasses.replace(drawn, logprobs=torch.zeros_like(drawn.logprobs))
        return drawn

    def close(self) -> None:
        """Let go of the servers, which keep running."""
        self._servers = []
        self._policy = None

    # ---- steps ---------------------------------------------------------------------------------------------

    def _push(self, weights: Any) -> None:
        # Never an old name again: a network file system may still show what was there before.
        folder = self._weights / f"push-{uuid.uuid4().hex[:12]}"
        write_weights(weights, folder)
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._ask_all([Job(host, "/collective_rpc", body) for host in self._hosts])
        for host in self._hosts:
            if not host.call("POST", "/reset_prefix_cache", timeout=QUESTION_TIMEOUT).get("success", True):
                raise ServerError(
                    f"the vLLM server {host.url} does not reset its prefix cache; perhaps somebody "
                    "else has requests running on it"
                )
        remove_others(folder)

    def _ask_all(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """Answers in the order of the jobs; a dead server ends the wait for all of them."""
        for host in self._hosts:
            host.start_watch()
        pool = ThreadPoolExecutor(min(self._at_once, len(jobs)))
        try:
            futures = [
                pool.submit(job.host.call, "POST", job.path, job.body, timeout=self._timeout) for job in jobs
            ]
            pending = set(futures)
            while pending:
                done, pending = wait(pending, HEARTBEAT, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                for host in {job.host for job in jobs} if pending else ():
                    host.watch()
        except BaseException:  # Ctrl-C too: threads that wait for an answer would keep the process alive
            for host in self._hosts:
                host.abort()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [future.result() for future in futures]

    def _check_lengths(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        longest = max(len(prompt) for prompt in prompts) + params.max_tokens
        for server in self._servers:
            if longest > server.max_model_len:
                raise ValueError(
                    f"prompt and completion may have {longest} tokens, and the vLLM server {server.host.url} "
                    f"was started with --max-model-len {server.max_model_len}; it must be {longest} or more"
                )

    def _urls(self) -> list[str]:
        return [host.url for host in self._hosts]


# ---- what servers are asked, and what they answer ----------------------------------------------------------


def _request(params: SamplingParams, eos: Sequence[int]) -> dict[str, Any]:
    """All that decides a distribution is said, or the model's generation_config.json would fill it in."""
    return {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature if params.temperature >= LEAST_TEMPERATURE else 0.0,
        "top_p": params.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,  # the policy's own list of EOS tokens decides
        "stop_token_ids": list(eos),
        "logprobs": 0,
        "return_token_ids": True,
    }


def _row(answer: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities of one completion."""
    choice = answer["choices"][0]
    ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if not ids or len(ids) != len(logprobs):
        raise ServerError(f"a vLLM server returned {len(ids)} tokens with {len(logprobs)} log-probabilities")
    return ids, logprobs


def _completions(rows: Sequence[tuple[list[int], list[float]]], eos: frozenset[int]) -> Completions:
    shape = (len(rows), max(len(ids) for ids, _ in rows))
    ids, mask, logprobs = torch.zeros(shape, dtype=torch.long), torch.zeros(shape).bool(), torch.zeros(shape)
    for row, (tokens, values) in enumerate(rows):
        part = (row, slice(len(tokens)))
        ids[part], mask[part], logprobs[part] = torch.tensor(tokens), True, torch.tensor(values)
    finished = torch.tensor([tokens[-1] in eos for tokens, _ in rows])
    return Completions(ids, mask, logprobs, finished)


# ---- ranks -------------------------------------------------------------------------------------------------


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _from_rank_0(message: str | None, device: torch.device) -> str | None:
    """What rank 0 has to say; the others wait for it."""
    if not dist.is_initialized():
        return message
    told = [message]
    dist.broadcast_object_list(told, src=0, device=device)
    return told[0]
