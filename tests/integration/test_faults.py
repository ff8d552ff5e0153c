"""Faults that users of other libraries met, put to the whole program (the numbers are rows of faults.md)."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from distmatch.batch import LossOutput
from distmatch.checkpoints import newest_checkpoint
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.modules.evidence import NonFiniteError
from distmatch.modules.language_model import load_language_model
from distmatch.run import run
from distmatch.settings import main
from tests.runs import CPU, LAB, ROOT, SMALL, config, environment, metrics, rollouts

SHORT = [*LAB, "logger=none", "trainer.max_epochs=1"]
LORA = "r: 4, lora_alpha: 8, target_modules: all-linear"


def program(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> int:
    """The exit status of `python train.py`, started in this process."""
    monkeypatch.setenv("DISTMATCH_CONFIG", "")  # set by the program, and put back here
    monkeypatch.delenv("DISTMATCH_CONFIG")
    return main(ROOT / "configs" / "train.yaml", run, "", overrides)


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """The one line that the program answers to a mistake."""
    status = program(monkeypatch, *overrides)
    answer = capsys.readouterr().err.strip()
    assert status == 2, answer
    assert answer.startswith("error: ")
    assert "Traceback" not in answer
    return answer


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]


# ---- 87, 88: imports ---------------------------------------------------------------------------------------

CORE_ONLY = f"""
import importlib, pkgutil, sys

ABSENT = ("vllm", "flash_attn", "deepspeed", "bitsandbytes", "wandb", "gguf")
for name in ABSENT:
    sys.modules[name] = None  # importing it raises ImportError, as where it is not installed

import distmatch
assert not [name for name in ("torch", "transformers") if name in sys.modules], "import distmatch is slow"

import torch

def touched(*_):
    raise AssertionError("CUDA was initialised")

torch.cuda._lazy_init = touched
for module in pkgutil.walk_packages(distmatch.__path__, "distmatch."):
    importlib.import_module(module.name)
assert not torch.cuda.is_initialized()
assert not [name for name in sys.modules if name.partition(".")[0] in ABSENT and sys.modules[name]]
print("imported")

from pathlib import Path
from distmatch.run import run
from distmatch.settings import main
sys.exit(main(Path({str(ROOT)!r}) / "configs" / "train.yaml", run, "", sys.argv[1:]))
"""


def test_core_needs_no_engine_and_touches_no_cuda(tmp_path: Path) -> None:
    """Every module is imported and the whole program runs where only the core is installed."""
    run_folder = [f"paths.run_dir={tmp_path / 'run'}", "model.weights=random", "debug=smoke"]
    done = subprocess.run(
        [sys.executable, "-c", CORE_ONLY, *CPU, *SMALL, *SHORT[:-1], *run_folder],
        env=environment() | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("imported")
    assert len(metrics(tmp_path / "run")) == 2


# ---- 20: weights that are not numbers ----------------------------------------------------------------------


def poisoned(lab_weights: Path, folder: Path, name: str) -> Path:
    """A copy of the lab's model with one NaN in one of its weights."""
    policy = load_language_model(str(lab_weights), "compact")
    with torch.no_grad():
        policy.get_parameter(name).view(-1)[0] = float("nan")
    policy.save(folder)
    return folder


