"""What decides a stored trajectory: the settings of stage `proposals`, and what they may not be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from distmatch.data.warm_start import content_hash, model_folder, settings_hash
from distmatch.sampling.base import SamplingParams
from distmatch.settings.errors import ConfigError


def proposals_folder(cfg: DictConfig) -> Path:
    """Where the trajectories of these settings lie, however many there are."""
    return Path(cfg.paths.cache_dir) / f"proposals-{settings_hash(dependencies(cfg))}"


def proposal_nodes(cfg: DictConfig) -> dict[str, DictConfig]:
    """The proposals by name; those that are null are left out."""
    return {str(name): node for name, node in cfg.proposals.models.items() if node is not None}


def dependencies(cfg: DictConfig) -> dict[str, Any]:
    """The settings that decide a trajectory; not how many there are, nor what is made of them."""
    return {
        "task": OmegaConf.to_container(cfg.task, resolve=True),
        "reward": OmegaConf.to_container(cfg.reward, resolve=True),
        "model": model_identity(cfg.model),
        "sampler": cfg.sampler._target_,
        "data": {"temperature": float(cfg.data.temperature), "max_tokens": int(cfg.data.max_tokens)},
        "seed": int(cfg.proposals.seed),
        "models": {name: _identity(node) for name, node in proposal_nodes(cfg).items()},
    }


def _identity(node: DictConfig) -> dict[str, Any]:
    numbers = {key: float(node[key]) for key in ("share", "temperature", "top_p")}
    return {**numbers, "model": None if node.model is None else model_identity(node.model)}


def model_identity(node: DictConfig) -> Mapping[str, Any]:
    """A model's settings, with the content of its weights in place of a local folder's name."""
    settings = OmegaConf.to_container(node, resolve=True)
    for key in ("weights", "path"):
        value = settings.get(key)
        if isinstance(value, str) and (folder := model_folder(value)).is_dir():
            settings[key] = content_hash(folder)
    return settings


def sampling_params(cfg: DictConfig, node: DictConfig, n: int = 1) -> SamplingParams:
    """How a proposal samples; the same values score what it wrote."""
    return SamplingParams(n, int(cfg.data.max_tokens), float(node.temperature), float(node.top_p))


def check_settings(cfg: DictConfig) -> None:
    """Refuse what cannot give an estimate, before a model is loaded.

    Raises:
        ConfigError: No proposal, a share, temperature, top_p or beta out of range, fewer than two samples a
            prompt or fewer than the shares need, or a truncated support that is not allowed.
    """
    nodes = proposal_nodes(cfg)
    if not nodes:
        raise ConfigError("proposals.models is empty: name a model to draw trajectories from")
    for name, node in nodes.items():
        _check_proposal(cfg, name, node)
    if not all(isinstance(beta, int | float) and 0 <= beta < math.inf for beta in cfg.proposals.betas):
        raise ConfigError(f"proposals.betas={list(cfg.proposals.betas)} must be numbers of at least 0")
    if all(node.top_p != 1 for node in nodes.values()) and not cfg.proposals.allow_truncated_support:
        name, node = next(iter(nodes.items()))
        raise ConfigError(
            f"proposals.models.{name}.top_p={node.top_p} must be 1: with less, answers that the reference "
            "may write are never drawn, and log Z covers the kept ones only, a lower bound. Mix in a "
            "proposal with top_p=1, or accept that with proposals.allow_truncated_support=true"
        )
    samples = int(cfg.proposals.samples)
    written = sources([float(node.share) for node in nodes.values()], samples)
    if samples < 2 or len(set(written)) < len(nodes):
        raise ConfigError(
            f"proposals.samples={samples} must be at least 2, and enough for each of {', '.join(nodes)} to "
            "write an answer by its share"
        )


def _check_proposal(cfg: DictConfig, name: str, node: DictConfig) -> None:
    for key in ("share", "temperature", "top_p"):
        if not isinstance(node[key], int | float):
            raise ConfigError(f"proposals.models.{name}.{key}={node[key]} must be a number")
    if not 0 < node.share < math.inf:
        raise ConfigError(f"proposals.models.{name}.share={node.share} must be above 0, and finite")
    try:
        sampling_params(cfg, node)
    except ValueError as error:
        raise ConfigError(f"proposals.models.{name}: {error}") from error


def sources(shares: Sequence[float], samples: int) -> list[int]:
    """Which proposal writes trajectory 0, 1, ...: always the one that lags most behind its share."""
    counts, order = [0] * len(shares), []
    for due in range(1, samples + 1):
        lag = [share / sum(shares) * due - count for share, count in zip(shares, counts, strict=True)]
        order.append(lag.index(max(lag)))
        counts[order[-1]] += 1
    return order


def plan_shards(
    have: Mapping[int, int], prompts: int, samples: int, prompts_per_shard: int
) -> list[tuple[list[int], int]]:
    """What is missing, cut into shards: prompts that lack the same trajectories, and the first of those.

    Args:
        have: Trajectories that are stored, by prompt.
        prompts: How many prompts there should be.
        samples: How many trajectories each should have.
        prompts_per_shard: At most so many prompts in a shard.
    """
    shards: list[tuple[list[int], int]] = []
    for index in range(prompts):
        first = have.get(index, 0)
        if first >= samples:
            continue
        last = shards[-1] if shards else ([], -1)
        follows = last[1] == first and last[0][-1] == index - 1 and len(last[0]) < prompts_per_shard
        if follows:
            last[0].append(index)
        else:
            shards.append(([index], first))
    return shards
