"""What a run needs before it can start: results of earlier stages, made once and found again.

A value `stage:<name>` anywhere in a config stands for the folder of that stage's result. Before a run, or a
stage, is built, `prepare` puts the real folders in their place. A result that is missing is made first, by a
process of its own: nothing of it (random state, threads, memory) reaches the run, so a cold and a warm cache
give equal weights.

A stage is two functions of the config: one makes its result unless it is there, the other says where. That
folder's name has a hash of all that decides the result, never of the run's seed, and it gets this name once
it is whole, so whatever bears it can be used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, open_dict

from distmatch.data import proposals
from distmatch.data.log_z_settings import anchored_loss, check_holds, check_log_z, log_z_folder, tilt_of
from distmatch.data.proposal_settings import check_settings as check_proposals
from distmatch.data.warm_start import warm_start, warm_start_folder
from distmatch.interrupts import StopSignals
from distmatch.losses.anchor import RegressorLogZ
from distmatch.losses.base import Loss
from distmatch.modules import log_z_stage
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.log_z_regressor import held_out_count
from distmatch.settings import folder
from distmatch.settings.cli import guarded, is_follower
from distmatch.settings.errors import ConfigError
from distmatch.settings.manifest import MANIFEST
from distmatch.settings.stage_names import STAGE_MARK

GRACE_SECONDS = 2.0
"""A terminal sends Ctrl-C to all processes; one that has not ended by then is told."""
_LAUNCHER_PREFIXES = ("LOCAL_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "SLURM_")
_LAUNCHER_NAMES = ("RANK", "NODE_RANK", "WORLD_SIZE", "DISTMATCH_CONFIG")


@dataclass(frozen=True)
class Stage:
    """A step before the policy's training that leaves a folder with a `manifest.json`.

    Attributes:
        run: Makes the result unless it is there, and returns its figures.
        folder: Where the result lies, or will lie. It may read the results of earlier stages.
        reads: The top-level keys of the config in which it looks for `stage:<name>`: its needs.
    """

    run: Callable[[DictConfig], dict[str, float]]
    folder: Callable[[DictConfig], Path]
    reads: tuple[str, ...] = ()


def _with_proposal_model(cfg: DictConfig) -> DictConfig:
    """The config whose `warm_start` makes the model that proposes."""
    other = cfg.copy()
    with open_dict(other):
        other.warm_start = cfg.proposals.warm_start
    return other


def _with_tilt(cfg: DictConfig) -> DictConfig:
    """The config whose `proposals` are reported on for the loss's own beta and partition function."""
    if anchored_loss(cfg.algo) is None:
        return cfg
    tilt, other = tilt_of(cfg), cfg.copy()
    other.proposals.beta, other.proposals.partition = tilt.beta, tilt.partition
    return other


STAGES = {
    "warm_start": Stage(warm_start, warm_start_folder),
    "proposal_model": Stage(
        lambda cfg: warm_start(_with_proposal_model(cfg)),
        lambda cfg: warm_start_folder(_with_proposal_model(cfg)),
    ),
    "proposals": Stage(
        lambda cfg: proposals.run(_with_tilt(cfg)), proposals.proposals_folder, reads=("model", "proposals")
    ),
    "log_z": Stage(log_z_stage.run, log_z_folder, reads=("model", "log_z")),
}
POLICY_READS = ("model", "data", "algo")


def prepare(cfg: DictConfig) -> None:
    """Make what this config's stage needs and is not there; write the folders into the config, in place.

    Raises:
        ConfigError: Settings that do not fit together, a cache that cannot be written, or a stage failed.
        SystemExit: Ctrl-C or SIGTERM came.
    """
    reads = STAGES[cfg.stage].reads if cfg.stage in STAGES else POLICY_READS
    # What does not fit together is said before anything is made.
    if cfg.stage == "log_z" or anchored_loss(cfg.algo) is not None:
        check_log_z(cfg)
    made = {cfg.stage, *_needed(cfg, reads)}
    if "proposals" in made:
        check_proposals(cfg)
    if {"proposals", "log_z"} <= made:
        held_out_count(int(cfg.proposals.prompts), float(cfg.log_z.held_out))
    _fill_in(cfg, reads)
    if cfg.stage in STAGES and not (STAGES[cfg.stage].folder(cfg) / MANIFEST).exists():
        _check_writable(cfg)


