"""DISA from the command to the trained policy: stages, cache, resume, and guards against a wrong log Z."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from safetensors.torch import load_file, save_file

from distmatch.checkpoints import newest_checkpoint
from distmatch.losses.anchor import REGRESSOR
from distmatch.modules.tiny import load_tiny
from distmatch.run import run
from distmatch.settings.errors import ConfigError
from distmatch.settings.folder import resume
from distmatch.settings.manifest import MANIFEST
from tests.runs import config, metrics, rollouts

SMALL = ["algo=disa", "data.eval_prompts=4", "data.eval_samples=2", "trainer.max_epochs=2"]
STAGES = ["proposals.prompts=40", "proposals.samples=32", "proposals.warm_start.steps=2"]
STAGES += ["proposals.warm_start.workers=0", "log_z.held_out=0.5", "log_z.epochs=60"]
REFUSED = (ConfigError, InstantiationException)  # the entry points print either in one line


def disa(cache: Path, folder: Path, *more: str) -> dict[str, float]:
    paths = [f"paths.cache_dir={cache}", f"paths.log_dir={cache}/logs", f"paths.run_dir={folder}"]
    return run(config(*SMALL, *STAGES, *paths, *more))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]


def assert_equal_runs(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics(one) == metrics(other)


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cache`, which was empty, and `run`, which filled it."""
    place = tmp_path_factory.mktemp("disa")
    disa(place / "cache", place / "run")
    return place


@pytest.fixture(scope="module")
def anchor(cold: Path) -> Path:
    return next((cold / "cache").glob("log_z-*"))


def test_every_stage_left_its_result(cold: Path, anchor: Path) -> None:
    kinds = sorted(path.name.partition("-")[0] for path in (cold / "cache").iterdir() if path.name != "logs")
    assert kinds == ["log_z", "proposals", "warm_start"]
    manifest = json.loads((anchor / MANIFEST).read_text())
    assert (manifest["beta"], manifest["partition"]) == (15.0, "token_mean_fixed_point")
    assert manifest["reward"]["_target_"].endswith("NPPaper")
    assert {"r2", "mse", "mse_of_mean", "bias", "label_variance"} <= set(manifest["figures"])
    assert (anchor / "calibration.png").stat().st_size > 10_000
    assert list((cold / "cache" / "logs" / "train").glob("log_z-np_tiny/*/tensorboard/events*"))


def test_a_cold_and_a_warm_cache_give_equal_weights(cold: Path, anchor: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (cold / "cache").rglob("*") if "logs" not in p.parts}
    disa(cold / "cache", cold / "warm")
    assert_equal_runs(cold / "run", cold / "warm")
    assert before == {p: p.stat().st_mtime_ns for p in (cold / "cache").rglob("*") if "logs" not in p.parts}


def test_two_caches_hold_the_same_regressor(cold: Path, anchor: Path, tmp_path: Path) -> None:
    """Nothing of the run that asked for it, neither its seed nor its place, is in the result."""
    proposals = next((cold / "cache").glob("proposals-*/40x32"))
    paths = [f"paths.cache_dir={tmp_path}/other", f"paths.log_dir={tmp_path}", f"log_z.proposals={proposals}"]
    run(config(*SMALL, *STAGES, *paths, "stage=log_z", "seed=5"))
    other = next((tmp_path / "other").glob("log_z-*"))
    assert other.name == anchor.name
    assert (other / REGRESSOR).read_bytes() == (anchor / REGRESSOR).read_bytes()


def test_a_resumed_run_ends_like_one_that_was_not_stopped(cold: Path) -> None:
    folder = cold / "resumed"
    disa(cold / "cache", folder, "trainer.max_epochs=1")
    run(resume([f"resume={folder}", "trainer.max_epochs=2"]))
    assert_equal_runs(cold / "run", folder)


def test_stages_and_run_agree_on_the_reference_under_lora(tmp_path: Path) -> None:
    """Each makes an adapter of its own, with another seed; the reference is the base of all of them."""
    load_tiny().save(tmp_path / "base")
    model = [
        "model=hf",
        f"model.path={tmp_path}/base",
        "model.style=compact",
        "proposals.models.strong.model=null",
    ]
    lora = "model.lora={r: 4, lora_alpha: 8, target_modules: all-linear}"
    disa(tmp_path / "cache", tmp_path / "run", *model, lora, "seed=3")
    assert len(metrics(tmp_path / "run")) == 2
    assert len(list((tmp_path / "cache").glob("proposals-*"))) == 1


