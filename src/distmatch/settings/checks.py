"""Everything that is checked about a composed config before work starts: one list of rules.

A key that a config does not have is not checked, so that the rules also serve configs with fewer parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from distmatch.settings.annotations import shown
from distmatch.settings.engines import check_engine
from distmatch.settings.errors import ConfigError, did_you_mean, listing, nearest
from distmatch.settings.numbers import NUMBERS
from distmatch.settings.stage_names import STAGE_MARK, STAGE_NAMES, check_stages
from distmatch.settings.targets import Target, find_target

WEIGHT_WORDS = ("shipped", "random")
"""What `model.weights` may say besides a folder."""

CHOICES = {
    "stage": ("policy", *STAGE_NAMES),
    "data.eval_split": ("val", "test"),
    "proposals.partition": ("sequence", "token_mean", "token_mean_fixed_point"),
    "log_z.partition": (None, "sequence", "token_mean", "token_mean_fixed_point"),
    "log_z.weighting": ("equal", "precision"),
    "data.on_exhaustion": ("train_partial", "keep_flat", "stop"),
}
"""Settings that are one of a few words."""


def check(cfg: DictConfig) -> None:
    """Refuse a config that cannot run.

    Raises:
        ConfigError: The first rule that is broken.
    """
    for rule in RULES:
        rule(cfg)


def check_numbers(cfg: DictConfig) -> None:
    """Every number of `NUMBERS` is one, and lies within its limits."""
    for number in NUMBERS:
        if _has(cfg, number.key):
            value = OmegaConf.select(cfg, number.key)
            if not number.accepts(value):
                raise ConfigError(f"{number.key}={value} must be {number.demand()}")


def check_choices(cfg: DictConfig) -> None:
    """Settings that are one of a few words are one of them."""
    for key, allowed in CHOICES.items():
        value = OmegaConf.select(cfg, key)
        if _has(cfg, key) and value not in allowed:
            hint = did_you_mean(str(value), map(str, allowed), key + "={}")
            raise ConfigError(f"{key}={shown(value)} must be one of: {', '.join(map(shown, allowed))}.{hint}")


def check_targets(cfg: DictConfig) -> None:
    """Every `_target_` exists, and takes the keys and the kinds of values beside it."""
    for path, node in _target_nodes(_resolved(cfg)):
        name = node["_target_"]
        if not isinstance(name, str):
            raise ConfigError(f"{path}._target_={name!r} must be a dotted path such as package.module.Name")
        try:
            target = find_target(name)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        _check_parameters(path, node, name, target)


def _resolved(cfg: DictConfig) -> object:
    """Plain values, with a stand-in for the run folder that a run gets only after the checks."""
    if _has(cfg, "paths.run_dir") and cfg.paths.run_dir is None:
        cfg = cfg.copy()
        cfg.paths.run_dir = "run"
    return OmegaConf.to_container(cfg, resolve=True)


def _check_parameters(path: str, node: Mapping[str, object], name: str, target: Target | None) -> None:
    if target is None:
        return
    for key, value in ((str(key), value) for key, value in node.items()):
        if key.startswith("_"):
            continue
        if target.parameters is not None and key not in target.parameters:
            match = nearest(key, target.parameters)
            hint = f" Did you mean {'' if match in node else '+'}{path}.{match}?" if match else ""
            takes = listing(target.parameters)
            raise ConfigError(f"{path}.{key} is not a parameter of {name}; it takes: {takes}.{hint}")
        refusal = target.kinds[key].refusal(f"{path}.{key}", value) if key in target.kinds else None
        if refusal:
            raise ConfigError(refusal)


def check_group_size(cfg: DictConfig) -> None:
    """Groups are as large as the loss, and every loss inside it, needs."""
    size = OmegaConf.select(cfg, "data.group_size")
    algo = OmegaConf.select(cfg, "algo")
    if size is None or not isinstance(algo, DictConfig):
        return
    for _, node in _target_nodes(OmegaConf.to_container(algo, resolve=True), "algo"):
        target = find_target(node["_target_"])
        least = target.constants.get("min_group_size", 1) if target else 1
        if isinstance(least, int) and size < least:
            loss = node["_target_"].rpartition(".")[2]
            raise ConfigError(
                f"data.group_size={size}: {loss} compares the answers to one prompt with each other and "
                f"needs at least {least} of them; set data.group_size={least} or more"
            )


def check_accumulation(cfg: DictConfig) -> None:
    """Gradient accumulation is refused: chunking below the loss replaces it."""
    value = OmegaConf.select(cfg, "trainer.accumulate_grad_batches")
    if value not in (None, 1):
        raise ConfigError(
            f"trainer.accumulate_grad_batches={value} must be 1: batches hold whole groups, and each is one "
            "optimizer step. Memory is handled by module.micro_batch_tokens, which gives the exact gradient "
            "of the whole batch"
        )


def check_batch(cfg: DictConfig) -> None:
    """Prompts divide among devices and mini-batches, as far as the config tells the number of devices."""
    check_batch_plan(cfg, configured_devices(cfg))


def check_batch_plan(cfg: DictConfig, devices: int) -> None:
    """Prompts divide among `devices` processes and `updates_per_rollout` mini-batches of whole groups.

    Raises:
        ConfigError: They do not; the message has the nearest numbers that do.
    """
    prompts = OmegaConf.select(cfg, "data.prompts_per_iteration")
    updates = OmegaConf.select(cfg, "data.updates_per_rollout", default=1)
    parts = devices * updates
    if prompts is None or prompts % parts == 0:
        return
    below = prompts // parts * parts
    choices = [str(n) for n in (below, below + parts) if n]
    possible = [n for n in range(1, prompts + 1) if prompts % (devices * n) == 0]
    other = min(possible, key=lambda n: abs(n - updates)) if possible else None
    raise ConfigError(
        f"data.prompts_per_iteration={prompts} cannot be divided into {parts} equal parts "
        f"({devices} device(s) x data.updates_per_rollout={updates}, each with whole groups); "
        f"set data.prompts_per_iteration={' or '.join(choices)}"
        + (f", or data.updates_per_rollout={other}" if other else "")
    )


def configured_devices(cfg: DictConfig) -> int:
    """Processes that the config asks for; 1 where it leaves the number to Lightning ("auto", -1)."""
    devices = OmegaConf.select(cfg, "trainer.devices", default=1)
    nodes = OmegaConf.select(cfg, "trainer.num_nodes", default=1)
    if OmegaConf.is_list(devices):
        return max(len(devices), 1) * nodes
    text = str(devices)
    if text in ("auto", "-1"):
        return 1
    if not text.isdigit() or not int(text):
        raise ConfigError(f"trainer.devices={devices} must be a count of at least 1, a list, or auto")
    return int(text) * nodes


def check_sampling(cfg: DictConfig) -> None:
    """Training rollouts keep the whole vocabulary, or the log-probabilities of engine and trainer part."""
    top_p = OmegaConf.select(cfg, "data.top_p", default=1)
    if top_p != 1 and not OmegaConf.select(cfg, "data.allow_truncated_sampling", default=False):
        raise ConfigError(
            f"data.top_p={top_p} must be 1 in training: sampling renormalises the kept tokens and the "
            "trainer does not, so their log-probabilities differ"
        )


def check_task(cfg: DictConfig) -> None:
    """There is a task, and a mixture has members with weight."""
    task = OmegaConf.select(cfg, "task")
    if task is None:
        raise ConfigError("task is empty: there is nothing to train on; name a task, as in task=np_tiny")
    for key in ("tasks", "problems", "weights"):
        members = OmegaConf.select(cfg, f"task.{key}")
        if not OmegaConf.is_config(members):
            continue
        if not len(members):
            raise ConfigError(f"task.{key} is empty: a mixture needs at least one task")
        values = list(members.values()) if OmegaConf.is_dict(members) else list(members)
        weights = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(weights) == len(values) and (min(weights) < 0 or not sum(weights)):
            raise ConfigError(
                f"task.{key}={list(weights)}: weights must not be negative, and one must be above 0"
            )


def check_model(cfg: DictConfig) -> None:
    """A model given as a local folder exists, and its window holds prompt and completion."""
    weights = OmegaConf.select(cfg, "model.weights")
    if isinstance(weights, str) and weights not in WEIGHT_WORDS and not weights.startswith(STAGE_MARK):
        hint = did_you_mean(weights, WEIGHT_WORDS, "model.weights={}")
        _check_folder(
            cfg, "model.weights", Path(weights), f"give a folder or one of: {listing(WEIGHT_WORDS)}.{hint}"
        )
    path = OmegaConf.select(cfg, "model.path")
    if isinstance(path, str):
        looks_local = path.startswith(("/", ".", "~")) or path.count("/") > 1 or "\\" in path
        if looks_local or Path(path).is_dir():
            _check_folder(cfg, "model.path", Path(path), "give a folder or a hub id like owner/name")
    window = OmegaConf.select(cfg, "model.window")
    if window is not None:
        _check_window(cfg, window, f"model.window={window}")


def _check_folder(cfg: DictConfig, key: str, given: Path, advice: str) -> None:
    folder = given.expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{key}={OmegaConf.select(cfg, key)}: there is no such folder; {advice}")
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f"{key}={given} has no config.json, so it is not a Hugging Face model folder")
    window = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    if isinstance(window, int):
        _check_window(cfg, window, f"{key}={given}")


def _check_window(cfg: DictConfig, window: int, model: str) -> None:
    prompt = OmegaConf.select(cfg, "data.max_prompt_tokens", default=0)
    answer = OmegaConf.select(cfg, "data.max_tokens", default=0)
    if prompt + answer > window:
        raise ConfigError(
            f"data.max_prompt_tokens={prompt} and data.max_tokens={answer} need {prompt + answer} positions, "
            f"but {model} has {window}"
        )


def check_checkpoints(cfg: DictConfig) -> None:
    """Checkpoints are written at the ends of iterations; others would resume without their rollouts."""
    callbacks = OmegaConf.select(cfg, "callbacks")
    nodes = _target_nodes(OmegaConf.to_container(callbacks, resolve=True), "callbacks") if callbacks else ()
    for path, node in nodes:
        if not str(node["_target_"]).endswith(".ModelCheckpoint"):
            continue
        for key in ("every_n_train_steps", "train_time_interval"):
            if node.get(key):
                raise ConfigError(
                    f"{path}.{key}={node[key]}: checkpoints are written at the ends of iterations only; "
                    f"use {path}.every_n_epochs"
                )
        if not node.get("save_on_train_epoch_end"):
            raise ConfigError(
                f"{path}.save_on_train_epoch_end must be true: validation does not end every iteration"
            )


def _has(cfg: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return isinstance(node, DictConfig) and name in node


def _target_nodes(node: object, path: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _target_nodes(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _target_nodes(value, f"{path}[{index}]")


RULES: tuple[Callable[[DictConfig], None], ...] = (
    check_numbers,
    check_choices,
    check_stages,
    check_targets,
    check_group_size,
    check_accumulation,
    check_batch,
    check_sampling,
    check_task,
    check_model,
    check_checkpoints,
    check_engine,
)
"""The rules in the order in which they are applied; later ones rely on what earlier ones made sure of."""
