"""The stage `log_z`: labels out of stored proposals, a regressor fitted to them, its figures, its folder.

DISA (arXiv 2605.17295), stage 2. The regressor is judged here, before any policy is trained with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning import Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig
from torch import Tensor

from distmatch.data.log_z_settings import Tilt, check_holds, dependencies, log_z_folder, run_identity, tilt_of
from distmatch.data.proposal_labels import PromptLabel, overall_verdict, prompt_labels
from distmatch.data.proposal_records import PromptRecord, log_weights, read_manifest, read_proposals
from distmatch.data.warm_start import settings_hash
from distmatch.losses.anchor import save_anchor
from distmatch.losses.prompt_regressor import PromptRegressor, token_numbers
from distmatch.metrics.log_z import log_z
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.log_z_regressor import (
    LabelDataModule,
    LabelledPrompts,
    LogZRegressor,
    fit_figures,
    split,
)
from distmatch.sampling.hf import left_pad
from distmatch.settings.errors import ConfigError
from distmatch.settings.manifest import MANIFEST, load_manifest, made_whole, numbers
from distmatch.study.calibration import Fitted, draw_calibration

CALIBRATION = "calibration.png"
NO_BETTER, AS_GOOD = 0.05, 2.0
"""R^2 below the first is that of the mean; an error below so many label variances is that of the labels."""


@dataclass(frozen=True)
class Labelled:
    """Prompts of the proposals with their labels.

    Attributes:
        records: With all trajectories.
        labels: One each.
        tilt: What the labels are log Z of.
    """

    records: Sequence[PromptRecord]
    labels: Sequence[PromptLabel]
    tilt: Tilt

    def log_z(self, *, jackknife: bool) -> Tensor:
        """The labels in nats, (n,) float32.

        Raises:
            ConfigError: One is not finite.
        """
        values = torch.tensor([x.log_z_jackknife if jackknife else x.log_z for x in self.labels])
        bad = (~torch.isfinite(values)).nonzero().squeeze(1).tolist()
        if bad:
            raise ConfigError(
                f"log Z of {len(bad)} prompts is not finite (first: {self.labels[bad[0]].instance}): the "
                f"proposal never writes what the reference may write, or beta={self.tilt.beta:g} is too large"
            )
        return values


def run(cfg: DictConfig) -> dict[str, float]:
    """Fit, judge and store the regressor, or find it stored.

    Returns:
        Its figures on held-out prompts, as `log_z/<name>`.
    """
    folder = log_z_folder(cfg)
    if not (folder / MANIFEST).exists():
        _make(cfg, folder)
    manifest = load_manifest(folder)
    figures = numbers(manifest["figures"])
    print(
        f"log Z ({manifest['partition']}, beta {manifest['beta']:g}) in {folder}: held-out R^2 "
        f"{figures['r2']:.2f}, squared error {figures['mse']:.3f} against a label variance of "
        f"{figures['label_variance']:.3f}; {manifest['verdict']}",
        flush=True,
    )
    return {f"log_z/{name}": value for name, value in figures.items()}


def _make(cfg: DictConfig, folder: Path) -> None:
    knobs, tilt = cfg.log_z, tilt_of(cfg)
    source = Path(knobs.proposals)
    proposals = read_manifest(source)
    seed_everything(int(knobs.seed), verbose=False)
    policy: LanguageModel = instantiate(cfg.model).to(_device(cfg)).requires_grad_(False)
    check_holds(proposals, cfg, policy.weights_hash(), f"log_z.proposals={source}")
    records = read_proposals(source)
    data = Labelled(records, prompt_labels(records, tilt.beta, tilt.partition), tilt)
    print(overall_verdict(data.labels)[1], flush=True)
    regressor = _new_regressor(cfg, policy)
    whole = LabelledPrompts(
        describe_prompts(regressor, policy, [x.prompt_ids for x in data.labels]),
        data.log_z(jackknife=bool(knobs.jackknife)),
        torch.tensor([x.variance for x in data.labels]),
    )
    fitted, held_out = split([x.prompt_ids for x in data.labels], float(knobs.held_out), int(knobs.seed))
    logger = TensorBoardLogger(save_dir=cfg.paths.run_dir, name="", version="tensorboard")
    regressor = fit(knobs, regressor, whole.select(fitted), whole.select(held_out), logger)
    figures = judge(regressor, whole.select(held_out))
    picture = _draw(regressor, whole, data, [fitted, held_out], figures["r2"])
    logger.experiment.add_figure("log_z/calibration", picture, close=False)
    logger.finalize("success")
    settings = dependencies(cfg)
    manifest = {
        "command": "python train.py stage=log_z",
        "settings": settings,
        "settings_hash": settings_hash(settings),
        **run_identity(cfg),
        "beta": tilt.beta,
        "length_normalize": tilt.length_normalize,
        "partition": tilt.partition,
        "reference": proposals["reference"],
        "labels_hash": _labels_hash(whole.labels),
        "fingerprint": regressor.fingerprint(),
        "figures": figures,
        "verdict": verdict(figures),
        "watch": watch_figures(
            regressor, whole.select(held_out), [records[i] for i in held_out.tolist()], tilt
        ),
    }
    with made_whole(folder) as scratch:
        save_anchor(scratch, regressor, whole.features[held_out], whole.labels[held_out], manifest)
        picture.savefig(scratch / CALIBRATION, dpi=130)


def _new_regressor(cfg: DictConfig, policy: LanguageModel) -> PromptRegressor:
    knobs = cfg.log_z
    table = None
    if "numbers" in knobs.features:
        vocabulary = range(len(policy.tokenizer))
        table = token_numbers([str(t) for t in policy.tokenizer.convert_ids_to_tokens(list(vocabulary))])
    hidden = int(policy.model.config.get_text_config().hidden_size)
    return PromptRegressor(list(knobs.features), hidden, table, int(knobs.width), float(knobs.dropout))


@torch.no_grad()
def describe_prompts(
    regressor: PromptRegressor, policy: LanguageModel, prompts: Sequence[Sequence[int]], rows: int = 64
) -> Tensor:
    """Features of prompts as `RegressorLogZ` will see them during training, (n, F) float32 on the CPU."""
    parts = []
    for first in range(0, len(prompts), rows):
        ids, mask = left_pad(prompts[first : first + rows], policy.device)
        hidden = None
        if regressor.reads_state:
            token = torch.full((len(ids), 1), min(policy.eos_ids), device=policy.device)
            there = torch.ones_like(token, dtype=torch.bool)
            hidden = policy(ids, mask, token, there, temperature=1.0, prompt_hidden=True).prompt_hidden
        parts.append(regressor.describe(ids.cpu(), mask.cpu(), None if hidden is None else hidden.cpu()))
    return torch.cat(parts)


def fit(
    knobs: DictConfig,
    regressor: PromptRegressor,
    train: LabelledPrompts,
    held_out: LabelledPrompts,
    logger: TensorBoardLogger | None = None,
) -> PromptRegressor:
    """Least squares with early stopping; the network of the best epoch, frozen, on the CPU.

    Args:
        knobs: The group `log_z` of the config.
        regressor: A new one, of the right inputs.
        train: Prompts to fit to, whose scales it takes over.
        held_out: Prompts to stop by.
        logger: Where the curves go.
    """
    regressor.fit_scales(train.features, train.labels)
    module = LogZRegressor(regressor, float(knobs.lr), float(knobs.weight_decay))
    trainer = Trainer(
        max_epochs=int(knobs.epochs),
        accelerator="cpu",  # the network is small, and the result then equal on every machine of a kind
        devices=1,
        logger=logger or False,
        callbacks=[EarlyStopping("val/mse", patience=int(knobs.patience))],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    trainer.fit(
        module,
        datamodule=LabelDataModule(train, held_out, knobs.weighting, int(knobs.batch_size), int(knobs.seed)),
    )
    return module.keep_best()


# ---- judgement ---------------------------------------------------------------------------------------------


@torch.no_grad()
def judge(regressor: PromptRegressor, held_out: LabelledPrompts) -> dict[str, float]:
    """`fit_figures` on held-out prompts, with their mean label variance and how many they are."""
    figures = fit_figures(regressor(held_out.features), held_out.labels, regressor.label_mean)
    return figures | {"label_variance": float(held_out.variance.mean()), "held_out": float(len(held_out))}


def verdict(figures: dict[str, float]) -> str:
    """What the figures mean, in words."""
    if not math.isfinite(figures["r2"]):
        return "it cannot be judged: squared errors overflow at so large a beta"
    if figures["mse_of_mean"] <= AS_GOOD * figures["label_variance"]:
        return "the labels of these prompts differ by little more than their noise"
    if figures["mse"] <= AS_GOOD * figures["label_variance"]:
        return "as good as its labels"
    if figures["r2"] < NO_BETTER:
        return "no better than one number for all prompts: the features do not tell log Z"
    return f"it tells {figures['r2']:.0%} of the differences between prompts"


@torch.no_grad()
def watch_figures(
    regressor: PromptRegressor, held_out: LabelledPrompts, records: Sequence[PromptRecord], tilt: Tilt
) -> dict[str, float]:
    """What `distmatch.callbacks.log_z_watch` compares rollouts with: mean of Z / exp(g) by the proposals.

    With g the regressor and Z the partition function of token sums (whatever partition g is fitted to), for
    every held-out prompt

        ratio  = Z / exp(g)                  mean over i of pi_ref/p exp(beta r - g), unbiased
        square = E_ref[exp(2 beta r - 2 g)]  the same with twice the tilt, unbiased

    Returns:
        `ratio`: their mean; `ratio_error`: its standard error; `between`: variance of the ratios over
        prompts; `within`: mean variance of exp(beta r - g) over answers of the reference to one prompt.
    """
    g = regressor(held_out.features).double()
    once, twice = (
        torch.stack([log_z(log_weights(record, k * tilt.beta, "sequence")) for record in records])
        for k in (1, 2)
    )
    ratio, square = (once - g).exp(), (twice - 2 * g).exp()
    return {
        "ratio": float(ratio.mean()),
        "ratio_error": float(ratio.std()) / len(ratio) ** 0.5,
        "between": float(ratio.var()),
        "within": float((square - ratio.square()).clamp(min=0).mean()),
    }


@torch.no_grad()
def _draw(
    regressor: PromptRegressor, whole: LabelledPrompts, data: Labelled, parts: Sequence[Tensor], r2: float
) -> Any:
    predictions = regressor(whole.features)
    groups = [
        Fitted(
            f"{name}, {len(part)} prompts",
            predictions[part].tolist(),
            [data.labels[i] for i in part.tolist()],
        )
        for name, part in zip(("fitted", "held out"), parts, strict=True)
    ]
    return draw_calibration(groups, data.tilt.beta, data.tilt.partition, r2)


def _labels_hash(labels: Tensor) -> str:
    return settings_hash({"labels": [round(value, 6) for value in labels.tolist()]})


def _device(cfg: DictConfig) -> torch.device:
    wanted = cfg.trainer.accelerator in ("auto", "gpu", "cuda")
    return torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")
