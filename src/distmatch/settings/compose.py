"""Composes a config with Hydra and puts Hydra's complaints into the user's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from distmatch.settings.errors import ConfigError, did_you_mean, listing, nearest
from distmatch.settings.targets import find_target


@dataclass(frozen=True)
class Catalogue:
    """The config tree on disk: a main config, and one folder per group with one YAML file per option.

    Attributes:
        folder: The `configs` folder.
        name: The main config, without `.yaml`.
        extra: A second folder of the same layout whose options are added (`--config-dir`), or None.
    """

    folder: Path
    name: str
    extra: Path | None = None

    def options(self, group: str) -> list[str]:
        """The options of a group, sorted."""
        roots = [root for root in (self.folder, self.extra) if root is not None]
        files = [file for root in roots for file in (root / group).rglob("*.yaml")]
        inside = {file.with_suffix("").as_posix().split(f"/{group}/", 1)[-1] for file in files}
        return sorted(inside)

    def main(self) -> DictConfig:
        """The main config as it lies on disk, with its defaults list."""
        file = self.folder / f"{self.name}.yaml"
        try:
            main = OmegaConf.load(file)
        except yaml.YAMLError as error:
            raise ConfigError(f"{file} is not valid YAML: {_first_lines(error, 9)}") from error
        if not isinstance(main, DictConfig):
            raise ConfigError(f"{file} is not a mapping of settings")
        return main

    def groups(self) -> list[str]:
        """The groups, sorted; a group that the defaults list names counts even without options."""
        roots = [root for root in (self.folder, self.extra) if root is not None]
        # A folder with the name of another main config has options of that command alone.
        others = {file.stem for file in self.folder.glob("*.yaml")} - {self.name}
        found = {path.name for root in roots for path in root.iterdir() if path.is_dir()} - others
        main = self.main()
        named = [next(iter(entry)) for entry in main.get("defaults", []) if isinstance(entry, DictConfig)]
        return sorted({*found, *(str(name).removeprefix("override ") for name in named)})


def compose(catalogue: Catalogue, overrides: Sequence[str]) -> DictConfig:
    """Compose the main config with `overrides`; the chosen options are added under `choices`.

    Raises:
        ConfigError: An override has no such group, option or key, or cannot be read.
    """
    parsed = [parse(text) for text in overrides]
    for override in parsed:
        _check_sweep(override)
        _check_option(catalogue, override)
    try:
        cfg = _compose(catalogue, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(catalogue, parsed, error) from error
    _check_resolves(cfg)
    return cfg


def parse(text: str) -> Override:
    """One override of the command line in Hydra's grammar."""
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        if "=" not in text and not text.startswith(("~", "-")):
            raise ConfigError(f"{text!r} sets nothing: write {text}=<value>") from error
        advice = "put values with special characters in quotes, as in 'key=\"a, b\"'"
        raise ConfigError(f"{text!r} is not a setting of the form key=value; {advice}") from error


def _compose(catalogue: Catalogue, overrides: Sequence[str]) -> DictConfig:
    search = [f"hydra.searchpath=[file://{catalogue.extra.resolve()}]"] if catalogue.extra else []
    try:
        with hydra.initialize_config_dir(str(catalogue.folder.resolve()), version_base="1.3"):
            cfg = hydra.compose(catalogue.name, [*overrides, *search], return_hydra_config=True)
    except yaml.YAMLError as error:
        raise ConfigError(f"a config file is not valid YAML: {_first_lines(error, 9)}") from error
    choices = {k: v for k, v in cfg.hydra.runtime.choices.items() if not k.startswith("hydra/")}
    with open_dict(cfg):
        del cfg["hydra"]
        cfg.choices = choices
    return cfg


def _check_sweep(override: Override) -> None:
    if override.is_sweep_override():
        text = override.input_line
        raise ConfigError(f"{text} has several values: add -m to run each of them, or quote the value")


def _check_option(catalogue: Catalogue, override: Override) -> None:
    group = override.key_or_group
    if group not in catalogue.groups() or override.is_delete():
        return
    options = catalogue.options(group)
    value = override.value()
    if value is None:
        raise ConfigError(f"{group}=null: write ~{group} for none, or choose one of: {listing(options)}")
    for option in value if isinstance(value, list) else [value]:
        if str(option) not in options:
            hint = did_you_mean(str(option), options, f"{group}={{}}")
            raise ConfigError(
                f"{group}={option}: there is no such {group}. There are: {listing(options)}.{hint}"
            )


