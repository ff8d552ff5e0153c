"""The stage `proposals`: many answers to each of many prompts, drawn offline, from which log Z is estimated.

DISA (arXiv 2605.17295), stage 1. N trajectories a prompt come from proposal models p_T; stored are their
log-probabilities under the reference pi_ref and under every proposal, and their rewards.

Models score the very token strings that were sampled. One that was cut at `max_tokens` is a trajectory like
any other: in the language with that limit, "these max_tokens tokens, without an end" is an outcome of its
own, and its probability under any model is the product of its tokens, so the weights stay right.

With `top_p` below 1 a proposal never writes some of what the reference may write. If no other proposal does,
what is estimated is the sum over the kept support, a lower bound of Z: refused, unless it is asked for by
name.

A row's randomness comes from the stage's own seed, the prompt's position and the trajectory's number alone.
So a run that was killed goes on where it stood, and more prompts or samples extend the folder by what one
longer run would have drawn: the same tokens, and log-probabilities equal to rounding.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.progress import track

from distmatch.data import proposal_settings as settings
from distmatch.data.proposal_drawing import Drawing
from distmatch.data.proposal_records import held, write_shard
from distmatch.data.warm_start import settings_hash
from distmatch.settings import lock
from distmatch.settings.errors import ConfigError
from distmatch.settings.manifest import MANIFEST, json_text, load_manifest
from distmatch.study.log_z_report import report


def run(cfg: DictConfig) -> dict[str, float]:
    """Draw what is missing, and say how good the estimates of log Z are.

    Returns:
        Figures `proposals/<name>` over all prompts.

    Raises:
        ConfigError: Settings that cannot give an estimate, or models that do not share a vocabulary.
    """
    settings.check_settings(cfg)
    folder = proposals_folder(cfg)
    if not (folder / MANIFEST).exists():
        _make(cfg, folder)
    return report(folder, Path(cfg.paths.run_dir), cfg.proposals)


def proposals_folder(cfg: DictConfig) -> Path:
    """The folder of the result: `<cache>/proposals-<hash>/<prompts>x<samples>`; shards lie beside it."""
    size = f"{cfg.proposals.prompts}x{cfg.proposals.samples}"
    return Path(cfg.paths.cache_dir) / f"proposals-{settings_hash(settings.dependencies(cfg))}" / size


def _make(cfg: DictConfig, folder: Path) -> None:
    base, samples = folder.parent, int(cfg.proposals.samples)
    base.mkdir(parents=True, exist_ok=True)
    lock.hold(base, f"stage=proposals: {base}")
    with closing(Drawing(cfg)) as drawing:
        described = drawing.describe(cfg)
        _check_same(base, described)
        shards = settings.plan_shards(
            held(base), cfg.proposals.prompts, samples, cfg.proposals.prompts_per_shard
        )
        for prompts, first in track(shards, description="proposals", disable=not shards):
            write_shard(base, drawing.rows(prompts, first, samples))
    folder.mkdir(exist_ok=True)
    _write(folder / MANIFEST, described | {"prompts": int(cfg.proposals.prompts), "samples": samples})


def _check_same(base: Path, described: dict[str, Any]) -> None:
    """Write what the shards are made with, or see that it is still so.

    Raises:
        ConfigError: Models or tokenizer of the shards that are there were others.
    """
    if not (base / MANIFEST).exists():
        _write(base / MANIFEST, described)
        return
    before = load_manifest(base)
    for key in ("settings", "reference", "models", "tokenizer_hash"):
        if before.get(key) != described[key]:
            raise ConfigError(
                f"{base} was drawn with {key}={before.get(key)}, now it is {described[key]}; its "
                "trajectories cannot be extended: move the folder away to draw them anew"
            )


def _write(file: Path, values: dict[str, Any]) -> None:
    scratch = file.with_suffix(".tmp")
    scratch.write_text(json_text(values), encoding="utf-8")
    scratch.replace(file)
