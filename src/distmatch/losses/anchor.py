"""RegressorLogZ: log Z read from a regressor that was fitted before training and is frozen. DISA's anchor.

Its folder (`stage=log_z` writes it) has the network with the scales of its inputs, held-out prompts with
their labels, and a manifest that says for which reference, reward, beta and partition function it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.log_z import LogZ
from distmatch.losses.prompt_regressor import PromptRegressor
from distmatch.settings.errors import ConfigError
from distmatch.settings.manifest import MANIFEST, json_text, load_manifest, numbers
from distmatch.settings.stage_names import STAGE_MARK

KIND = "log_z"
REGRESSOR = "regressor.safetensors"
HELD_OUT = "held_out.safetensors"

MOVED = 0.01
"""Nats by which the mean prediction may differ from that at saving; rounding is far below."""
FREE_BIAS, SURE = 0.25, 4.0
"""A mean distance from held-out labels counts from so many nats plus so many standard errors on."""


@dataclass(frozen=True)
class Anchor:
    """A regressor as it lies in its folder.

    Attributes:
        folder: Where.
        regressor: The network, frozen.
        manifest: What it holds for, and its figures.
        features, labels: Of the held-out prompts, (K, F) and (K,).
    """

    folder: Path
    regressor: PromptRegressor
    manifest: Mapping[str, Any]
    features: Tensor
    labels: Tensor

    def residuals(self) -> Tensor:
        """Prediction minus label of the held-out prompts in nats, (K,)."""
        with torch.no_grad():
            return self.regressor(self.features) - self.labels

    def check(self) -> None:
        """Refuse a network that is not the one that was fitted, or that is off its own held-out labels.

        A network that was changed after it was saved has another fingerprint than the manifest says; one that
        was shifted has moved the mean residual away from the manifest's by exactly the shift, and more than
        `MOVED` nats are refused with that figure. One that was wrong when it was saved keeps both, but is off
        the labels: the mean residual of a least-squares fit on K prompts is zero up to its standard error,
        s / sqrt(K) for a deviation of s, and more than `FREE_BIAS` nats plus `SURE` such errors are refused.
        With an s of 0.5 nats and K = 64 that is 0.5 nats.

        Raises:
            ConfigError: Names the folder, and by how many nats it is off.
        """
        residuals = self.residuals()
        mean, error = float(residuals.mean()), float(residuals.std()) / len(residuals) ** 0.5
        then = numbers(self.manifest["figures"])["bias"]
        if not math.isfinite(then):
            raise ConfigError(
                f"log_z.folder={self.folder}: its figures overflowed when it was fitted for "
                f"beta={self.manifest['beta']:g}, so it says nothing; lower algo.beta"
            )
        if not abs(mean - then) <= MOVED:
            raise ConfigError(
                f"log_z.folder={self.folder}: on its held-out prompts the regressor is {mean:+.2f} nats off "
                f"the labels, and was {then:+.2f} when it was saved: its weights were changed since. Delete "
                "the folder; the next run makes it again"
            )
        if self.manifest.get("fingerprint", now := self.regressor.fingerprint()) != now:
            raise ConfigError(
                f"log_z.folder={self.folder}: the regressor is not the one that was saved there. Delete the "
                "folder; the next run makes it again"
            )
        if not abs(mean) <= FREE_BIAS + SURE * error:
            raise ConfigError(
                f"log_z.folder={self.folder}: the regressor is {mean:+.2f} nats off the labels of "
                f"{len(residuals)} held-out prompts (standard error {error:.2f}); it is shifted, or was "
                "fitted to others. Delete the folder and make it again with stage=log_z"
            )


def save_anchor(
    folder: Path, regressor: PromptRegressor, features: Tensor, labels: Tensor, manifest: Mapping[str, Any]
) -> None:
    """Write a regressor with its held-out prompts, (K, F) and (K,), and its manifest, which comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in regressor.state_dict().items()}, folder / REGRESSOR)
    save_file({"features": features.contiguous(), "labels": labels.contiguous()}, folder / HELD_OUT)
    whole = {"kind": KIND, "regressor": regressor.architecture, **manifest}
    (folder / MANIFEST).write_text(json_text(whole), encoding="utf-8")


