"""The entries of a study of the lab: a file of configs/algo each, with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distmatch.settings.checks import check
from distmatch.settings.compose import Catalogue, compose
from distmatch.settings.errors import ConfigError
from distmatch.tasks.command import configs_folder

if TYPE_CHECKING:  # torch is slow to import
    from distmatch.losses.base import Loss

EXACT_LOG_Z = "EXACT_LOG_Z"
"""Stands in an entry's settings for the true log Z of the landscape and reference of the cell."""


def compose_entry(name: str, entry: DictConfig, cfg: DictConfig) -> dict[str, Any]:
    """The settings of an entry's loss: its file in configs/algo with the entry's changes.

    Raises:
        ConfigError: No such algorithm or key, or a value that the loss cannot take.
    """
    if not isinstance(entry, DictConfig) or "algo" not in entry or set(entry) - {"algo", "set"}:
        raise ConfigError(f"entries.{name}={entry} must be {{algo: <name>}}, with set: {{<key>: <value>}}")
    changes = entry.get("set") or {}
    if not isinstance(changes, Mapping):
        raise ConfigError(f"entries.{name}.set={changes} must be settings by key, as in {{weight: 0.5}}")
    target = [f"algo._target_={changes['_target_']}"] if "_target_" in changes else []
    length = [f"data.max_tokens={cfg.task.length + 1}", f"data.group_size={cfg.group_size}"]
    overrides = [f"algo={entry.algo}", f"task={cfg.choices.task}", *length, *target]
    try:
        whole = compose(Catalogue(configs_folder("train"), "train"), overrides)
        whole.algo = _changed(whole.algo, changes)
        check(whole)
        algo = OmegaConf.to_container(whole.algo, resolve=True)
        make_loss(algo, int(cfg.group_size))
    except (ConfigError, OmegaConfBaseException) as error:
        raise ConfigError(f"entries.{name}: {error}") from error
    return algo


def make_loss(algo: Mapping[str, Any], group_size: int, log_z: float = 0.0) -> Loss:
    """Build a loss with a number in place of `EXACT_LOG_Z`.

    Raises:
        ConfigError: It refuses its settings or the group size, or is no loss.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    from distmatch.losses.base import check_declaration

    try:
        loss = instantiate(filled(algo, log_z))
        check_declaration(loss, group_size)
    except (InstantiationException, ValueError) as error:
        why = str(error.__cause__ or error)
        raise ConfigError(why if why.startswith("algo") else f"algo: {why}") from error
    return loss


def _changed(node: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """`node` with `changes`; a part that gets another `_target_`, or null, is replaced as a whole."""
    OmegaConf.set_struct(node, False)
    for key, value in changes.items():
        other = isinstance(value, Mapping) and "_target_" in value
        node[key] = value if other or not isinstance(value, Mapping) else OmegaConf.merge(node[key], value)
    return node


def filled(node: Any, exact: float) -> Any:
    """Settings with a number wherever they say `EXACT_LOG_Z`."""
    if isinstance(node, Mapping):
        return {key: filled(value, exact) for key, value in node.items()}
    return exact if node == EXACT_LOG_Z else node
