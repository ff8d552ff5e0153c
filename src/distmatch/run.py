"""Where objects meet: one config becomes a task, a model, a loss, a trainer, and a finished run."""

from __future__ import annotations

import json
import logging
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from hydra.utils import instantiate
from lightning import Callback, Trainer, seed_everything
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from omegaconf import DictConfig, OmegaConf

from distmatch.callbacks.diagnosis import Diagnosis
from distmatch.callbacks.progress import ProgressDisplay
from distmatch.callbacks.rollout import RolloutCallback
from distmatch.callbacks.rollout_log import RunLog
from distmatch.callbacks.tensorboard_log import TensorBoardLog
from distmatch.checkpoints import newest_checkpoint, read_checkpoint
from distmatch.data.rollouts import RolloutDataModule
from distmatch.interrupts import StopSignals
from distmatch.metrics.benchmark import BenchmarkMetrics
from distmatch.modules.policy import PolicyModule
from distmatch.modules.tiny import load_tiny
from distmatch.sampling.failure import SamplerFailure
from distmatch.settings.checks import check_batch_plan
from distmatch.settings.errors import ConfigError
from distmatch.stages import STAGES, check_anchors, prepare
from distmatch.tasks.base import Task

PACKAGES = ("torch", "transformers", "lightning", "peft", "torchmetrics")


@dataclass
class Parts:
    """Everything that a policy run is made of."""

    task: Task
    data: RolloutDataModule
    module: PolicyModule
    trainer: Trainer


def run(cfg: DictConfig) -> dict[str, float]:
    """Run the stage that the config names.

    Args:
        cfg: A composed and checked config.

    Returns:
        The final figures, as in `metrics.json` (numbers only).
    """
    quiet()
    if cfg.threads:
        torch.set_num_threads(int(cfg.threads))
    elif cfg.model._target_ == f"{load_tiny.__module__}.{load_tiny.__name__}":
        # A second thread gains little on a model this small, and costs much as soon as the machine is busy.
        torch.set_num_threads(1)
    prepare(cfg)
    return STAGES[cfg.stage].run(cfg) if cfg.stage in STAGES else run_policy(cfg)


def run_policy(cfg: DictConfig) -> dict[str, float]:
    """Measure the start, train, measure the end, and write what the run leaves behind.

    Raises:
        SystemExit: Ctrl-C or SIGTERM came, or the sampling engine died or lies; what was said tells how to go
            on.
    """
    folder = Path(cfg.paths.run_dir)
    with StopSignals() as stop:
        try:
            return _measure_train_measure(cfg, folder, stop)
        except SamplerFailure as error:
            print(f"\nerror: {error}", file=sys.stderr)
            _say_how_to_resume(folder)
            raise SystemExit(1) from None
        except (KeyboardInterrupt, SystemExit):
            _say_how_to_resume(folder)
            raise SystemExit(stop.status) from None


def _measure_train_measure(cfg: DictConfig, folder: Path, stop: StopSignals) -> dict[str, float]:
    started = time.time()
    checkpoint = newest_checkpoint(folder) if cfg.resume else None
    saved = read_checkpoint(checkpoint) if checkpoint else None
    parts = build(cfg, purge_step=saved["global_step"] + 1 if saved else None)
    parts.trainer.callbacks.insert(0, stop)
    try:
        final, log = _train(cfg, parts, checkpoint, saved)
    finally:
        for rollout in _callbacks(parts.trainer, RolloutCallback):
            rollout.close()
    for board in _callbacks(parts.trainer, TensorBoardLog):
        board.log_final(parts.trainer, OmegaConf.to_container(cfg, resolve=True), final)
    figures = {f"start/{k.removeprefix('val/')}": v for k, v in log.start.items()} | final
    if parts.trainer.is_global_zero:
        write_json(folder / "metrics.json", figures | _circumstances(log, time.time() - started))
        for display in _callbacks(parts.trainer, ProgressDisplay):
            display.show_end(log.start, final, folder)
    return figures


def _train(
    cfg: DictConfig, parts: Parts, checkpoint: Path | None, saved: dict[str, Any] | None
) -> tuple[dict[str, float], RunLog]:
    """Held-out figures after training, and the log that has those from before."""
    log = next(_callbacks(parts.trainer, RunLog))
    if saved is None:
        log.start = _validate(parts)
    else:
        _check_iterations(cfg, saved["epoch"] + 1)
        # The figures from before training travel in the checkpoint: the model has been trained since.
        log.load_state_dict(saved["callbacks"]["RunLog"])
    for watcher in _callbacks(parts.trainer, ProgressDisplay, Diagnosis):
        watcher.remember_start(log.start)
    parts.trainer.fit(parts.module, datamodule=parts.data, ckpt_path=checkpoint, weights_only=True)
    return log.held_out or _validate(parts), log


