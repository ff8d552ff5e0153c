"""scripts/gpu_check.sh where there is no GPU: the shapes are right, and it says what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from benchmarks import gpu_check
from benchmarks.gpu_cases import SIZES, Clock, Trainer, build
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler


@pytest.mark.parametrize(("size", "billions"), [("0.5B", 0.494), ("1.5B", 1.544), ("7B", 7.616)])
def test_sizes_are_those_of_qwen(size: str, billions: float) -> None:
    """Parameter counts as the models' cards give them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES[size].config))
    found = sum(p.numel() for p in model.parameters())
    assert found / 1e9 == pytest.approx(billions, abs=0.001)


def test_it_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "--device cpu" in capsys.readouterr().err


def test_unknown_sizes_are_named(capsys) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["70B", "--device", "cpu"])
    assert "70B" in capsys.readouterr().err


@pytest.mark.parametrize("lora", [False, True])
def test_an_update_moves_what_trains_and_nothing_else(lora: bool) -> None:
    policy = build(SIZES["tiny"], torch.device("cpu"), torch.float32, lora=lora, hub=False)
    before = policy.frozen_hash(), policy.weights_hash()
    out = drawn(policy)
    Trainer(policy, lr=1e-3).update([[11, 12], [13]], out)
    assert policy.weights_hash() != before[1]
    assert policy.frozen_hash() == before[0]
    assert all(weight.grad is None for weight in policy.parameters())


def drawn(policy: LanguageModel):
    sampler = HFSampler()
    sampler.setup(policy)
    return sampler.sample([[11, 12], [13]], SamplingParams(n=3, max_tokens=4), list(range(1, 7)))


def test_the_clock_sums_a_phase() -> None:
    clock = Clock()
    for _ in range(2):
        with clock("sync"):
            pass
    assert set(clock.seconds) == {"sync"}
    assert clock.seconds["sync"] > 0


def test_cases_that_fail_or_do_not_fit_have_their_line(tmp_path: Path, capsys) -> None:
    asked = gpu_check.argparse.Namespace(device="cpu", hub=False, out=tmp_path / "figures.json")
    good = {"checks": "passed", **dict.fromkeys(gpu_check.COLUMNS[:-1], 0.123456)}
    skipped = {"skipped": "too large"}
    assert gpu_check.report(asked, {("tiny", "full"): good, ("7B", "full"): skipped}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "| 7B | full | too large |"
    assert lines[-2] == "| tiny | full | " + "0.123 | " * 8 + "passed |"
    assert json.loads(asked.out.read_text())["7B full"] == skipped
    for bad in ({"failed": "it crashed"}, good | {"checks": "failed: KeepsCache not seen"}):
        assert gpu_check.report(asked, {("tiny", "full"): bad}) == 1
