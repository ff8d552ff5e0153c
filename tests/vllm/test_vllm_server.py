"""`sampler=vllm_server` with a real server: the policy's numbers before and after pushes, and its death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from distmatch.callbacks.sync_check import SyncCheck, SyncError
from distmatch.modules.language_model import LanguageModel, load_language_model
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.failure import SamplerFailure
from distmatch.sampling.hf import HFSampler
from distmatch.sampling.vllm_client import Host
from distmatch.sampling.vllm_server import VLLMServerSampler
from tests.vllm.models import LONG, NOISE, SHORT, gaps, move, rows, seeds, tied

pytestmark = pytest.mark.vllm
PARAMS = SamplingParams(n=4, max_tokens=16)
SETTINGS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
SETTINGS += ["--logprobs-mode", "processed_logprobs", "--kv-cache-memory-bytes", str(64 << 20)]


class Server:
    """A server process on a free port."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        environment |= {"VLLM_SERVER_DEV_MODE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [*program, "--host", "127.0.0.1", "--port", str(port), *SETTINGS],
                env=environment | {"HF_HUB_OFFLINE": "1"},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._log = log

    def wait(self, seconds: float = 240.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self._log.read_text()[-4000:]
            try:
                with urlopen(f"{self.url}/health", timeout=2):
                    return
            except (URLError, OSError):
                time.sleep(0.5)
        raise AssertionError(f"no server after {seconds} s: {self._log.read_text()[-4000:]}")

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the engine has a process of its own
        self.process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests here, of the tied model: its output weights are the ones that go stale."""
    folder = tmp_path_factory.mktemp("server")
    tied(seed=9).save(folder / "model")  # other weights than any policy here has
    server = Server(folder / "model", folder / "log.txt")
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def sampler(served: Server, tmp_path: Path, policy: LanguageModel, **settings: float) -> VLLMServerSampler:
    made = VLLMServerSampler([served.url], str(tmp_path / "weights"), **settings)
    made.setup(policy)
    made.sync(policy)
    return made


@pytest.mark.parametrize("prompts", [SHORT, LONG], ids=["short", "long"])
def test_its_numbers_are_the_policys_after_every_push(served: Server, tmp_path: Path, prompts) -> None:
    policy = tied()
    made = sampler(served, tmp_path, policy)
    told = seeds(4 * len(prompts))
    for temperature in (1.0, 0.6):
        params = SamplingParams(n=4, max_tokens=16, temperature=temperature)
        out = made.sample(prompts, params, told)
        assert gaps(policy, prompts, out, temperature).abs().max() < NOISE
        assert rows(made.sample(prompts, params, told)) == rows(out)
        move(policy, 0.05)
        assert gaps(policy, prompts, out, temperature).abs().max() > 100 * NOISE
        made.sync(policy)


def test_greedy_tokens_are_those_of_the_hf_sampler(served: Server, tmp_path: Path) -> None:
    policy = tied()
    made, own = sampler(served, tmp_path, policy), HFSampler()
    own.setup(policy)
    greedy = SamplingParams(n=1, max_tokens=24, temperature=0.001)
    assert rows(made.sample(SHORT, greedy, seeds(3))) == rows(own.sample(SHORT, greedy, seeds(3)))


def test_an_adapter_arrives_merged(served: Server, tmp_path: Path) -> None:
    tied().save(tmp_path / "model")
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    policy = load_language_model(str(tmp_path / "model"), "compact", lora=lora)
    move(policy, 0.2)
    out = sampler(served, tmp_path, policy).sample(SHORT, PARAMS, seeds(12))
    assert gaps(policy, SHORT, out).abs().max() < NOISE


def test_the_canary_passes_and_notices_a_push_that_did_not_happen(served: Server, tmp_path: Path) -> None:
    policy = tied()
    made, check = sampler(served, tmp_path, policy), SyncCheck(LONG, SamplingParams(n=2, max_tokens=16))
    for _ in range(2):
        assert check(policy, made).gap < NOISE
        move(policy, 0.05)
        made.sync(policy)
    check(policy, made)
    move(policy, 0.05)
    with pytest.raises(SyncError) as caught:
        check(policy, made)
    assert caught.value.cause == "old_weights"


def test_the_canary_names_a_cache_that_was_not_reset(
    served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tied()
    made, check = sampler(served, tmp_path, policy), SyncCheck(LONG, SamplingParams(n=2, max_tokens=16))
    check(policy, made)
    call = Host.call

    def forgetful(self: Host, method: str, path: str, *rest: object, **more: object) -> object:
        return {} if path == "/reset_prefix_cache" else call(self, method, path, *rest, **more)

    monkeypatch.setattr(Host, "call", forgetful)
    move(policy, 0.05)
    made.sync(policy)
    with pytest.raises(SyncError) as caught:
        check(policy, made)
    assert caught.value.cause == "stale_cache"


def test_the_death_of_the_server_ends_the_run_soon(served: Server, tmp_path: Path) -> None:
    """The last test here, for it kills the server."""
    policy = tied()
    made = sampler(served, tmp_path, policy, patience=5.0)
    served.process.kill()
    began = time.monotonic()
    with pytest.raises(SamplerFailure, match=r"resume=<run folder>"):
        made.sample(LONG, PARAMS, seeds(8))
    assert time.monotonic() - began < 15