def _check_iterations(cfg: DictConfig, done: int) -> None:
    if cfg.trainer.max_epochs < done:
        raise ConfigError(
            f"trainer.max_epochs={cfg.trainer.max_epochs} is below the {done} iterations that are done; "
            "raise it, or leave it out"
        )


def build(cfg: DictConfig, purge_step: int | None = None) -> Parts:
    """Compose every object of a policy run once.

    Args:
        cfg: The config.
        purge_step: TensorBoard drops events from this optimizer step on: those of a killed run after its
            checkpoint.
    """
    seed_everything(int(cfg.seed), verbose=False)
    if str(cfg.trainer.precision).endswith("-true") and cfg.trainer.precision != "32-true":
        raise ConfigError(
            f"trainer.precision={cfg.trainer.precision} would also round rewards and log-probabilities; use "
            "bf16-mixed, or model.dtype=bfloat16 with trainer.precision=32-true"
        )
    with _refusals_are_config_errors():
        task: Task = instantiate(cfg.task)
        policy = instantiate(cfg.model)
        data: RolloutDataModule = make(cfg.data, task=task, policy=policy, seed=int(cfg.seed))
        data.check_prompts()
        objects = {
            "policy": policy,
            "loss": instantiate(cfg.algo),
            "sampling": data.sampling,
            "metrics": BenchmarkMetrics(task.categories(), data.eval_sampling.n),
        }
        module: PolicyModule = make(cfg.module, dump_folder=cfg.paths.run_dir, **objects)
        rollout = RolloutCallback(instantiate(cfg.sampler), instantiate(cfg.reward))
        others: list[Callback] = [instantiate(node) for node in cfg.callbacks.values() if node]
        trainer: Trainer = make(cfg.trainer, callbacks=[rollout, *others], logger=_loggers(cfg, purge_step))
        check_anchors(objects["loss"], cfg, policy)
    if not any(isinstance(c, RunLog) for c in others):
        raise ConfigError("callbacks.run_log=null: it writes metrics.csv and rollouts.jsonl; leave it in")
    check_batch_plan(cfg, trainer.world_size)
    return Parts(task, data, module, trainer)


@contextmanager
def _refusals_are_config_errors() -> Iterator[None]:
    """What a constructor refuses is a mistake in the settings: one sentence, no traceback."""
    try:
        yield
    except (ValueError, MisconfigurationException) as error:
        raise ConfigError(str(error)) from error


def make(node: DictConfig, **objects: Any) -> Any:
    """Instantiate a node with live objects as further arguments (Hydra itself would copy them)."""
    return instantiate(node, _partial_=True)(**objects)


def quiet() -> None:
    """Silence what the libraries say about themselves; what matters about a run is said by this package."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


# ---- details -----------------------------------------------------------------------------------------------


def _validate(parts: Parts) -> dict[str, float]:
    values = parts.trainer.validate(parts.module, datamodule=parts.data, verbose=False)[0]
    return {k: float(v) for k, v in values.items() if k.startswith("val/")}


def _loggers(cfg: DictConfig, purge_step: int | None) -> list[Logger]:
    loggers = []
    for node in (cfg.logger or {}).values():
        is_board = node._target_.endswith(TensorBoardLogger.__name__)
        try:
            loggers.append(make(node, **({"purge_step": purge_step} if is_board and purge_step else {})))
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"logger: {node._target_} needs a package: pip install 'distmatch[wandb]'"
            ) from error
    return loggers


def _callbacks(trainer: Trainer, *kinds: type[Any]) -> Iterator[Any]:
    return (c for c in trainer.callbacks if isinstance(c, kinds))


def _say_how_to_resume(folder: Path) -> None:
    if list((folder / "checkpoints").glob("*.ckpt")):
        print(
            f"\nstopped; the last complete iteration is saved. Go on with:\n  python train.py resume={folder}"
        )
    else:
        print("\nstopped before the first iteration was complete: nothing to resume from")


def _circumstances(log: RunLog, seconds: float) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        **{f"run/{k}": v for k, v in log.totals().items()},
        "run/wall_seconds": seconds,
        "run/peak_memory_bytes": peak,
        "run/git": git_hash(),
        "run/python": platform.python_version(),
        **{f"run/{name}": version(name) for name in PACKAGES},
    }


def git_hash() -> str:
    """Commit of the working tree, with `-dirty` if it was changed; empty outside a repository."""
    here = Path(__file__).resolve().parent
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() if found.returncode == 0 else ""


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write sorted JSON and move it into place."""
    scratch = file.with_suffix(".tmp")
    scratch.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    scratch.replace(file)