def test_the_checkpoint_has_no_regressor_but_knows_which_it_was(cold: Path, anchor: Path) -> None:
    state = weights(cold / "run")
    fingerprint = bytes(state.pop("loss.log_z.fingerprint").tolist()).hex()
    assert fingerprint == json.loads((anchor / MANIFEST).read_text())["fingerprint"]
    assert not any(name.startswith("loss.") for name in state)


# ---- guards ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nats", [2.0, -2.0])
def test_a_shifted_regressor_is_caught_before_the_first_update(
    cold: Path, anchor: Path, tmp_path: Path, nats: float
) -> None:
    copy = shutil.copytree(anchor, tmp_path / "anchor")
    state = load_file(copy / REGRESSOR)
    save_file(state | {"label_mean": state["label_mean"] + nats}, copy / REGRESSOR)
    with pytest.raises(REFUSED, match=r"nats off the labels"):
        disa(cold / "cache", tmp_path / "run", f"algo.log_z.folder={copy}")
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "reward=np_gated",
            "algo.log_z.folder=.* was made with reward=.*NPPaper.* this run has reward=.*NPGated",
        ),
        ("algo.beta=10", "algo.beta=10: .* was made for beta=15.0"),
        ("algo.length_normalize=false", "was made for length_normalize=True"),
        ("data.temperature=0.9", "was made with temperature=1.0, but this run has temperature=0.9"),
        ("task=knapsack", "was made with task="),
        ("model.weights=random", "was made for another reference model"),
    ],
)
def test_a_regressor_of_another_run_is_refused(
    cold: Path, anchor: Path, tmp_path: Path, setting: str, words: str
) -> None:
    with pytest.raises(REFUSED, match=words):
        disa(cold / "cache", tmp_path / "run", f"algo.log_z.folder={anchor}", setting)


def shifted_proposals(cold: Path, place: Path, nats: float) -> Path:
    """A copy of the proposals whose rewards, and so all labels at beta 15, are off by so many nats."""
    original = next((cold / "cache").glob("proposals-*"))
    copy = shutil.copytree(original, place / original.name)
    for file in (copy / "shards").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            for trajectory in row["trajectories"]:
                trajectory["reward"] += nats / 15
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return copy / "40x32"


@pytest.mark.slow
@pytest.mark.parametrize(("nats", "word"), [(2.0, "nats above"), (-2.0, "nats below"), (0.0, "")])
def test_shifted_labels_are_flagged_within_five_iterations(
    cold: Path, tmp_path: Path, nats: float, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    proposals = shifted_proposals(cold, tmp_path, nats)
    more = [f"log_z.proposals={proposals}", "trainer.max_epochs=5", "callbacks.diagnosis=null"]
    disa(tmp_path / "cache", tmp_path / "run", *more)
    said = " ".join(capsys.readouterr().out.split())
    rows = metrics(tmp_path / "run")
    shift = float(rows[-1]["log_z/anchor_minus_onpolicy"])
    assert math.isfinite(float(rows[0]["log_z/residual"]))
    if word:
        assert "log Z is about" in said and word in said
        assert shift == pytest.approx(nats, abs=0.7)
    else:
        assert "log Z is about" not in said
        assert abs(shift) < 0.7


def test_the_papers_control_trains_on_the_same_answers(cold: Path, tmp_path: Path) -> None:
    changes = [x for x in SMALL if x != "algo=disa"] + [
        "algo=sft",
        "data=proposals",
        "data.prompts_per_iteration=32",
    ]
    paths = [f"paths.cache_dir={cold}/cache", f"paths.log_dir={tmp_path}", f"paths.run_dir={tmp_path}/run"]
    run(config(*changes, *STAGES, *paths))
    texts = {row["completion"] for row in rollouts(tmp_path / "run")}
    shards = next((cold / "cache").glob("proposals-*")).glob("shards/*.jsonl")
    drawn = [
        t
        for file in shards
        for line in file.read_text().splitlines()
        for t in json.loads(line)["trajectories"]
    ]
    assert texts <= {trajectory["text"] for trajectory in drawn}
    assert not (tmp_path / "train" / "proposals-np_tiny").exists()


def test_the_papers_control_makes_its_answers_itself(tmp_path: Path) -> None:
    """As the smoke run has it, on an empty cache."""
    paths = [
        f"paths.cache_dir={tmp_path}/cache",
        f"paths.log_dir={tmp_path}",
        f"paths.run_dir={tmp_path}/run",
    ]
    run(config("algo=sft", "data=proposals", "debug=smoke", *paths))
    assert len(metrics(tmp_path / "run")) == 2