def check_anchors(loss: Loss, cfg: DictConfig, policy: LanguageModel) -> None:
    """Refuse a regressor of log Z that was made for another task, reward, sampling or reference.

    Raises:
        ConfigError: Names what differs.
    """
    for head in loss.modules():
        if isinstance(head, RegressorLogZ) and head.anchor is not None:
            place = f"algo.log_z.folder={head.anchor.folder}"
            check_holds(head.anchor.manifest, cfg, policy.weights_hash(), place)


def _fill_in(cfg: DictConfig, reads: Sequence[str]) -> None:
    for key in reads:
        for node, place, name in list(_marks(cfg.get(key))):
            node[place] = _obtain(cfg, name).as_posix()


def _needed(cfg: DictConfig, reads: Sequence[str]) -> Iterator[str]:
    """The stages that are asked for below some keys, and those that these ask for."""
    for key in reads:
        for _, _, name in _marks(cfg.get(key)):
            yield name
            yield from _needed(cfg, STAGES[name].reads)


def _marks(node: Any) -> Iterator[tuple[DictConfig | ListConfig, str | int, str]]:
    """Where `stage:<name>` stands below a node: the mapping or list, the key in it, and the name."""
    if isinstance(node, DictConfig):
        places: Iterator[str | int] = iter(list(node))
    elif isinstance(node, ListConfig):
        places = iter(range(len(node)))
    else:
        return
    for place in places:
        value = node[place]
        if isinstance(value, str) and value.startswith(STAGE_MARK):
            yield node, place, value.removeprefix(STAGE_MARK)
        else:
            yield from _marks(value)


def _obtain(cfg: DictConfig, name: str) -> Path:
    stage = STAGES[name]
    _fill_in(cfg, stage.reads)
    result = stage.folder(cfg)
    if is_follower(os.environ):
        _wait_for(result)
    elif (result / MANIFEST).exists():
        print(f"stage {name}: found in {result}", flush=True)
    else:
        _check_writable(cfg)
        print(f"stage {name}: {result} is not there yet and is made now", flush=True)
        _run_apart(cfg, name)
        if not (result / MANIFEST).exists():
            raise ConfigError(f"stage {name} ended without its result, {result / MANIFEST}")
    return result


def _check_writable(cfg: DictConfig) -> None:
    """Before minutes of work are lost."""
    cache = Path(cfg.paths.cache_dir)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=cache):
            pass
    except OSError as error:
        raise ConfigError(
            f"paths.cache_dir={cache} cannot be written ({error.strerror}), and results of stages are to be "
            "kept there; name another folder"
        ) from error


def _wait_for(result: Path) -> None:
    """Until the first process of a distributed run has made it; the launcher ends us if that one fails."""
    while not (result / MANIFEST).exists():
        time.sleep(0.5)


def _run_apart(cfg: DictConfig, name: str) -> None:
    """A stage in a process and a run folder of its own."""
    given = _overrides(Path(cfg.paths.run_dir))
    own = cfg.copy()
    with open_dict(own):
        own.stage, own.resume, own.paths.run_dir = name, None, None
    place = folder.create_run_folder(own, [f"stage={name}", *given])
    command = [sys.executable, "-m", __name__, str(place / folder.CONFIG_FILE)]
    with StopSignals() as stop:
        process = subprocess.Popen(command, env=_environment())
        try:
            status = process.wait()
        except KeyboardInterrupt:
            _end(process, stop.number)
            print(f"\nstopped in stage {name}; {_how_to_go_on(name)}")
            raise SystemExit(stop.status) from None
    if status:
        raise ConfigError(
            f"stage {name} failed with exit status {status}; its reason stands above, its folder is {place}. "
            f"{_how_to_go_on(name).capitalize()}"
        )


def _how_to_go_on(name: str) -> str:
    return (
        "stages that were finished are kept: give the same command again to go on, or add "
        f"stage={name} to run this one alone"
    )


def _overrides(run_dir: Path) -> list[str]:
    file = run_dir / folder.OVERRIDES_FILE
    found = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else []
    return [text for text in found or [] if not text.startswith(("stage=", "paths.run_dir="))]


def _environment() -> dict[str, str]:
    """Of a stage's process: nothing that makes it part of a distributed run."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_NAMES and not name.startswith(_LAUNCHER_PREFIXES)
    }


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    for sent in (None, process.send_signal, lambda _: process.kill()):
        if sent is not None:
            sent(number)
        try:
            process.wait(timeout=GRACE_SECONDS if sent is None else 10 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return


def _stage_process(config: Path) -> int:
    from distmatch.run import run

    cfg = folder.load(config)
    run(cfg)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: _stage_process(Path(sys.argv[1]))))