def test_a_nan_weight_stops_the_run_and_is_named(
    lab_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = "model.model.layers.1.mlp.up_proj.weight", tmp_path / "run"
    model = poisoned(lab_weights, tmp_path / "model", name)
    with pytest.raises(NonFiniteError, match=name.replace(".", r"\.")):
        program(monkeypatch, *CPU, *SHORT, f"model.weights={model}", f"paths.run_dir={folder}")
    assert not list(folder.glob("checkpoints/*"))
    assert not (folder / "export").exists()
    assert not (folder / "metrics.csv").exists() or not metrics(folder)


def test_a_loss_that_blows_up_costs_no_finished_iteration(
    lab_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, compute, calls = tmp_path / "run", GRPOLoss.forward, itertools.count()

    def forward(self: GRPOLoss, *bundles: object) -> LossOutput:
        output = compute(self, *bundles)
        return LossOutput(output.loss / 0, {}) if next(calls) == 2 else output

    base = [text for text in SHORT if not text.startswith("trainer.max_epochs")]
    run_settings = ["algo=grpo", "trainer.max_epochs=3", f"model.weights={lab_weights}"]
    with monkeypatch.context() as patched:
        patched.setattr(GRPOLoss, "forward", forward)
        with pytest.raises(
            NonFiniteError, match=r"the loss is (nan|-?inf); all weights are finite; the batch"
        ):
            program(monkeypatch, *CPU, *base, *run_settings, f"paths.run_dir={folder}")
    assert len(metrics(folder)) == 2
    assert not (folder / "export").exists()
    assert len(list(folder.glob("nonfinite-*.pt"))) == 1
    assert all(torch.isfinite(value).all() for value in weights(folder).values())
    assert program(monkeypatch, f"resume={folder}") == 0
    run(config(*base, *run_settings, f"paths.run_dir={tmp_path / 'other'}"))
    assert rollouts(folder) == rollouts(tmp_path / "other")


# ---- 42, 67: nothing to train ------------------------------------------------------------------------------


def test_an_adapter_that_is_for_inference_only_is_refused(
    lab_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["model=hf", f"model.path={lab_weights}", "model.style=compact"]
    frozen = [f"model.lora={{{LORA}, inference_mode: true}}", f"paths.run_dir={tmp_path / 'run'}"]
    answer = refusal(monkeypatch, capsys, *CPU, *SHORT, *model, *frozen)
    assert "no parameter of the model requires a gradient: there is nothing to train" in answer


# ---- 50-53: resuming ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_iteration(lab_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    run(config(*SHORT, f"model.weights={lab_weights}", f"paths.run_dir={folder}"))
    return folder


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("task.seed", 1, "resume with the task and seed"),
        ("task.alphabet", 3, "resume with the task and seed"),
        ("seed", 9, "resume with the task and seed"),
        ("model.weights", "random", "the checkpoint is of another model or loss"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    one_iteration: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    value: object,
    words: str,
) -> None:
    """As after a config was edited by hand, or a checkpoint was copied into another run's folder."""
    folder = shutil.copytree(one_iteration, tmp_path / "run")
    cfg = OmegaConf.load(folder / "config.yaml")
    OmegaConf.update(cfg, key, value)
    OmegaConf.save(cfg, folder / "config.yaml")
    before = weights(folder)
    overrides = [f"resume={folder}", "trainer.max_epochs=2"]
    assert words in refusal(monkeypatch, capsys, *overrides)
    assert len(metrics(folder)) == 1
    assert all(torch.equal(before[name], value) for name, value in weights(folder).items())


def test_no_prompt_is_skipped_or_repeated_over_a_resume(
    one_iteration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(one_iteration, tmp_path / "run")
    for iterations in (1, 2, 3):  # the first finds nothing left to do
        assert program(monkeypatch, f"resume={folder}", f"trainer.max_epochs={iterations}") == 0
        assert len(metrics(folder)) == iterations
    groups = Counter(record["group"] for record in rollouts(folder))
    assert groups == dict.fromkeys(range(24), 4)  # 3 iterations of 8 prompts, 4 completions each
    assert [row["rollout/prompts_seen"] for row in metrics(folder)] == ["8.0", "16.0", "24.0"]


# ---- 10, 11, 31, 41: what the first update sees ------------------------------------------------------------


def test_an_iteration_of_truncated_completions_changes_nothing(lab_weights: Path, tmp_path: Path) -> None:
    """All of them are masked: the loss is zero, not 0/0, and the weights stay where they were."""
    folder = tmp_path / "run"
    base = [text for text in SHORT if not text.startswith("data.max_tokens")]
    more = ["data.max_tokens=2", "data.mask_truncated=true", f"model.weights={lab_weights}"]
    run(config(*base, *more, f"paths.run_dir={folder}"))
    (row,) = metrics(folder)
    assert float(row["rollout/truncated"]) == 1
    assert float(row["train/loss"]) == 0
    assert float(row["train/grad_norm"]) == 0
    before = load_language_model(str(lab_weights), "compact").state_dict()
    assert all(
        torch.equal(before[name.removeprefix("policy.")], value) for name, value in weights(folder).items()
    )


@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_the_ratio_is_one_at_any_temperature(lab_weights: Path, tmp_path: Path, temperature: float) -> None:
    folder = tmp_path / "run"
    more = ["algo=grpo", f"data.temperature={temperature}", f"model.weights={lab_weights}"]
    run(config(*SHORT, *more, "data.updates_per_rollout=2", "module.lr=1e-12", f"paths.run_dir={folder}"))
    (row,) = metrics(folder)
    assert float(row["train/ratio_max"]) == pytest.approx(1, abs=1e-4)
    assert float(row["train/mismatch_max"]) < 1e-4


@pytest.mark.parametrize("reference", ["initial_policy", "base"])
def test_the_kl_starts_at_zero(lab_weights: Path, tmp_path: Path, reference: str) -> None:
    folder = tmp_path / "run"
    model = ["model=hf", f"model.path={lab_weights}", "model.style=compact", f"model.lora={{{LORA}}}"]
    more = ["algo=grpo", "algo.kl_coef=0.1", f"module.reference={reference}", f"paths.run_dir={folder}"]
    base = [text for text in SHORT if not text.startswith("trainer.max_epochs")]
    run(config(*base, *model, *more, "trainer.max_epochs=3"))
    kls = [abs(float(row["train/kl"])) for row in metrics(folder)]
    assert kls[0] < 1e-6
    assert kls[-1] > 1e-6
