"""The stage `warm_start`: a tiny model learns to read a task's instances from mediocre demonstrations.

Its result is an ordinary model folder with a manifest, kept under a hash of all that it depends on. The
checkpoint that the default settings give is shipped with the package.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig, OmegaConf

from distmatch.callbacks.rollout import evaluate
from distmatch.data.demonstrations import DemonstrationDataModule, Demonstrations
from distmatch.metrics.benchmark import BenchmarkMetrics
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.supervised import SupervisedModule
from distmatch.tasks.base import Task

MANIFEST = "manifest.json"


def warm_start(cfg: DictConfig) -> dict[str, float]:
    """Train, evaluate and store the warm-started model, or find it stored.

    Returns:
        Its held-out figures.
    """
    settings = dependencies(cfg)
    folder = Path(cfg.paths.cache_dir) / f"warm_start-{settings_hash(settings)}"
    if not (folder / MANIFEST).exists():
        _make(cfg, settings, folder)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    figures = manifest["figures"]
    print(
        f"warm start in {folder}: success rate {figures['success_rate']:.3f}, "
        f"quality ratio {figures['quality_ratio']:.3f}; use it with model.weights={folder}"
    )
    return {f"val/{name}": value for name, value in figures.items()}


def dependencies(cfg: DictConfig) -> dict[str, Any]:
    """The settings that decide the result."""
    nodes = {key: OmegaConf.to_container(cfg[key], resolve=True) for key in ("task", "model", "warm_start")}
    nodes["model"] |= {"weights": "random", "seed": cfg.warm_start.seed}
    nodes["warm_start"].pop("workers")
    return nodes


def settings_hash(settings: dict[str, Any]) -> str:
    """Twelve hex digits of the settings in canonical JSON."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def _make(cfg: DictConfig, settings: dict[str, Any], folder: Path) -> None:
    started = time.time()
    knobs = cfg.warm_start
    seed_everything(int(knobs.seed), verbose=False)
    task = instantiate(settings["task"])
    policy: LanguageModel = instantiate(settings["model"])
    data = DemonstrationDataModule(
        Demonstrations(task, policy, knobs.batch_size, knobs.steps, knobs.seed), workers=knobs.workers
    )
    module = SupervisedModule(policy, knobs.lr, knobs.warmup, knobs.weight_decay, knobs.betas)
    _trainer(cfg).fit(module, datamodule=data)
    scratch = folder.with_suffix(".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    policy.save(scratch)
    manifest = {
        "command": "python train.py stage=warm_start",
        "settings": settings,
        "settings_hash": settings_hash(settings),
        "weights_hash": policy.weights_hash(),
        "parameters": sum(p.numel() for p in policy.parameters()),
        "minutes": round((time.time() - started) / 60, 2),
        "figures": _measure(cfg, policy, task),
    }
    (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    scratch.replace(folder)


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
    """Held-out figures of a policy, sampled as in training."""
    data = instantiate(cfg.data, _partial_=True)(task=task, policy=policy, seed=int(cfg.warm_start.seed))
    sampler = instantiate(cfg.sampler)
    sampler.setup(policy)
    metrics = BenchmarkMetrics(task.categories(), data.eval_sampling.n)
    metrics.update(*evaluate(data, sampler, instantiate(cfg.reward)))
    return {name: float(value) for name, value in metrics.compute().items()}