def load_anchor(folder: Path) -> Anchor:
    """Read what `save_anchor` wrote, frozen and without dropout.

    Raises:
        ConfigError: There is nothing of the kind, or it is damaged.
    """
    if not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"log_z.folder={folder} has no {MANIFEST}; give a folder that stage=log_z made, or stage:log_z"
        )
    manifest = load_manifest(folder)
    if manifest.get("kind") != KIND:
        raise ConfigError(f"log_z.folder={folder} is of kind {manifest.get('kind')!r}, expected {KIND!r}")
    try:
        state, held_out = load_file(folder / REGRESSOR), load_file(folder / HELD_OUT)
        shape, table = manifest["regressor"], state["token_numbers"]
        regressor = PromptRegressor(shape["features"], shape["hidden"], table, shape["width"], dropout=0.0)
        regressor.load_state_dict(state)
        features, labels = held_out["features"], held_out["labels"]
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"log_z.folder={folder} is damaged ({type(error).__name__}: {reason}). Delete the folder; the "
            "next run makes it again"
        ) from error
    return Anchor(folder, regressor.requires_grad_(False).eval(), manifest, features, labels)


class RegressorLogZ(LogZ):
    """log Z of each prompt as a frozen regressor tells it, without gradient. DISA, arXiv 2605.17295, stage 3.

    The network is no part of the loss: it is in no optimizer group and moves with nobody's `train()`. A
    checkpoint keeps its fingerprint, and a run is only taken up again with the very same one.

    Args:
        folder: What `stage=log_z` left. `stage:log_z` stands for the one that the run's own settings ask for;
            `train.py` puts the folder in its place, and makes it if need be.

    Raises:
        ConfigError: The folder holds no regressor, or one that is off its own held-out labels.
    """

    fingerprint: Tensor

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.anchor = None if folder.startswith(STAGE_MARK) else load_anchor(Path(folder))
        reads_state = self.anchor is None or self.anchor.regressor.reads_state
        self.requires = frozenset({"ref_prompt_hidden"} if reads_state else ())
        digest = bytes(32) if self.anchor is None else bytes.fromhex(self.anchor.regressor.fingerprint())
        self.register_buffer("fingerprint", torch.tensor(list(digest), dtype=torch.uint8))
        self.register_load_state_dict_pre_hook(_refuse_another)
        if self.anchor is not None:
            self.anchor.check()

    def check_tilt(self, beta: float, length_normalize: bool, reward_source: str) -> None:
        """See `LogZ.check_tilt`."""
        if reward_source != "raw":
            raise ConfigError(
                f"algo.reward_source={reward_source}: log Z was estimated for raw rewards; a score relative "
                "to the other samples has no log Z of its own. Set algo.reward_source=raw"
            )
        if self.anchor is None:
            return
        for name, wanted in (("beta", beta), ("length_normalize", length_normalize)):
            found = self.anchor.manifest[name]
            if found != wanted:
                raise ConfigError(
                    f"algo.{name}={wanted}: the regressor in {self.anchor.folder} was made for "
                    f"{name}={found}; leave algo.log_z.folder at stage:log_z to make another"
                )

    def forward(self, batch: RolloutBatch, policy: PolicyOutput, residual: Tensor) -> Tensor:
        """See `LogZ.forward`."""
        return self.values(batch).to(residual).repeat_interleave(batch.group_size)

    @torch.no_grad()
    def values(self, batch: RolloutBatch) -> Tensor:
        """The value for each group's prompt in nats, (N,) float32."""
        if self.anchor is None:
            raise ValueError(
                "algo.log_z.folder=stage:log_z was not replaced by a folder: start the run with train.py, or "
                "give the folder of a regressor"
            )
        regressor = self.anchor.regressor.to(batch.prompt_ids.device)
        first = slice(None, None, batch.group_size)
        hidden = None if batch.ref_prompt_hidden is None else batch.ref_prompt_hidden[first]
        return regressor(regressor.describe(batch.prompt_ids[first], batch.prompt_mask[first], hidden))


def _refuse_another(head: RegressorLogZ, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
    known = state.get(f"{prefix}fingerprint")
    if known is not None and not torch.equal(known.cpu(), head.fingerprint.cpu()):
        where = "nothing" if head.anchor is None else str(head.anchor.folder)
        raise ConfigError(
            f"the checkpoint was anchored to another regressor than the one in {where}: log Z would change "
            "in the middle of a run. Put the old folder back, or start anew"
        )
