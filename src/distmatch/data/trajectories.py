"""Trajectories on disk: what runs and proposals leave, read back as answers to instances of this run's task.

Two kinds of folder are read. A run's has `config.yaml` and `rollouts.jsonl` (with several devices also
`rollouts-rank<n>.jsonl`), whose records hold texts. A proposals' folder has `manifest.json` and
`shards/*.jsonl`, whose lines hold trajectories of one prompt as token ids; of their fields these are read:

    {"split": "train", "address": 7, "instance": "...", "prompt_ids": [...],
     "trajectories": [{"ids": [...], "finished": true, "reward": 1.1, "text": "..."}, ...]}

A folder `<prompts>x<samples>` beside such shards stands for exactly so many of them: what one run asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from distmatch.data.proposal_records import SHARDS, read_proposals
from distmatch.data.rollouts import STREAM
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Split


@dataclass(frozen=True)
class Record:
    """One trajectory as a file has it.

    Attributes:
        place: File and line, for messages.
        split, index: Where the task has the instance.
        instance: Its id.
        text: The completion without special tokens.
        reward: As it was given when the trajectory was made.
        finished: Whether the completion ended by itself.
        ids: The completion's token ids, EOS included; None where only the text was kept.
        prompt_ids: Those of the prompt, or None.
    """

    place: str
    split: Split
    index: int
    instance: str
    text: str
    reward: float
    finished: bool
    ids: Sequence[int] | None = None
    prompt_ids: Sequence[int] | None = None


def read_records(folder: Path) -> Iterator[Record]:
    """All trajectories in a folder, in the order of its files.

    Raises:
        ConfigError: There is no such folder, it holds no trajectories, or a file of it is damaged.
    """
    if not folder.is_dir():
        raise ConfigError(f"data.path={folder}: there is no such folder")
    if (folder / "manifest.json").is_file() and (folder.parent / SHARDS).is_dir():
        yield from _from_proposals(folder)
        return
    if (folder / "manifest.json").is_file():
        files, read = sorted(folder.glob("shards/*.jsonl")), _from_shard
    else:
        files, read = sorted(folder.glob("rollouts*.jsonl")), _from_run
    if not files:
        raise ConfigError(
            f"data.path={folder} holds no trajectories: neither rollouts.jsonl of a run nor manifest.json "
            "with shards/*.jsonl of proposals"
        )
    seed = _run_seed(folder) if read is _from_run else 0
    for file in files:
        for place, line in _lines(file):
            try:
                yield from read(place, line, seed)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{place} is no trajectory: {type(error).__name__} {error}") from error


def _from_proposals(folder: Path) -> Iterator[Record]:
    for prompt in read_proposals(folder):
        for trajectory in prompt.trajectories:
            yield Record(
                place=f"{folder}, prompt {prompt.index},",
                split=cast(Split, prompt.split),
                index=prompt.address,
                instance=prompt.instance,
                text=trajectory.text,
                reward=trajectory.reward,
                finished=trajectory.finished,
                ids=trajectory.ids,
                prompt_ids=prompt.prompt_ids,
            )


def _from_run(place: str, line: dict[str, Any], seed: int) -> Iterator[Record]:
    yield Record(
        place=place,
        split="train",
        index=seed * STREAM + int(line["group"]),
        instance=str(line["instance"]),
        text=str(line["completion"]),
        reward=float(line["reward"]),
        finished=not line["truncated"],
    )


def _from_shard(place: str, line: dict[str, Any], seed: int) -> Iterator[Record]:
    for trajectory in line["trajectories"]:
        yield Record(
            place=place,
            split=cast(Split, line["split"]),
            index=int(line["address"]),
            instance=str(line["instance"]),
            text=str(trajectory["text"]),
            reward=float(trajectory["reward"]),
            finished=bool(trajectory["finished"]),
            ids=[int(token) for token in trajectory["ids"]],
            prompt_ids=[int(token) for token in line["prompt_ids"]],
        )


def _run_seed(folder: Path) -> int:
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"data.path={folder} has no config.yaml, which tells what its rollouts answer")
    cfg = OmegaConf.load(file)
    source = OmegaConf.select(cfg, "data.path")
    if source is not None:
        raise ConfigError(f"data.path={folder} only repeats stored trajectories; give their source: {source}")
    return int(cfg.seed)


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and content of every line; what a killed run left of its last one is passed over."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                content = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{file}, line {number}, is damaged: {error}") from error
            yield f"{file}, line {number},", content
