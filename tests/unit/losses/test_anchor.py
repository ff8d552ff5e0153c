"""RegressorLogZ: frozen, checked when it is loaded, and the same before and after a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from distmatch.losses.anchor import HELD_OUT, REGRESSOR, RegressorLogZ, load_anchor
from distmatch.losses.balance import BalanceLoss
from distmatch.settings.errors import ConfigError
from distmatch.settings.manifest import MANIFEST
from tests.anchors import anchor_folder
from tests.builders import make_batch, make_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return anchor_folder(tmp_path / "anchor")


def shift(folder: Path, nats: float) -> None:
    state = load_file(folder / REGRESSOR)
    save_file(state | {"label_mean": state["label_mean"] + nats}, folder / REGRESSOR)


def rewrite(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | changes))


# ---- frozen ------------------------------------------------------------------------------------------------


def test_nothing_of_it_trains(folder: Path) -> None:
    head = RegressorLogZ(str(folder)).train()
    assert list(head.parameters()) == [] and head.param_groups(0.1) == []
    batch = make_batch(hidden=5)
    policy = make_policy(batch)
    first = head(batch, policy, torch.zeros(12))
    head.train()
    assert torch.equal(head(batch, policy, torch.zeros(12)), first)
    loss = BalanceLoss(head, 15.0, True, "raw")(batch, policy).loss
    loss.backward()
    assert policy.logprobs.grad.abs().sum() > 0
    assert head.anchor.regressor.layers[0].weight.grad is None


def test_one_value_a_prompt(folder: Path) -> None:
    batch = make_batch(hidden=5)
    values = RegressorLogZ(str(folder))(batch, make_policy(batch), torch.zeros(12)).view(3, 4)
    assert (values == values[:, :1]).all()
    assert len(values[:, 0].unique()) == 3


def test_without_a_folder_it_says_what_is_missing() -> None:
    head = RegressorLogZ("stage:log_z")
    batch = make_batch(hidden=5)
    assert head.requires == {"ref_prompt_hidden"}
    with pytest.raises(ValueError, match=r"algo.log_z.folder=stage:log_z was not replaced"):
        head(batch, make_policy(batch), torch.zeros(12))


# ---- checked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nats", [2.0, -2.0, 0.1])
def test_a_network_that_was_changed_is_refused(folder: Path, nats: float) -> None:
    shift(folder, nats)
    with pytest.raises(
        ConfigError, match=rf"regressor is \{nats:+.2f} nats off the labels, and was [+-]0.00 when"
    ):
        RegressorLogZ(str(folder))


def test_figures_that_overflowed_are_refused_by_what_is_to_blame(folder: Path) -> None:
    rewrite(folder, figures={"bias": None})
    with pytest.raises(ConfigError, match=r"overflowed when it was fitted for beta=15, .*lower algo.beta"):
        RegressorLogZ(str(folder))


def test_a_change_that_leaves_the_mean_is_refused_too(folder: Path) -> None:
    rewrite(folder, fingerprint=load_anchor(folder).regressor.fingerprint())
    RegressorLogZ(str(folder))
    state = load_file(folder / REGRESSOR)
    state["layers.0.weight"][0, 0] += 1e-4
    save_file(state, folder / REGRESSOR)
    with pytest.raises(ConfigError, match="the regressor is not the one that was saved"):
        RegressorLogZ(str(folder))


@pytest.mark.parametrize("nats", [2.0, -2.0])
@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_a_network_that_was_wrong_when_it_was_saved_is_refused(
    tmp_path: Path, nats: float, spread: float
) -> None:
    folder = anchor_folder(tmp_path / "anchor", spread=spread)
    shift(folder, nats)
    rewrite(folder, figures={"bias": nats})
    with pytest.raises(ConfigError, match=r"nats off the labels of 32 held-out prompts \(standard error 0"):
        RegressorLogZ(str(folder))


@pytest.mark.parametrize("seed", range(50))
def test_an_honest_fit_is_not_refused(tmp_path: Path, seed: int) -> None:
    """Mean residuals as chance has them, from errors of one nat: none in fifty is called a shift."""
    folder = anchor_folder(tmp_path / "anchor", spread=0.0)
    held_out = load_file(folder / HELD_OUT)
    noise = torch.randn(32, generator=torch.Generator().manual_seed(seed))
    save_file(held_out | {"labels": held_out["labels"] + noise}, folder / HELD_OUT)
    rewrite(folder, figures={"bias": float(-noise.mean())})
    assert RegressorLogZ(str(folder)).anchor is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beta": 10.0}, r"algo.beta=10.0: the regressor in .* was made for beta=15.0"),
        ({"length_normalize": False}, "algo.length_normalize=False: .* made for length_normalize=True"),
        ({"reward_source": "group_zscore"}, "algo.reward_source=group_zscore: log Z was estimated for raw"),
    ],
)
def test_another_target_is_refused(folder: Path, changes: dict[str, object], words: str) -> None:
    settings = {"beta": 15.0, "length_normalize": True, "reward_source": "raw"} | changes
    with pytest.raises(ConfigError, match=words):
        BalanceLoss(RegressorLogZ(str(folder)), **settings)


def test_folders_of_other_things_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no manifest.json"):
        RegressorLogZ(str(tmp_path))
    rewrite(folder, regressor={"features": ["prompt_state"], "hidden": 6, "width": 16})
    with pytest.raises(ConfigError, match=r"is damaged .*size mismatch"):
        RegressorLogZ(str(folder))
    rewrite(folder, kind="proposals")
    with pytest.raises(ConfigError, match="is of kind 'proposals', expected 'log_z'"):
        RegressorLogZ(str(folder))


@pytest.mark.parametrize("name", [REGRESSOR, HELD_OUT, MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "gone", "another"])
def test_a_damaged_folder_is_named(folder: Path, name: str, damage: str) -> None:
    file = folder / name
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "gone":
        file.unlink()
    elif name == MANIFEST:
        file.write_text(json.dumps({"kind": "log_z"}))
    else:
        save_file({"other": torch.zeros(1)}, file)
    words = (
        "has no manifest.json" if (name, damage) == (MANIFEST, "gone") else "is damaged.*Delete the folder"
    )
    with pytest.raises(ConfigError, match=words):
        RegressorLogZ(str(folder))


# ---- checkpoints -------------------------------------------------------------------------------------------


def test_a_checkpoint_takes_only_the_same_regressor(folder: Path, tmp_path: Path) -> None:
    loss = BalanceLoss(RegressorLogZ(str(folder)), 15.0, True, "raw")
    state = loss.state_dict()
    assert list(state) == ["log_z.fingerprint"]
    BalanceLoss(RegressorLogZ(str(anchor_folder(tmp_path / "same"))), 15.0, True, "raw").load_state_dict(
        state
    )
    other = BalanceLoss(RegressorLogZ(str(anchor_folder(tmp_path / "other", hidden=4))), 15.0, True, "raw")
    with pytest.raises(ConfigError, match=r"anchored to another regressor than the one in .*other"):
        other.load_state_dict(state)
