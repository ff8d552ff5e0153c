"""Trajectories of stage `proposals` as they lie on disk, and the importance weights that are made of them.

A folder `proposals-<hash>` holds `shards/shard-00000.jsonl`, ... A line of a shard is some trajectories of
one prompt, from number `first` on; later shards add prompts, or more trajectories of prompts that earlier
ones have. Beside the shards every result has a folder `<prompts>x<samples>` with a manifest: the first so
many of each, so that a result stays what it is when a larger one is made. Stored are log-probabilities of
whole answers (sums over tokens, at the temperature of each model), lengths and rewards: nothing in a shard
depends on beta or on a partition function.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from distmatch.settings.errors import ConfigError, did_you_mean
from distmatch.settings.manifest import MANIFEST, load_manifest

KIND = "proposals"
SHARDS = "shards"

Partition = Literal["sequence", "token_mean", "token_mean_fixed_point"]
"""Which log Z is meant; see `PARTITIONS`."""


@dataclass(frozen=True)
class Trajectory:
    """One answer that a proposal wrote.

    Attributes:
        ids: Completion tokens, EOS included.
        finished: Whether it ended by itself; else it was cut at `max_tokens`.
        log_ref: Log-probability under the reference at the training temperature, in nats, summed over `ids`.
        log_proposals: The same under every proposal, each as it samples; -inf outside a truncated support.
        reward: By the run's reward definition.
        length: Number of `ids`.
        text: As the verifier read it.
        source: Position of the proposal that wrote it.
    """

    ids: tuple[int, ...]
    finished: bool
    log_ref: float
    log_proposals: tuple[float, ...]
    reward: float
    length: int
    text: str
    source: int


@dataclass(frozen=True)
class PromptRecord:
    """One prompt with its N trajectories in the order of their numbers.

    Attributes:
        index: Position among the stage's prompts.
        split: Split that the instance is of.
        address: Its index in that split: `task.instance(split, address)`.
        instance: Its id.
        prompt_ids: The rendered prompt.
        trajectories: N of them.
    """

    index: int
    split: str
    address: int
    instance: str
    prompt_ids: tuple[int, ...]
    trajectories: tuple[Trajectory, ...]

    @cached_property
    def log_ref(self) -> Tensor:
        """Under the reference, (N,) float64."""
        return torch.tensor([t.log_ref for t in self.trajectories], dtype=torch.float64)

    @cached_property
    def rewards(self) -> Tensor:
        """Rewards, (N,) float64."""
        return torch.tensor([t.reward for t in self.trajectories], dtype=torch.float64)

    @cached_property
    def lengths(self) -> Tensor:
        """Lengths in tokens, (N,) float64."""
        return torch.tensor([t.length for t in self.trajectories], dtype=torch.float64)

    @cached_property
    def log_proposal(self) -> Tensor:
        """Under the mixture that the trajectories were drawn from, (N,) float64.

        The balance heuristic (Veach and Guibas 1995): log of the sum over proposals of n_j / N * p_j(o), with
        n_j the number of trajectories that proposal j wrote. Whichever proposal wrote an answer, its weight
        is the same, and the estimate of Z stays unbiased.
        """
        written = Counter(t.source for t in self.trajectories)
        logs = torch.tensor([t.log_proposals for t in self.trajectories], dtype=torch.float64)  # (N, J)
        shares = torch.tensor([written[j] for j in range(logs.shape[1])], dtype=torch.float64) / len(logs)
        return (logs + shares.log()).logsumexp(dim=1)


# ---- partition functions -----------------------------------------------------------------------------------


def _sequence(record: PromptRecord, beta: float) -> Tensor:
    return record.log_ref - record.log_proposal + beta * record.rewards


def _token_mean(record: PromptRecord, beta: float) -> Tensor:
    return (record.log_ref - record.log_proposal) / record.lengths + beta * record.rewards


def _fixed_point(record: PromptRecord, beta: float) -> Tensor:
    return record.log_ref - record.log_proposal + beta * record.lengths * record.rewards


PARTITIONS: Mapping[str, Callable[[PromptRecord, float], Tensor]] = {
    "sequence": _sequence,
    "token_mean": _token_mean,
    "token_mean_fixed_point": _fixed_point,
}
"""The three things that log Z of a prompt can mean.

`sequence`: log of the sum over o of pi_ref(o) exp(beta * r(o)), the partition function of the target whose
balance residual is made of token sums.

`token_mean`: as `sequence`, with log pi_ref - log p divided by the length |o|. It fits losses with
`length_normalize` in form, but it is the partition function of nothing: it depends on the proposal.

`token_mean_fixed_point`: the constant with which the length-normalised residual can vanish. Put to zero for
every o,

    g + (log pi(o) - log pi_ref(o)) / |o| - beta * r(o) = 0

gives

    pi(o) = pi_ref(o) exp(|o| (beta * r(o) - g))

