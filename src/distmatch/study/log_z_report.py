"""What stage `proposals` says about its estimates: table, `diagnostics.json`, histograms, picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from distmatch.data.proposal_labels import (
    PromptLabel,
    is_sound,
    overall_verdict,
    plain,
    prompt_labels,
    write_labels,
)
from distmatch.data.proposal_records import Partition, PromptRecord, log_weights, read_proposals, scales
from distmatch.metrics import log_z
from distmatch.settings.manifest import json_text
from distmatch.study.log_z_picture import draw

FILE, PICTURE = "diagnostics.json", "diagnostics.png"

Row = dict[str, float]

FIGURES = {
    "log_z": "log Z",
    "standard_error": "its standard error",
    "bias": "its bias",
    "interval": "width of its 95 % interval",
    "ess": "effective samples",
    "ess_share": "their share of N",
    "max_weight": "share of the largest weight",
    "pareto_k": "Pareto-k",
    "coverage": "Z at beta = 0 (should be 1)",
}
"""What the table shows of every prompt, and its name there."""


def report(folder: Path, run_dir: Path, knobs: DictConfig) -> dict[str, float]:
    """Make the labels of a result for `knobs.beta` and `knobs.partition`, and say what they are worth.

    Args:
        folder: `proposals-<hash>/<prompts>x<samples>`; the labels are written there too.
        run_dir: Where diagnostics, picture and events go.
        knobs: The config's node `proposals`.

    Returns:
        The figures over all prompts, `proposals/<name>`.
    """
    records, partition, beta = read_proposals(folder), knobs.partition, float(knobs.beta)
    labels = prompt_labels(records, beta, partition)
    write_labels(folder, labels, beta, partition)
    scanned = [scan_point(records, b, partition) for b in sorted({*map(float, knobs.betas), beta})]
    against = variance_against_samples(records, beta, partition)
    size = f"{len(labels)} prompts, N = {labels[0].samples}"
    title = f"log Z, partition function {partition}, beta = {beta:g}: {size}"
    verdict, sentence = overall_verdict(labels)
    overall = summary(labels)
    content = {
        "title": title,
        "partition": partition,
        "beta": beta,
        "folder": folder.as_posix(),
        "verdict": verdict,
        "sentence": sentence,
        "overall": overall,
        "scan": scanned,
        "variance_against_samples": against,
        "prompts": [{k: v for k, v in plain(label).items() if k != "prompt_ids"} for label in labels],
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / FILE).write_text(json_text(content), encoding="utf-8")
    untilted = (log_z.effective_sample_size(*_stacked(records, 0.0, partition)) / labels[0].samples).tolist()
    draw(run_dir / PICTURE, title, labels, untilted, scanned, against)
    _write_events(run_dir / "tensorboard", records, labels, beta, partition)
    _print(title, labels, scanned, f"{verdict}: {sentence}", folder)
    return {f"proposals/{name}": value for name, value in overall.items()}


def summary(labels: Sequence[PromptLabel]) -> Row:
    """Figures over all prompts.

    Medians of what each prompt has, the share of usable ones, the spread of log Z between prompts, and
    `reliability`: 1 - mean label variance over the variance of labels, the largest R2 that a regressor can
    show against such labels.
    """
    values = {name: _column(labels, name).nanmedian() for name in FIGURES}
    estimates = _column(labels, "log_z")
    spread = estimates.var() if len(labels) > 1 else torch.tensor(math.nan)
    noise = _column(labels, "variance").mean()
    usable = sum(label.verdict == "usable" for label in labels) / len(labels)
    found = {name: float(value) for name, value in values.items()}
    return found | {
        "usable": usable,
        "spread": float(spread.sqrt()),
        "reliability": float(1 - noise / spread),
    }


def scan_point(records: Sequence[PromptRecord], beta: float, partition: Partition) -> Row:
    """One beta, from the same trajectories: variance by the delta method and between halves, ESS, soundness.

    The delta method's figure cannot exceed 1, where one weight has all; the variance between halves has no
    such bound, so that the cliff is seen in it.
    """
    weights, scale = _stacked(records, beta, partition)
    variances, count = log_z.variance(weights, scale), weights.shape[1]
    halves = log_z.subsample_variance(weights, count // 2, scale)
    shares = log_z.effective_sample_size(weights, scale) / count
    edges = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    low, middle, high = torch.quantile(variances, edges).tolist()
    return {
        "beta": beta,
        "variance": middle,
        "variance_low": low,
        "variance_high": high,
        "variance_of_halves": float(halves.mean()),
        "ess_share": float(shares.median()),
        "usable": sum(is_sound(log_weights(r, beta, partition), scales(r, partition)) for r in records)
        / len(records),
    }


def variance_against_samples(records: Sequence[PromptRecord], beta: float, partition: Partition) -> list[Row]:
    """Mean variance of a label made of fewer trajectories, by subsampling; at N by the delta method."""
    weights, scale = _stacked(records, beta, partition)
    found = {
        size: log_z.subsample_variance(weights, size, scale) for size in log_z.halvings(weights.shape[1])
    }
    found[weights.shape[1]] = log_z.variance(weights, scale)
    return [{"samples": float(size), "variance": float(value.mean())} for size, value in found.items()]


def _stacked(
    records: Sequence[PromptRecord], beta: float, partition: Partition
) -> tuple[Tensor, Tensor | None]:
    """Log-weights and scales of all prompts, (prompts, N) or None: a result has equally many of each."""
    weights = torch.stack([log_weights(record, beta, partition) for record in records])
    each = [scales(record, partition) for record in records]
    lengths = [scale for scale in each if scale is not None]
    return weights, torch.stack(lengths) if lengths else None


def _column(labels: Sequence[PromptLabel], name: str) -> Tensor:
    derived = {
        "standard_error": lambda label: math.sqrt(label.variance),
        "interval": lambda label: label.high - label.low,
    }
    values = [derived[name](x) if name in derived else getattr(x, name) for x in labels]
    return torch.tensor(values, dtype=torch.float64)


def _write_events(
    folder: Path,
    records: Sequence[PromptRecord],
    labels: Sequence[PromptLabel],
    beta: float,
    partition: Partition,
) -> None:
    tag = f"log_z {partition} beta={beta:g}"
    weights = log_z.relative_log_weights(*_stacked(records, beta, partition))
    with SummaryWriter(folder) as writer:
        writer.add_histogram(f"{tag}/log_weights", weights)
        for name in ("ess_share", "log_z", "pareto_k"):
            values = _column(labels, name)
            known = values[values.isfinite()]
            if len(known):
                writer.add_histogram(f"{tag}/{name}", known)


def _print(
    title: str, labels: Sequence[PromptLabel], scanned: Sequence[Row], verdict: str, folder: Path
) -> None:
    console = Console()
    console.print(title, highlight=False, soft_wrap=True)
    table = Table()
    for name in ("", "10 %", "median", "90 %"):
        table.add_column(name, justify="left" if not name else "right")
    edges = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    for key, name in FIGURES.items():
        values = torch.nanquantile(_column(labels, key), edges).tolist()
        table.add_row(name, *(f"{value:.3f}" for value in values))
    console.print(table)
    console.print("the same answers at other beta", highlight=False)
    betas = Table()
    columns = {"beta": "beta", "ess_share": "ESS / N", "variance": "variance", "usable": "sound prompts"}
    for name in columns.values():
        betas.add_column(name, justify="right")
    for row in scanned:
        betas.add_row(*(f"{row[key]:g}" if key == "beta" else f"{row[key]:.3f}" for key in columns))
    console.print(betas)
    console.print(verdict, highlight=False, soft_wrap=True)
    console.print(f"proposals in {folder}", highlight=False, soft_wrap=True)
