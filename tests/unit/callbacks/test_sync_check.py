"""The sync check: honest engines pass, every planted fault is caught and named."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from distmatch.callbacks.sync_causes import score_rows
from distmatch.callbacks.sync_check import EXACT, SyncCheck, SyncError, fixed_prompts
from distmatch.modules.language_model import LanguageModel, load_language_model
from distmatch.sampling.base import SamplingParams
from tests import engines
from tests.engines import Engine

REAL = [[1, 8, 30, 31, 40, 41, 50], [1, 9, 33, 34, 35], [1, 10, 50, 51, 52, 53]]
PROMPTS = fixed_prompts(REAL, count=2, length=40)
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}


@pytest.fixture
def policy(small_policy: LanguageModel) -> LanguageModel:
    """Sharper than a random model, so that temperatures and nuclei matter."""
    with torch.no_grad():
        small_policy.model.get_input_embeddings().weight.mul_(1.5)
    return small_policy


@pytest.fixture
def adapted(policy: LanguageModel, tmp_path: Path) -> LanguageModel:
    policy.save(tmp_path)
    return load_language_model(str(tmp_path), "compact", lora=LORA)


def check(temperature: float = 1.0, **settings: object) -> SyncCheck:
    return SyncCheck(PROMPTS, SamplingParams(n=2, max_tokens=16, temperature=temperature), **settings)


def started(engine: Engine, policy: LanguageModel) -> Engine:
    engine.setup(policy)
    engine.sync(policy)
    return engine


def update(policy: LanguageModel, size: float = 0.003, seed: int = 0) -> None:
    """Every trained weight moves by about `size`, as after an optimizer step."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(size * torch.randn(parameter.shape, generator=rng))


def caught(checked: SyncCheck, policy: LanguageModel, engine: Engine) -> SyncError:
    with pytest.raises(SyncError) as error:
        checked(policy, engine)
    return error.value


# ---- honest engines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_an_honest_engine_passes_through_training(policy: LanguageModel, temperature: float) -> None:
    checked, engine = check(temperature), started(Engine(), policy)
    for seed in range(4):
        report = checked(policy, engine)
        assert report.gap < 2e-5
        assert report.limit == (1e-3 if seed == 0 else EXACT)
        update(policy, seed=seed)
        engine.sync(policy)
    assert checked.floor < 2e-5


def test_an_honest_engine_passes_with_an_adapter(adapted: LanguageModel) -> None:
    checked, engine = check(), started(Engine(), adapted)
    for seed in range(3):
        assert checked(adapted, engine).gap < 2e-5
        update(adapted, 0.05, seed)
        engine.sync(adapted)


def test_a_bfloat16_engine_has_a_floor_of_its_own(policy: LanguageModel) -> None:
    checked, engine = check(engine_dtype="bfloat16"), started(Engine("bfloat16"), policy)
    for seed in range(4):
        report = checked(policy, engine)
        assert 1e-3 < report.gap < report.limit
        assert 1e-3 < report.rounding < 0.1
        update(policy, seed=seed)
        engine.sync(policy)


def bf16_mixed() -> AbstractContextManager:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_trainer_under_mixed_precision_is_compared_as_it_trains(policy: LanguageModel, dtype: str) -> None:
    checked = check(engine_dtype=dtype, precision=bf16_mixed)
    engine = started(engines.StopsSyncing(dtype), policy)
    for seed in range(3):
        report = checked(policy, engine)
        with bf16_mixed():
            expected = score_rows(policy, report.fixed.batch, 1.0)
        assert torch.equal(report.fixed.trainer, expected)
        assert 1e-3 < report.gap < report.limit
        assert 1e-3 < report.rounding < 0.1
        update(policy, seed=seed)
        engine.sync(policy)
    checked(policy, engine)
    engine.frozen = True
    update(policy, 0.01)
    engine.sync(policy)
    assert caught(checked, policy, engine).cause == "old_weights"


def test_an_undeclared_bfloat16_engine_is_refused_with_the_way_out(policy: LanguageModel) -> None:
    error = caught(check(), policy, started(Engine("bfloat16"), policy))
    assert error.cause == "unknown"
    assert "callbacks.canary.engine_dtype" in str(error)


def test_a_bound_of_the_user_replaces_the_limits(policy: LanguageModel) -> None:
    checked, engine = check(bound=0.5), started(Engine("bfloat16"), policy)
    assert checked(policy, engine).limit == checked(policy, engine).limit == 0.5
    with pytest.raises(SyncError, match=r"limit 1e-09"):
        check(bound=1e-9)(policy, engine)


# ---- planted faults ----------------------------------------------------------------------------------------


def test_old_weights(policy: LanguageModel) -> None:
    checked, engine = check(), started(engines.SkipsSync(), policy)
    checked(policy, engine)
    update(policy)
    engine.sync(policy)
    error = caught(checked, policy, engine)
    assert error.cause == "old_weights"
    assert error.distances["old_weights"] < 1e-5 < 0.01 < error.distances["trainer"]


