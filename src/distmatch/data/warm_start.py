"""The stage `warm_start`: a tiny model learns to read a task's instances from demonstrations.

Its result is an ordinary model folder with a manifest, kept under a hash of all that it depends on. The
checkpoint that the default settings give is shipped with the package. With `warm_start.start` and
`warm_start.best_of` it goes on from given weights with better demonstrations: so a stronger model is made,
from which DISA draws its proposals (`warm_start=strong`).
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig, OmegaConf

from distmatch.callbacks.rollout import evaluate
from distmatch.data.demonstrations import DemonstrationDataModule, Demonstrations
from distmatch.data.rollouts import RolloutDataModule
from distmatch.metrics.benchmark import BenchmarkMetrics
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.supervised import SupervisedModule
from distmatch.modules.tiny import shipped_folder
from distmatch.sampling.hf import HFSampler
from distmatch.settings.errors import ConfigError
from distmatch.settings.manifest import MANIFEST, json_text, load_manifest, made_whole, numbers
from distmatch.tasks.base import Task

HELD_OUT = ("max_prompt_tokens", "max_tokens", "temperature", "eval_prompts", "eval_samples", "eval_split")
"""Settings of `data` by which the result is measured."""


def warm_start(cfg: DictConfig) -> dict[str, float]:
    """Train, evaluate and store the warm-started model, or find it stored.

    Returns:
        Its held-out figures.
    """
    settings = dependencies(cfg)
    folder = warm_start_folder(cfg)
    if not (folder / MANIFEST).exists():
        _make(cfg, settings, folder)
    manifest = load_manifest(folder)
    figures = numbers(manifest["figures"])
    print(
        f"warm start in {folder}: success rate {figures['success_rate']:.3f}, "
        f"quality ratio {figures['quality_ratio']:.3f}; use it with model.weights={folder}"
    )
    return {f"val/{name}": value for name, value in figures.items()}


def warm_start_folder(cfg: DictConfig) -> Path:
    """Where the result of these settings lies, or will lie."""
    return Path(cfg.paths.cache_dir) / f"warm_start-{settings_hash(dependencies(cfg))}"


def dependencies(cfg: DictConfig) -> dict[str, Any]:
    """The settings that decide the result; weights to start from count by their content, not their place.

    Raises:
        ConfigError: The model is not one that is warm-started.
    """
    if "weights" not in cfg.model:
        raise ConfigError(
            f"model._target_={cfg.model._target_} is not warm-started: that is for model=tiny. For DISA name "
            "a proposal of your own, a model node under proposals.models.strong.model"
        )
    nodes = {key: OmegaConf.to_container(cfg[key], resolve=True) for key in ("task", "model", "warm_start")}
    knobs = nodes["warm_start"]
    nodes["model"] |= {"weights": "random", "seed": cfg.warm_start.seed}
    knobs.pop("workers")
    if knobs["best_of"] == 1:
        knobs.pop("best_of")  # as before this setting existed, like the next
    start = knobs.pop("start")
    if start is not None:
        nodes["model"]["weights"] = content_hash(model_folder(start))
    return nodes


def model_folder(weights: str) -> Path:
    """The folder that `shipped`, or a path, names."""
    return shipped_folder() if weights == "shipped" else Path(weights).expanduser()


def content_hash(folder: Path) -> str:
    """Hex digest of the weight files in a model folder.

    Raises:
        ConfigError: There are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"there are no weights (*.safetensors) in {folder}; name a model folder")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(file.name.encode())
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def settings_hash(settings: dict[str, Any]) -> str:
    """Twelve hex digits of the settings in canonical JSON."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def _make(cfg: DictConfig, settings: dict[str, Any], folder: Path) -> None:
    started = time.time()
    knobs = cfg.warm_start
    seed_everything(int(knobs.seed), verbose=False)
    task = instantiate(settings["task"])
    start = "random" if knobs.start is None else str(model_folder(knobs.start))
    policy: LanguageModel = instantiate(settings["model"] | {"weights": start})
    data = DemonstrationDataModule(
        Demonstrations(task, policy, knobs.batch_size, knobs.steps, knobs.seed, knobs.best_of),
        workers=knobs.workers,
    )
    module = SupervisedModule(policy, knobs.lr, knobs.warmup, knobs.weight_decay, knobs.betas)
    _trainer(cfg).fit(module, datamodule=data)
    manifest = {
        "command": "python train.py stage=warm_start",
        "settings": settings,
        "settings_hash": settings_hash(settings),
        "weights_hash": policy.weights_hash(),
        "parameters": sum(p.numel() for p in policy.parameters()),
        "minutes": round((time.time() - started) / 60, 2),
        "figures": _measure(cfg, policy, task),
    }
    with made_whole(folder) as scratch:
        policy.save(scratch)
        (scratch / MANIFEST).write_text(json_text(manifest), encoding="utf-8")


def _trainer(cfg: DictConfig) -> Trainer:
    """One device, no checkpoints: the stage is short and starts over when it is killed."""
    return Trainer(
        max_epochs=1,
        accelerator=cfg.trainer.accelerator,
        devices=1,
        logger=TensorBoardLogger(save_dir=cfg.paths.run_dir, name="", version=""),
        enable_checkpointing=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        log_every_n_steps=50,
    )


def _measure(cfg: DictConfig, policy: LanguageModel, task: Task) -> dict[str, float]:
    """Held-out figures of a policy; not with the run's sampler, on which the result must not depend.

    Nor with the run's data module, whose trajectories may come of this very stage.
    """
    data = RolloutDataModule(
        task, policy, 1, 1, seed=int(cfg.warm_start.seed), **{key: cfg.data[key] for key in HELD_OUT}
    )
    sampler = HFSampler()
    sampler.setup(policy)
    metrics = BenchmarkMetrics(task.categories(), data.eval_sampling.n)
    metrics.update(*evaluate(data, sampler, instantiate(cfg.reward)))
    return {name: float(value) for name, value in metrics.compute().items()}
