"""log Z labels of prompts, made of stored trajectories: estimate, uncertainty, and a verdict in words."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from distmatch.data.proposal_records import (
    Partition,
    PromptRecord,
    log_weights,
    scales,
)
from distmatch.metrics import log_z
from distmatch.metrics.pareto import largest_reliable_k, pareto_k

Verdict = Literal["usable", "weak proposal", "tilt too strong"]

LEAST_ESS = 20.0
"""Effective samples that a usable label rests on: its standard error is then some 1/sqrt(20) = 0.22 nats, and
an interval made of fewer weights holds the truth too rarely."""


@dataclass(frozen=True)
class PromptLabel:
    """log Z of one prompt for one beta and one partition function.

    Attributes:
        index: Position among the stage's prompts.
        instance: Id of the instance.
        prompt_ids: The rendered prompt.
        log_z: The importance-sampling estimate, in nats.
        log_z_jackknife: The same without its bias of order 1/N.
        variance: Of `log_z` by the delta method, in nats squared; 1 / variance is the label's precision.
        bias: Of `log_z` by the delta method, in nats.
        ess: Effective sample size of the weights.
        ess_share: `ess` / N.
        max_weight: Share of the largest weight in the sum.
        pareto_k: Shape of the weights' tail; nan where there is no tail to fit.
        low, high: A 95 % interval of log Z, by studentised bootstrap.
        verdict: `usable`, `weak proposal` or `tilt too strong`; see `judge`.
        coverage: Estimate of Z at beta = 0, which is 1 for `sequence` and `token_mean_fixed_point`: how much
            of the reference's mass the trajectories stand for. In a truncated support it is that support's
            mass.
        samples: N.
    """

    index: int
    instance: str
    prompt_ids: tuple[int, ...]
    log_z: float
    log_z_jackknife: float
    variance: float
    bias: float
    ess: float
    ess_share: float
    max_weight: float
    pareto_k: float
    low: float
    high: float
    verdict: Verdict
    coverage: float
    samples: int


def prompt_label(record: PromptRecord, beta: float, partition: Partition) -> PromptLabel:
    """The label of one prompt.

    Raises:
        ConfigError: There is no such partition function.
        ValueError: Fewer than two trajectories, or a weight that is not finite.
    """
    weights, scale = log_weights(record, beta, partition), scales(record, partition)
    untilted = log_weights(record, 0.0, partition)
    low, high = log_z.bootstrap_interval(weights, scale)
    ess = float(log_z.effective_sample_size(weights, scale))
    return PromptLabel(
        index=record.index,
        instance=record.instance,
        prompt_ids=record.prompt_ids,
        log_z=float(log_z.log_z(weights, scale)),
        log_z_jackknife=float(log_z.jackknife(weights, scale)),
        variance=float(log_z.variance(weights, scale)),
        bias=float(log_z.bias(weights, scale)),
        ess=ess,
        ess_share=ess / len(weights),
        max_weight=float(log_z.largest_weight(weights, scale)),
        pareto_k=pareto_k(log_z.relative_log_weights(weights, scale)),
        low=low,
        high=high,
        verdict=judge(weights, untilted, scale),
        coverage=float(log_z.log_z(untilted).exp()),
        samples=len(weights),
    )


def prompt_labels(records: Sequence[PromptRecord], beta: float, partition: Partition) -> list[PromptLabel]:
    """The labels of all prompts, in order."""
    return [prompt_label(record, beta, partition) for record in records]


def judge(weights: Tensor, untilted: Tensor, scale: Tensor | None = None) -> Verdict:
    """Whether a label may be used, and if not, what is to blame.

    The weights at beta are sound, or they are not (`is_sound`). If they are not, the weights at beta = 0 tell
    the causes apart. Unsound there too, the proposal does not write what the reference writes: a weak
    proposal. Sound there, proposal and reference agree well enough, and it is exp(beta * r) that makes a few
    answers outweigh the rest: the tilt is too strong for this proposal and N.

    No verdict can know of good answers that no trajectory shows. A label without a single one looks sound and
    is too low; more samples, or a second proposal, bring it to light.

    Args:
        weights: Log-weights at beta, (N,).
        untilted: The same trajectories at beta = 0, (N,).
        scale: See `distmatch.data.proposal_records.scales`.
    """
    if is_sound(weights, scale):
        return "usable"
    return "tilt too strong" if is_sound(untilted, scale) else "weak proposal"


def is_sound(weights: Tensor, scale: Tensor | None = None) -> bool:
    """At least `LEAST_ESS` effective samples, and a Pareto-k, if any, of at most `largest_reliable_k(N)`."""
    if float(log_z.effective_sample_size(weights, scale)) < LEAST_ESS:
        return False
    return not pareto_k(log_z.relative_log_weights(weights, scale)) > largest_reliable_k(len(weights))


def overall_verdict(labels: Sequence[PromptLabel]) -> tuple[Verdict, str]:
    """The verdict on all prompts together, and a sentence of reasons.

    Usable if at least nine prompts in ten are; else the more frequent of the two faults.
    """
    counts = {word: sum(label.verdict == word for label in labels) for word in ADVICE}
    faults = {word: count for word, count in counts.items() if word != "usable"}
    worst = max(faults, key=lambda word: faults[word])
    verdict = "usable" if counts["usable"] >= LEAST_USABLE * len(labels) else worst
    shares = ", ".join(f"{count} {word}" for word, count in counts.items())
    return verdict, f"{len(labels)} prompts: {shares}. {ADVICE[verdict]}"


LEAST_USABLE = 0.9
"""Share of prompts that must be usable for all of them to be called so."""

ADVICE: dict[Verdict, str] = {
    "usable": "The labels can be learnt from.",
    "weak proposal": "The proposal seldom writes what the reference writes: mix the reference in as a second "
    "proposal, take a better one, or raise proposals.samples.",
    "tilt too strong": "A few answers outweigh the rest at this beta: lower beta, raise proposals.samples, "
    "or take a proposal that writes better answers more often.",
}


def labels_file(folder: Path, beta: float, partition: Partition) -> Path:
    """Where the labels for one beta and one partition function lie in a folder of proposals."""
    return folder / f"labels-{beta:g}-{partition}.jsonl"


def write_labels(folder: Path, labels: Sequence[PromptLabel], beta: float, partition: Partition) -> Path:
    """Write one line a prompt; a number that is not known is null."""
    file = labels_file(folder, beta, partition)
    scratch = file.with_suffix(".tmp")
    scratch.write_text("".join(json.dumps(plain(label)) + "\n" for label in labels), encoding="utf-8")
    scratch.replace(file)
    return file


def plain(label: PromptLabel) -> dict[str, object]:
    """A label as JSON values."""
    values = dataclasses.asdict(label)
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