def test_a_sync_that_fails_only_later(policy: LanguageModel) -> None:
    checked, engine = check(), started(engines.StopsSyncing(), policy)
    for seed in range(3):
        checked(policy, engine)
        update(policy, seed=seed)
        engine.sync(policy)
    checked(policy, engine)
    engine.frozen = True
    update(policy, seed=9)
    engine.sync(policy)
    assert caught(checked, policy, engine).cause == "old_weights"


def test_old_weights_behind_bfloat16(policy: LanguageModel) -> None:
    """Small updates hide in the rounding for a while; together they come out."""
    checked, engine = check(engine_dtype="bfloat16"), started(engines.SkipsSync("bfloat16"), policy)
    checked(policy, engine)
    for seed in range(20):
        update(policy, 0.0002, seed)
        engine.sync(policy)
        try:
            checked(policy, engine)
        except SyncError as error:
            assert error.cause == "old_weights"
            assert seed > 0
            return
    pytest.fail("twenty updates went by unnoticed")


def test_a_wrong_policy_at_the_very_first_check(policy: LanguageModel) -> None:
    engine = started(Engine(), policy)
    update(policy)
    error = caught(check(), policy, engine)
    assert error.cause == "unknown"
    assert "never reached the engine" in str(error)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_base_without_its_adapter_before_step_0(adapted: LanguageModel, dtype: str) -> None:
    """As in a resumed run; even where the gap could pass for rounding errors."""
    update(adapted, 0.05)
    error = caught(check(engine_dtype=dtype), adapted, started(engines.BaseOnly(dtype), adapted))
    assert error.cause == "adapter_missing"


def test_the_base_without_its_adapter_after_an_update(adapted: LanguageModel) -> None:
    """At the start an adapter changes nothing, so that the first check passes."""
    checked, engine = check(), started(engines.BaseOnly(), adapted)
    checked(adapted, engine)
    update(adapted, 0.05)
    engine.sync(adapted)
    assert caught(checked, adapted, engine).cause == "adapter_missing"


@pytest.mark.parametrize(
    ("engine", "temperature"),
    [
        (engines.Warmer(), 1.0),
        (engines.Warmer(), 0.6),
        (engines.RawLogprobs(), 0.6),
        (engines.RawLogprobs(), 1.5),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_temperature(policy: LanguageModel, engine: Engine, temperature: float, dtype: str) -> None:
    engine.dtype = getattr(torch, dtype)
    error = caught(check(temperature, engine_dtype=dtype), policy, started(engine, policy))
    used = 1.0 if isinstance(engine, engines.RawLogprobs) else 0.8 * temperature
    assert error.cause == "temperature"
    assert f"temperature {used:.2g} and the trainer at {temperature:.2g}" in str(error)


@pytest.mark.parametrize(("field", "by"), [("ids", 1), ("ids", -1), ("logprobs", 1), ("logprobs", -1)])
def test_shifted_by_one(policy: LanguageModel, field: str, by: int) -> None:
    error = caught(check(), policy, started(engines.Shifted(field, by), policy))
    assert error.cause == "shifted"


@pytest.mark.parametrize("engine", [engines.Nucleus(), engines.Optimist()])
def test_truncation(policy: LanguageModel, engine: Engine) -> None:
    error = caught(check(), policy, started(engine, policy))
    assert error.cause == "truncated"
    assert error.distances["trainer"] == pytest.approx(0.1, rel=0.3)


def test_a_stale_prefix_cache(policy: LanguageModel) -> None:
    checked, engine = check(), started(engines.KeepsCache(), policy)
    checked(policy, engine)
    update(policy)
    engine.sync(policy)
    error = caught(checked, policy, engine)
    assert error.cause == "stale_cache"
    assert error.distances["stale_cache"] < 2e-5


def test_numbers_that_are_none(policy: LanguageModel) -> None:
    engine = started(Engine(), policy)
    checked = check()
    checked(policy, engine)
    with torch.no_grad():
        engine._twin.model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    assert caught(checked, policy, engine).distances["trainer"] == float("inf")


def test_nothing_is_suspected_on_a_handful_of_tokens(policy: LanguageModel) -> None:
    """Four rounding errors can look like a constant by chance."""
    for tokens, expected in ((2, None), (16, "truncated")):
        checked = SyncCheck(PROMPTS, SamplingParams(n=2, max_tokens=tokens), bound=0.5)
        report = checked.look(policy, started(engines.Optimist(), policy))
        assert report.suspect == expected
        assert report.passed == (expected is None)


# ---- details -----------------------------------------------------------------------------------------------


def test_fixed_prompts_end_with_a_whole_real_one() -> None:
    for k, prompt in enumerate(fixed_prompts(REAL, count=4, length=17)):
        whole = REAL[k % 3]
        assert len(prompt) == 17
        assert prompt[-len(whole) :] == whole
    assert fixed_prompts(REAL, count=1, length=3) == [REAL[0][-3:]]
    assert fixed_prompts(REAL[:1], count=1, length=9) == [[*REAL[0][-2:], *REAL[0]]]


def test_a_check_leaves_policy_and_generators_alone(policy: LanguageModel) -> None:
    engine, before, state = started(Engine(), policy), policy.weights_hash(), torch.get_rng_state()
    check()(policy, engine)
    assert policy.weights_hash() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.training
