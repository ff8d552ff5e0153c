"""Every algorithm on one landscape of the exact lab, with everything enumerated: which modes does each keep?

python -m distmatch.study.lab_study
python -m distmatch.study.lab_study task.landscape=needle 'seeds=[0,1,2,3,4]' jobs=4
python -m distmatch.study.lab_study '+entries.mine={algo: dmpo, set: {weight: 1}}' out=logs/lab/mine
python -m distmatch.study.lab_study 'entries={mine: {algo: custom, set: {_target_: my_losses.MyLoss}}}'

`entries=` names all that is studied, `+entries.<name>=` adds to the list of configs/lab.yaml.

Writes comparison.csv, comparison.md and comparison.png, and trajectories.jsonl with every measurement. A run
that was stopped goes on when it is started again; an entry that fails is reported and the others stand.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from omegaconf import DictConfig, OmegaConf

from distmatch.settings import lock
from distmatch.settings.errors import ConfigError
from distmatch.settings.numbers import Number
from distmatch.study.comparison.cells import sigterm_interrupts
from distmatch.study.lab_entries import compose_entry, filled
from distmatch.tasks.command import main

NUMBERS = (
    Number("beta", float, above=0),
    Number("reference_scale", float, low=0),
    Number("iterations", low=1),
    Number("groups", low=1),
    Number("group_size", low=2),
    Number("lr", float, above=0),
    Number("measure_every", low=1),
    Number("jobs", low=1, high=1024),
)


@dataclass(frozen=True)
class Cell:
    """One entry with one seed, as plain values that travel to another process.

    Attributes:
        entry: Its name.
        seed: Of the reference and of the samples.
        algo: The composed settings of its loss.
        task: The settings of the lab.
        knobs: `beta`, `reference_scale`, `iterations`, `groups`, `group_size`, `lr`, `measure_every`.
    """

    entry: str
    seed: int
    algo: Mapping[str, Any]
    task: Mapping[str, Any]
    knobs: Mapping[str, Any]


@dataclass(frozen=True)
class Finished:
    """What a cell found.

    Attributes:
        entry, seed: Which cell.
        history: Its measurements, first to last; see `study.tabular.train_tabular`.
        figures: The last one, with the nearest tilt and `seconds`.
    """

    entry: str
    seed: int
    history: list[dict[str, float]]
    figures: dict[str, float]


def run(cfg: DictConfig) -> int:
    """Run what is missing, then write the tables and the picture; 1 if a cell failed."""
    try:
        return _run(cfg)
    finally:
        lock.release()


def _run(cfg: DictConfig) -> int:
    cells = make_cells(cfg)
    folder = results_folder(cfg)
    done = {(f.entry, f.seed): f for f in read_finished(folder)}
    missing = [cell for cell in cells if (cell.entry, cell.seed) not in done]
    print(f"{len(cells)} cells, {len(cells) - len(missing)} of them done; results in {folder}", flush=True)
    failed = []
    with sigterm_interrupts(), (folder / "trajectories.jsonl").open("a", encoding="utf-8") as log:
        for cell, result in computed(missing, int(cfg.jobs)):
            if isinstance(result, Finished):
                done[cell.entry, cell.seed] = result
                log.write(json.dumps(asdict(result)) + "\n")
                log.flush()
            else:
                failed.append(f"{cell.entry} seed {cell.seed}: {result!r}")
            state = "done" if isinstance(result, Finished) else "FAILED"
            print(f"{len(done)} of {len(cells)}: {cell.entry} seed {cell.seed} {state}", flush=True)
    from distmatch.study.lab_report import write_report

    order = [done[cell.entry, cell.seed] for cell in cells if (cell.entry, cell.seed) in done]
    if order:
        print(write_report(order, cells[0], folder))
    for failure in failed:
        print(f"FAILED {failure}", file=sys.stderr)
    return int(bool(failed))


# ---- settings ----------------------------------------------------------------------------------------------


def make_cells(cfg: DictConfig) -> list[Cell]:
    """Every entry with every seed, composed and checked before the first starts.

    Raises:
        ConfigError: An entry does not compose, the landscape cannot be, or there is nothing to do.
    """
    seeds = checked_seeds(cfg)
    if not cfg.entries:
        raise ConfigError("entries is empty: name at least one, as in 'entries={grpo: {algo: grpo}}'")
    knobs = {number.key: cfg[number.key] for number in NUMBERS if number.key != "jobs"}
    task = checked_task(cfg)
    algos = {name: compose_entry(str(name), entry, cfg) for name, entry in cfg.entries.items()}
    return [Cell(str(name), seed, algo, task, knobs) for name, algo in algos.items() for seed in seeds]


def checked_task(cfg: DictConfig) -> dict[str, Any]:
    """The settings of the lab, once its landscape could be enumerated.

    Raises:
        ConfigError: Another task than the lab, or a language that is too large.
    """
    from hydra.utils import instantiate

    from distmatch.study.language import Landscape
    from distmatch.tasks.lab import Lab

    lab = instantiate(cfg.task)
    if not isinstance(lab, Lab):
        raise ConfigError(f"task={cfg.choices.task} cannot be enumerated; leave it at task=lab")
    try:
        Landscape.of(lab)
    except ValueError as error:
        raise ConfigError(f"task: {error}") from error
    return OmegaConf.to_container(cfg.task, resolve=True)


def checked_seeds(cfg: DictConfig) -> list[int]:
    """The config's seeds.

    Raises:
        ConfigError: Not a list of different whole numbers.
    """
    seeds = OmegaConf.to_container(cfg.seeds) if OmegaConf.is_list(cfg.seeds) else cfg.seeds
    if not isinstance(seeds, list) or not seeds or any(type(s) is not int or s < 0 for s in seeds):
        raise ConfigError(f"seeds={cfg.seeds} must be a list of whole numbers of at least 0")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={cfg.seeds} names a seed twice")
    return seeds


def results_folder(cfg: DictConfig) -> Path:
    """The folder of this study, made or taken up again, and this process's until `lock.release`.

    Raises:
        ConfigError: It holds a study with other settings, or another process is using it.
    """
    name = OmegaConf.select(cfg, "task.landscape", default="lab")
    folder = Path(cfg.out or f"logs/lab/{name}")
    settings = OmegaConf.to_container(cfg, resolve=True)
    kept = {key: value for key, value in settings.items() if key not in ("out", "jobs", "choices")}
    text = json.dumps(kept, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.hold(folder, f"out={folder}")
        file = folder / "settings.json"
        if file.is_file() and any(read_finished(folder)):
            _refuse_other_settings(folder, json.loads(file.read_text(encoding="utf-8")), json.loads(text))
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"out={folder}: cannot use {error.filename}: {error.strerror}") from error
    return folder


def _refuse_other_settings(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    others = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if others:
        raise ConfigError(
            f"out={folder} holds a study with other settings ({', '.join(others)}); name another folder"
        )


def read_finished(folder: Path) -> Iterator[Finished]:
    """The cells that a folder holds; a last line that a kill cut short is left out."""
    file = folder / "trajectories.jsonl"
    if not file.is_file():
        return
    text = file.read_text(encoding="utf-8")
    whole, _, rest = text.rpartition("\n")
    if rest:
        file.write_text(whole + "\n" if whole else "", encoding="utf-8")
    for line in whole.splitlines():
        yield Finished(**json.loads(line))


# ---- computing ---------------------------------------------------------------------------------------------


def computed(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Finished | Exception]]:
    """Each cell with its result or with what it raised, as they finish."""
    if not cells:
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(cells)), context, initializer=_end_with_parent) as pool:
        futures = {pool.submit(compute, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield futures[future], future.result() if error is None else error
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():  # Ctrl-C in a terminal has reached them, SIGTERM has not
                worker.terminate()
            raise


def _end_with_parent() -> None:
    """Let this worker end as soon as its parent has: a SIGKILL of the parent reaches no worker."""

    def wait() -> None:
        parent_process().join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def compute(cell: Cell) -> Finished:
    """Train one table and measure it."""
    import torch
    from hydra.utils import instantiate

    from distmatch.study.exact import log_partition
    from distmatch.study.language import Landscape
    from distmatch.study.tabular import TabularPolicy, train_tabular
    from distmatch.study.tilt import nearest_tilt

    torch.set_num_threads(1)
    started = time.perf_counter()
    knobs = dict(cell.knobs)
    landscape = Landscape.of(instantiate(cell.task))
    policy = TabularPolicy.of(landscape, scale=knobs.pop("reference_scale"), seed=cell.seed)
    log_ref = policy.logprobs().detach()
    exact = float(log_partition(log_ref, landscape.rewards, knobs["beta"]))
    torch.manual_seed(cell.seed)  # initial weights of a critic or a log Z head
    loss = instantiate(filled(cell.algo, exact))
    history = train_tabular(loss, policy, landscape, seed=cell.seed, **knobs)
    nearest = nearest_tilt(policy.logprobs().detach(), log_ref, landscape.rewards)
    figures = {
        **history[-1],
        # A loss reports what it believed when it was last called, one iteration before the end.
        "log_z_believed": history[-1].get("log_z_mean", float("nan")),
        "nearest_beta": nearest.beta,
        "kl_policy_nearest": nearest.divergence,
        "best_strings": float(landscape.best.sum()),
        "seconds": time.perf_counter() - started,
    }
    return Finished(cell.entry, cell.seed, history, figures)


def replaced(argv: Sequence[str]) -> list[str]:
    """Arguments in which `entries=` stands for all entries: Hydra itself would only ever add to a mapping."""
    whole = [text for text in argv if text.startswith("entries=")]
    return [*(["~entries"] if whole else []), *(f"+{text}" if text in whole else text for text in argv)]


if __name__ == "__main__":
    sys.exit(main("lab", run, __doc__, NUMBERS, replaced(sys.argv[1:])))
