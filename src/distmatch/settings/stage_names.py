"""The names of the stages before a policy run, known without importing what they do."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from distmatch.settings.errors import ConfigError, did_you_mean

STAGE_NAMES = ("warm_start", "proposal_model", "proposals", "log_z")
STAGE_MARK = "stage:"
"""A value that begins so stands for the folder of that stage's result, as in `stage:log_z`."""


def check_stages(cfg: DictConfig) -> None:
    """Every value `stage:<name>` names a stage."""
    for path, value in _values(OmegaConf.to_container(cfg)):
        if isinstance(value, str) and value.startswith(STAGE_MARK):
            name = value.removeprefix(STAGE_MARK)
            if name not in STAGE_NAMES:
                hint = did_you_mean(name, STAGE_NAMES, f"{path}={STAGE_MARK}{{}}")
                raise ConfigError(f"{path}={value}: the stages are {', '.join(STAGE_NAMES)}.{hint}")


def _values(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Path and value of everything below a node that is neither a mapping nor a list."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _values(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node