def _explain(catalogue: Catalogue, parsed: Sequence[Override], error: Exception) -> ConfigError:
    """Find the override that Hydra stumbled over, by walking the config that the group choices alone give."""
    groups = catalogue.groups()
    base = _base(catalogue, groups, parsed)
    if base is None:
        return ConfigError(_first_lines(error))
    for override in parsed:
        if override.key_or_group in groups:
            continue
        exists = _exists(base, override.key_or_group)
        if override.is_add() and exists:
            plain = str(override.input_line).lstrip("+")
            return ConfigError(
                f"{override.input_line}: {override.key_or_group} is set already; write {plain}"
            )
        if not exists and not override.is_add() and not override.is_force_add():
            return _unknown_key(base, groups, override)
    return ConfigError(_first_lines(error))


def _base(catalogue: Catalogue, groups: Sequence[str], parsed: Sequence[Override]) -> DictConfig | None:
    """The config of the group choices, with the targets that are named beside them if those can be set."""
    chosen = [o for o in parsed if o.key_or_group in groups]
    targets = [o for o in parsed if o.key_or_group.endswith("._target_")]
    for overrides in ([*chosen, *targets], chosen):
        try:
            return _compose(catalogue, [str(o.input_line) for o in overrides])
        except (HydraException, OmegaConfBaseException):
            continue
    return None


def _first_lines(error: Exception, count: int = 3) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:count])


def _exists(cfg: DictConfig, key: str) -> bool:
    *path, last = key.split(".")
    node: object = cfg
    for name in path:
        node = node.get(name) if isinstance(node, DictConfig) and name in node else None
    return isinstance(node, DictConfig) and last in node


def _unknown_key(base: DictConfig, groups: Sequence[str], override: Override) -> ConfigError:
    key = override.key_or_group
    value = str(override.input_line).partition("=")[2]
    parent, last = _deepest_parent(base, key)
    if not parent:
        return _unknown_top(base, groups, key, value)
    node = OmegaConf.select(base, parent)
    if not isinstance(node, DictConfig):
        return ConfigError(f"{key}: {parent} is the value {node!r} and has no keys of its own")
    keys = [str(name) for name in node if not str(name).startswith("_")]
    target = None if OmegaConf.is_missing(node, "_target_") else node.get("_target_")
    takes = sorted((_parameters(str(target)) if target else frozenset()) - set(keys))
    if last in takes:
        return ConfigError(
            f"{key} is a parameter of {target} that the YAML does not set: write +{key}={value}"
        )
    message = f"{key}: {parent} has no key {last!r}. It has: {listing(keys)}."
    if takes:
        message += f" {target} also takes: {listing(takes)} (set with a +)."
    match = nearest(last, [*keys, *takes])
    if match:
        message += f" Did you mean {'' if match in keys else '+'}{parent}.{match}={value}?"
    return ConfigError(message)


def _unknown_top(base: DictConfig, groups: Sequence[str], key: str, value: str) -> ConfigError:
    keys = [str(name) for name in base if str(name) not in groups and str(name) != "choices"]
    first, _, rest = key.partition(".")
    elsewhere = [path for path in leaves(base) if path.rpartition(".")[2] == key]
    message = f"{key}: there is no such setting. Groups: {listing(groups)}. Keys: {listing(keys)}."
    match = nearest(first, [*groups, *keys])
    if elsewhere:
        message += f" Did you mean {elsewhere[0]}={value}?"
    elif match:
        message += f" Did you mean {'.'.join(filter(None, [match, rest]))}={value}?"
    return ConfigError(message)


def _deepest_parent(base: DictConfig, key: str) -> tuple[str, str]:
    """Split `key` at its first missing name: the existing path before it, and that name."""
    names = key.split(".")
    for depth in range(len(names)):
        if not _exists(base, ".".join(names[: depth + 1])):
            return ".".join(names[:depth]), names[depth]
    return ".".join(names[:-1]), names[-1]


def _parameters(target: str) -> frozenset[str]:
    found = find_target(target)
    return (found.parameters if found else None) or frozenset()


def leaves(node: object, prefix: str = "") -> Iterator[str]:
    """The dotted paths of all values below a node that are not mappings."""
    plain = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else node
    if not isinstance(plain, dict):
        yield prefix.removesuffix(".")
        return
    for name, value in plain.items():
        yield from leaves(value, f"{prefix}{name}.")


def _check_resolves(cfg: DictConfig) -> None:
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        if missing:
            raise ConfigError(f"{listing(missing)} must be given: add {missing[0]}=<value>")
        OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_lines(error)) from error