and pi sums to one for exactly one g: the sum over o of pi_ref(o) exp(|o| (beta * r(o) - g)) falls from
infinity to zero as g rises. From samples, g solves: mean over i of (pi_ref / p)(o_i) exp(|o_i| (beta * r_i -
g)) = 1. It does not depend on the proposal, and it equals `sequence` where all lengths are 1.
"""


def log_weights(record: PromptRecord, beta: float, partition: Partition) -> Tensor:
    """Log-weights l of one prompt, (N,) float64; their log Z solves mean exp(l - scale * g) = 1.

    Raises:
        ConfigError: There is no such partition function.
    """
    if partition not in PARTITIONS:
        known = ", ".join(PARTITIONS)
        hint = did_you_mean(str(partition), PARTITIONS)
        raise ConfigError(f"partition={partition!r} is unknown; choose one of: {known}.{hint}")
    return PARTITIONS[partition](record, beta)


def scales(record: PromptRecord, partition: Partition) -> Tensor | None:
    """What g is multiplied by in `log_weights`: the lengths for `token_mean_fixed_point`, else None for 1."""
    return record.lengths if partition == "token_mean_fixed_point" else None


# ---- files -------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of proposals.

    Raises:
        ConfigError: There is none, it is damaged, or it is of something else.
    """
    if not (folder / MANIFEST).is_file():
        raise ConfigError(f"{folder} has no {MANIFEST}: run `python train.py stage=proposals` first")
    manifest = load_manifest(folder)
    if manifest.get("kind") != KIND:
        raise ConfigError(f"{folder / MANIFEST} is of kind {manifest.get('kind')!r}, expected {KIND!r}")
    return manifest


def read_proposals(folder: Path) -> list[PromptRecord]:
    """The prompts of a result in order, each with its trajectories in order.

    Args:
        folder: `proposals-<hash>/<prompts>x<samples>`. Shards that were added for a larger result do not
            change what is read here.

    Raises:
        ConfigError: The folder is not one of proposals, or its shards are damaged or lack something.
    """
    manifest = read_manifest(folder)
    prompts, samples = int(manifest["prompts"]), int(manifest["samples"])
    heads: dict[int, dict[str, Any]] = {}
    found: dict[int, list[Trajectory]] = {}
    for row in _rows(folder.parent):
        if row["index"] < prompts:
            heads.setdefault(row["index"], row)
            found.setdefault(row["index"], []).extend(row["trajectories"])
    short = [index for index in range(prompts) if len(found.get(index, ())) < samples]
    if short:
        raise ConfigError(
            f"{folder.parent / SHARDS} has fewer than {samples} trajectories of prompts {short[:5]}: a shard "
            f"was removed; delete {folder} and run `python train.py stage=proposals` again"
        )
    return [_record(heads[index], found[index][:samples]) for index in range(prompts)]


def held(base: Path) -> dict[int, int]:
    """How many trajectories of which prompts `proposals-<hash>` has.

    Raises:
        ConfigError: A shard is damaged, or is missing between others.
    """
    counts: Counter[int] = Counter()
    for row in _rows(base):
        counts[row["index"]] += len(row["trajectories"])
    return dict(counts)


def write_shard(base: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Append a shard under the number after the last; it appears whole or not at all."""
    place = base / SHARDS
    place.mkdir(parents=True, exist_ok=True)
    last = max((int(file.stem.removeprefix("shard-")) for file in _shards(base)), default=-1)
    file = place / f"shard-{last + 1:05d}.jsonl"
    scratch = file.with_suffix(".tmp")
    scratch.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    scratch.replace(file)
    return file


def _shards(base: Path) -> list[Path]:
    return sorted((base / SHARDS).glob("shard-*.jsonl"))


def _rows(base: Path) -> Iterator[dict[str, Any]]:
    """The lines of all shards, with their trajectories; those of a prompt follow each other without a gap."""
    counts: Counter[int] = Counter()
    for file in _shards(base):
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                place = f"{file}, line {number},"
                row = _parsed(place, line)
                index, before = row["index"], counts[row["index"]]
                if row["first"] != before:
                    raise ConfigError(
                        f"{place} goes on with trajectory {row['first']} of prompt {index}, but {before} "
                        f"stand before it: a shard is missing. {_ANEW}"
                    )
                counts[index] += len(row["trajectories"])
                yield row


def _parsed(place: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        found = [_trajectory(entry) for entry in row["trajectories"]]
        return row | {"index": int(row["index"]), "first": int(row["first"]), "trajectories": found}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{place} is damaged ({type(error).__name__}: {error}). {_ANEW}") from error


_ANEW = "Put the file back as it was, or delete the folder above shards/ to have everything drawn anew"


def _record(row: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> PromptRecord:
    ids = tuple(row["prompt_ids"])
    head = (row["index"], row["split"], row["address"], row["instance"])
    return PromptRecord(*head, ids, tuple(trajectories))


def _trajectory(entry: Mapping[str, Any]) -> Trajectory:
    logs = tuple(-math.inf if value is None else value for value in entry["log_proposals"])
    return Trajectory(**{**entry, "ids": tuple(entry["ids"]), "log_proposals": logs})
