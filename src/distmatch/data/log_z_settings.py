"""What decides a regressor of log Z: settings of stage `log_z`, its folder, and the runs it holds for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from distmatch.data.proposal_records import PARTITIONS, Partition, read_manifest
from distmatch.data.warm_start import settings_hash
from distmatch.losses.prompt_regressor import FEATURES
from distmatch.settings.errors import ConfigError, did_you_mean

HEAD = "RegressorLogZ"


@dataclass(frozen=True)
class Tilt:
    """The target whose log Z is meant.

    Attributes:
        beta: Inverse temperature on the reward.
        length_normalize: Whether the loss takes means over tokens.
        partition: A name of `distmatch.data.proposal_records.PARTITIONS`.
    """

    beta: float
    length_normalize: bool
    partition: Partition


def anchored_loss(node: object) -> DictConfig | None:
    """The node of the loss whose log Z comes from a regressor, in `algo` or somewhere inside it."""
    if not isinstance(node, DictConfig):
        return None
    head = node.get("log_z")
    if isinstance(head, DictConfig) and str(head.get("_target_", "")).endswith(f".{HEAD}"):
        return node
    return next((found for child in node.values() if (found := anchored_loss(child)) is not None), None)


def tilt_of(cfg: DictConfig) -> Tilt:
    """The target of the config's loss.

    Raises:
        ConfigError: No loss of the config is anchored, its beta is out of range, or `log_z.partition` does
            not fit it.
    """
    loss = anchored_loss(cfg.algo)
    if loss is None:
        raise ConfigError(
            "log Z is estimated for a target, and this algo has none with a regressor of it; add algo=disa"
        )
    if not 0 < loss.beta < math.inf:
        raise ConfigError(f"algo.beta={loss.beta} must be finite and above 0")
    normalize = bool(loss.length_normalize)
    partition = cfg.log_z.partition or ("token_mean_fixed_point" if normalize else "sequence")
    if partition not in PARTITIONS:
        hint = did_you_mean(str(partition), PARTITIONS, "log_z.partition={}")
        raise ConfigError(f"log_z.partition={partition} must be one of: {', '.join(PARTITIONS)}.{hint}")
    if normalize == (partition == "sequence"):
        fitting = [name for name in PARTITIONS if (name == "sequence") != normalize]
        raise ConfigError(
            f"log_z.partition={partition} does not fit algo.length_normalize={normalize}".lower()
            + f": choose {' or '.join(fitting)}, or set algo.length_normalize={not normalize}".lower()
        )
    return Tilt(float(loss.beta), normalize, partition)


def check_log_z(cfg: DictConfig) -> None:
    """Refuse settings of stage `log_z` that do not fit the loss or each other, before a stage starts.

    Raises:
        ConfigError: See `tilt_of`, and for features that there are not.
    """
    tilt_of(cfg)
    unknown = [name for name in cfg.log_z.features if name not in FEATURES]
    if unknown or not cfg.log_z.features:
        hint = did_you_mean(str(unknown[0]), FEATURES, "log_z.features=[{}]") if unknown else ""
        given = ",".join(map(str, cfg.log_z.features))
        raise ConfigError(f"log_z.features=[{given}] must be some of: {', '.join(FEATURES)}.{hint}")


def log_z_folder(cfg: DictConfig) -> Path:
    """Where the regressor of these settings lies, or will lie."""
    return Path(cfg.paths.cache_dir) / f"log_z-{settings_hash(dependencies(cfg))}"


def dependencies(cfg: DictConfig) -> dict[str, Any]:
    """The settings that decide it; proposals count by what they hold, not by their place."""
    tilt = tilt_of(cfg)
    proposals = read_manifest(Path(cfg.log_z.proposals))
    knobs = OmegaConf.to_container(cfg.log_z, resolve=True)
    return {
        "proposals": {key: proposals[key] for key in ("hash", "prompts", "samples")},
        "reference": proposals["reference"],
        "beta": tilt.beta,
        "length_normalize": tilt.length_normalize,
        "log_z": {**knobs, "proposals": None, "partition": tilt.partition},
    }


def run_identity(cfg: DictConfig) -> dict[str, Any]:
    """What estimates of log Z hold for besides the tilt and the reference."""
    return {
        "task": OmegaConf.to_container(cfg.task, resolve=True),
        "reward": OmegaConf.to_container(cfg.reward, resolve=True),
        "temperature": float(cfg.data.temperature),
        "max_tokens": int(cfg.data.max_tokens),
    }


def check_holds(manifest: Mapping[str, Any], cfg: DictConfig, reference_hash: str, place: str) -> None:
    """Refuse estimates of log Z that were made for another run.

    Args:
        manifest: Of proposals or of a regressor.
        cfg: The run's config.
        reference_hash: Of the run's reference.
        place: What names the manifest's folder, such as `log_z.folder=logs/cache/log_z-1`.

    Raises:
        ConfigError: Names what differs, and both values.
    """
    for key, wanted in run_identity(cfg).items():
        if manifest[key] != wanted:
            raise ConfigError(
                f"{place} was made with {key}={_brief(manifest[key])}, but this run has "
                f"{key}={_brief(wanted)}: its log Z is another one. Leave the setting at stage:<name> to "
                "have it made anew"
            )
    if manifest["reference"]["weights_hash"] != reference_hash:
        raise ConfigError(
            f"{place} was made for another reference model than this run's: log Z depends on its weights. "
            "Choose that model, or leave the setting at stage:<name> to have it made anew"
        )


def _brief(value: object) -> str:
    return str(value) if len(str(value)) <= 120 else f"{str(value)[:117]}..."
