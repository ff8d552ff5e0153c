"""The server sampler against a fake server: spread, retried, pushed to, and ended in time when it dies.

That a real engine gives the policy's numbers is tested in tests/vllm; the contract in tests/contracts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from distmatch.modules.language_model import LanguageModel, load_language_model
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.failure import SamplerFailure
from distmatch.sampling.hf import HFSampler
from distmatch.sampling.vllm_server import VLLMServerSampler
from distmatch.sampling.weight_folder import remove_others, write_weights
from distmatch.settings.errors import ConfigError
from tests.fake_vllm import FakeServer

PROMPTS = [[1, 8, 30, 31, 40, 41], [1, 9], [1, 10, 50]]
PARAMS = SamplingParams(n=4, max_tokens=9)
SEEDS = [2**62 + 7919 * k for k in range(12)]
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}

Start = Callable[..., FakeServer]


@pytest.fixture
def start(small_policy: LanguageModel) -> Iterator[Start]:
    running: list[FakeServer] = []

    def started(**about: object) -> FakeServer:
        running.append(FakeServer(small_policy, **about))
        return running[-1]

    yield started
    for server in running:
        server.kill()


def sampler(tmp_path: Path, *servers: FakeServer, **settings: object) -> VLLMServerSampler:
    return VLLMServerSampler([s.url for s in servers], str(tmp_path / "weights"), **settings)


def ready(made: VLLMServerSampler, policy: LanguageModel) -> VLLMServerSampler:
    made.setup(policy)
    made.sync(policy)
    return made


def own(policy: LanguageModel) -> HFSampler:
    made = HFSampler()
    made.setup(policy)
    return made


# ---- the way of a row --------------------------------------------------------------------------------------


def test_rows_come_back_in_their_order_from_several_servers(
    start: Start, small_policy: LanguageModel, tmp_path: Path
) -> None:
    servers = [start(), start()]
    got = ready(sampler(tmp_path, *servers), small_policy).sample(PROMPTS, PARAMS, SEEDS)
    expected = own(small_policy).sample(PROMPTS, PARAMS, SEEDS)
    assert torch.equal(got.mask, expected.mask)
    assert torch.equal(got.ids[got.mask], expected.ids[got.mask])
    assert torch.equal(got.finished, expected.finished)
    assert torch.allclose(got.logprobs, expected.logprobs, atol=1e-5)
    assert [server.log.count("/v1/completions") for server in servers] == [8, 4]


def test_a_prompt_that_a_server_has_no_room_for_is_named_before_it_is_sent(
    start: Start, small_policy: LanguageModel, tmp_path: Path
) -> None:
    server = start(max_model_len=14)
    made = ready(sampler(tmp_path, server), small_policy)
    with pytest.raises(ValueError, match=r"may have 15 tokens.*--max-model-len 14; it must be 15 or more"):
        made.sample(PROMPTS, PARAMS, SEEDS)
    assert "/v1/completions" not in server.log


# ---- weights -----------------------------------------------------------------------------------------------


def test_a_push_reaches_every_server_and_resets_its_cache(
    start: Start, small_policy: LanguageModel, tmp_path: Path
) -> None:
    servers = [start(), start()]
    made = ready(sampler(tmp_path, *servers), small_policy)
    with torch.no_grad():
        for parameter in small_policy.trainable().values():
            parameter.mul_(1.1)
    made.sync(small_policy)
    for server in servers:
        assert server.log == ["/collective_rpc", "/reset_prefix_cache"] * 2
        state = server.twin.model.state_dict()
        for name, value in small_policy.model.state_dict().items():
            assert torch.equal(state[name], value), name
    assert len(list((tmp_path / "weights").iterdir())) == 1  # only the newest is kept


def test_an_adapter_is_pushed_merged_and_the_policy_left_alone(
    start: Start, small_policy: LanguageModel, tmp_path: Path
) -> None:
    small_policy.save(tmp_path / "model")
    adapted = load_language_model(str(tmp_path / "model"), "compact", lora=LORA)
    with torch.no_grad():
        for parameter in adapted.trainable().values():
            parameter.add_(0.05)
    before = adapted.weights_hash()
    made = ready(sampler(tmp_path, start()), adapted)
    got = made.sample(PROMPTS, PARAMS, SEEDS)
    expected = own(adapted).sample(PROMPTS, PARAMS, SEEDS)
    assert torch.equal(got.mask, expected.mask)
    assert torch.allclose(got.logprobs, expected.logprobs, atol=1e-5)
    assert adapted.weights_hash() == before


def test_weights_take_the_servers_number_format(
    start: Start, small_policy: LanguageModel, tmp_path: Path
) -> None:
    ready(sampler(tmp_path, start(dtype="torch.bfloat16")), small_policy)
    (file,) = (tmp_path / "weights").glob("push-*/*.safetensors")
    half = sum(p.numel() for p in small_policy.model.state_dict().values()) * 2
    assert half < file.stat().st_size < 1.1 * half


def test_large_weights_are_cut_into_files_and_appear_at_once(tmp_path: Path) -> None:
    tied = torch.arange(6.0)
    weights = {"a": tied, "b": tied, "c": torch.ones(2, 3).T}
    folder = tmp_path / "w" / "push-1"
    seen: list[bool] = []

    def given() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in weights.items():
            seen.append(folder.exists())
            yield name, value

    write_weights(given(), folder, shard_bytes=48)
    assert sorted(f.name for f in folder.iterdir()) == ["model-00001.safetensors", "model-00002.safetensors"]
    assert not any(seen)
    (folder.parent / "push-0.tmp").mkdir()
    (folder.parent / "other").mkdir()
    remove_others(folder)
    assert sorted(f.name for f in folder.parent.iterdir()) == ["other", "push-1"]


def test_a_disk_that_takes_nothing_still_runs_the_gathering_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rest = iter([("a", torch.ones(1)), ("b", torch.ones(1))])
    with pytest.raises(OSError):  # the system's own words
        write_weights(rest, tmp_path / "file" / "push-1")
    assert list(rest) == []


# ---- servers that will not do ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"dev": False}, "does not take new weights; start it as `VLLM_SERVER_DEV_MODE=1 vllm serve"),
        ({"logprobs_mode": "raw_logprobs"}, "start it with --logprobs-mode processed_logprobs"),
        ({"version": "0.21.3"}, r"runs vLLM 0\.21\.3, and sampler=vllm_server supports >=0\.32,<0\.34"),
    ],
)
def test_a_server_that_was_started_otherwise_is_refused(
    start: Start, small_policy: LanguageModel, tmp_path: Path, about: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        sampler(tmp_path, start(**about)).setup(small_policy)


def test_no_server_at_all(small_policy: LanguageModel, tmp_path: Path) -> None:
    made = VLLMServerSampler(["http://127.0.0.1:9"], str(tmp_path), patience=0.5)
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9 does not answer .*refused.*; start it as"):
        made.setup(small_policy)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hosts": []}, "at least one address"),
        ({"hosts": ["http://a:1", "http://a:1"]}, "each once"),
        ({"hosts": ["localhost:8000"]}, r"'localhost:8000' is no address such as http://node7:8000"),
        ({"hosts": ["http://a:1/v1"]}, "is written without /v1"),
        ({"requests_at_once": 0}, "requests_at_once=0 must be at least 1"),
        ({"patience": 0.0}, "must be above 0 seconds"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        VLLMServerSampler(**{"hosts": ["http://a:1"], "weights": str(tmp_path)} | settings)


# ---- servers that fail -------------------------------------------------------------------------------------


def test_a_passing_failure_is_tried_again(start: Start, small_policy: LanguageModel, tmp_path: Path) -> None:
    server = start()
    made = ready(sampler(tmp_path, server), small_policy)
    expected = made.sample(PROMPTS, PARAMS, SEEDS)
    server.failing = 5
    again = made.sample(PROMPTS, PARAMS, SEEDS)
    assert server.log.count("/v1/completions") == 12 + 12 + 5
    assert torch.equal(again.ids, expected.ids)


def test_a_server_that_fails_for_good_says_why(
    start: Start, small_policy: LanguageModel, tmp_path: Path
) -> None:
    server = start()
    made = ready(sampler(tmp_path, server, patience=1.0), small_policy)
    server.failing = 10**6
    with pytest.raises(SamplerFailure, match=r"does not answer \(status 500: EngineCore had a bad day\)"):
        made.sample(PROMPTS, PARAMS, SEEDS)
    with pytest.raises(SamplerFailure, match=r"weights did not reach the vLLM servers: .*bad day.*resume="):
        made.sync(small_policy)


def test_a_cache_that_is_not_reset_ends_the_run(
    start: Start, small_policy: LanguageModel, tmp_path: Path
) -> None:
    server = start()
    made = ready(sampler(tmp_path, server), small_policy)
    server.resets = False
    with pytest.raises(SamplerFailure, match="does not reset its prefix cache"):
        made.sync(small_policy)


@pytest.mark.parametrize("death", ["killed", "hung"])
def test_a_server_that_dies_while_it_samples(
    start: Start, small_policy: LanguageModel, tmp_path: Path, death: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends soon after `patience`, not after the time that a completion may take."""
    monkeypatch.setattr("distmatch.sampling.vllm_server.HEARTBEAT", 0.1)
    alive, dying = start(), start()
    made = ready(sampler(tmp_path, alive, dying, patience=1.0), small_policy)
    dying.delay = 600.0

    def die() -> None:
        if death == "killed":
            dying.kill()
        dying.well = False

    timer = threading.Timer(0.5, die)
    timer.start()
    began, before = time.monotonic(), threading.active_count()
    with pytest.raises(SamplerFailure, match=rf"{dying.url} is dead .*python train\.py resume=<run folder>"):
        made.sample(PROMPTS, PARAMS, SEEDS)
    assert time.monotonic() - began < 6
    time.sleep(0.3)
    senders = [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]
    assert not senders, f"{before} threads before, and these still wait: {senders}"
