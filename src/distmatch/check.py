"""Put a loss on the bench: does it keep the contract, what does it do to a policy, what does it cost?

python -m distmatch.check algo=dmpo
python -m distmatch.check algo=vargrad algo.beta=6 task.landscape=needle
python -m distmatch.check algo=custom algo._target_=my_losses.MyLoss cost=false

The contract tests run on the file in configs/algo and its variants, the rest on the settings as given. Exit
status 1 if the contract is broken, the lab run fails, or a stated target is missed.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import DictConfig, OmegaConf

from distmatch.settings.errors import ConfigError
from distmatch.settings.stage_names import STAGE_MARK
from distmatch.study.lab_entries import EXACT_LOG_Z, make_loss
from distmatch.study.lab_study import NUMBERS, Cell, Finished, checked_seeds, checked_task, computed
from distmatch.tasks.command import main

REACHED = 0.05
"""Nats of KL(p*||pi) up to which a target counts as reached; 0.02 is typical after 3,000 iterations."""
COLLAPSED = 1.5
"""No more best strings than this in 64 samples, where several exist, is a collapse: see `judge`."""
WITHOUT_FILE = "custom"
"""The algorithm that names a class alone, which the contract tests cannot find."""


def run(cfg: DictConfig) -> int:
    """All three parts; 1 if something is wrong with the loss."""
    if "algo" not in cfg:
        raise ConfigError("algo must be given: add algo=<name>; `python train.py --help` lists all names")
    task, seeds = checked_task(cfg), checked_seeds(cfg)
    algo = without_stages(OmegaConf.to_container(cfg.algo, resolve=True))
    stated = make_loss(algo, int(cfg.group_size)).target_beta
    kept = not cfg.contract or contract(str(cfg.choices.algo))
    says, right = laboratory(cfg, algo, task, seeds, stated)
    print(says, flush=True)
    if cfg.cost:
        print(cost(algo, int(cfg.group_size)), flush=True)
    return int(not (kept and right))


def without_stages(algo: Mapping[str, Any]) -> dict[str, Any]:
    """The loss with the exact log Z in place of a regressor that a stage of train.py would make first."""
    head = algo.get("log_z")
    if not isinstance(head, Mapping) or not str(head.get("folder")).startswith(STAGE_MARK):
        return dict(algo)
    print("log Z     exact: the regressor is made by train.py, and a table needs none", flush=True)
    exact = {"_target_": "distmatch.losses.log_z.FrozenLogZ", "values": EXACT_LOG_Z}
    return {**algo, "log_z": exact}


# ---- contract ----------------------------------------------------------------------------------------------


def contract(algo: str) -> bool:
    """Run the contract tests on the YAML called `algo`; whether all passed.

    Raises:
        ConfigError: The tests are not here.
    """
    if algo == WITHOUT_FILE:
        print("contract  NOT RUN: it takes a file of configs/algo, as distmatch.new makes one", flush=True)
        return True
    file = Path("tests/contracts/test_losses.py")
    if not file.is_file():
        raise ConfigError(f"there is no {file} here; run it from the project's root, or with contract=false")
    chosen = f"[{algo}] or [{algo}-"  # not those of another algorithm whose name goes on
    command = [sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider", "-k", chosen]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    print(f"contract  {done.stdout.strip().splitlines()[-1].strip('= ')}", flush=True)
    return done.returncode == 0


# ---- lab ---------------------------------------------------------------------------------------------------


def laboratory(
    cfg: DictConfig,
    algo: Mapping[str, Any],
    task: Mapping[str, Any],
    seeds: Sequence[int],
    stated: float | None,
) -> tuple[str, bool]:
    """Train tables with the loss; what it did in words, and whether it did what it states."""
    knobs = {number.key: cfg[number.key] for number in NUMBERS if number.key != "jobs"}
    knobs |= {"beta": stated or float(cfg.beta)}
    cells = [Cell(str(cfg.choices.algo), seed, algo, task, knobs) for seed in seeds]
    results = [result for _, result in computed(cells, int(cfg.jobs))]
    failed = [repr(result) for result in results if not isinstance(result, Finished)]
    if failed:
        return f"lab       FAILED: {failed[0]}", False
    finished = [result for result in results if isinstance(result, Finished)]
    figures = [f.figures for f in finished]
    start = [f.history[0] for f in finished]
    lines = [
        f"lab       {name:28}{_spread(figures, key)}   (start {_spread(start, key)})"
        for key, name in (("reward", "expected reward"), ("modes", "best strings in 64 samples"))
    ]
    lines += [
        f"lab       {'entropy':28}{_spread(figures, 'entropy')} nats",
        f"lab       {'nearest tilted reference':28}beta {_spread(figures, 'nearest_beta')}, "
        f"{_spread(figures, 'kl_policy_nearest')} nats away",
    ]
    if stated:
        lines.append(
            f"lab       {'stated target':28}beta {stated:g}: KL(p*||pi) "
            f"{_spread(figures, 'kl_target_policy')} nats (start {_spread(start, 'kl_target_policy')})"
        )
    verdict, right = judge(figures, start, stated)
    return "\n".join([*lines, f"verdict   {verdict}"]), right


def judge(
    figures: Sequence[Mapping[str, float]], start: Sequence[Mapping[str, float]], stated: float | None
) -> tuple[str, bool]:
    """What a loss did, in words, and whether it did what it states.

    A collapse has few best strings because it has few strings at all: its entropy is below that of an even
    spread over the best ones. A policy that is still spread out has only not found them yet.

    Args:
        figures: The last measurements of each seed.
        start: The first ones.
        stated: The beta of the stated target, None if the loss states no such target.
    """
    best, kept = figures[0]["best_strings"], mean(f["modes"] for f in figures)
    reward, before = (mean(f["reward"] for f in rows) for rows in (figures, start))
    if stated is not None:
        worst = max(f["kl_target_policy"] for f in figures)
        if worst <= REACHED:
            return f"reaches its stated target, the reference tilted by beta {stated:g}", True
        return f"misses its stated target: KL(p*||pi) is up to {worst:.3g} nats, over {REACHED}", False
    if reward - before < 0.1 * (1 - before):
        return f"does not learn here: expected reward {before:.2f} before, {reward:.2f} after", True
    narrow = mean(f["entropy"] for f in figures) < math.log(best)
    if best >= 2 and kept <= COLLAPSED and narrow:
        return f"collapses: keeps {kept:.1f} of {best:.0f} best strings", True
    return f"learns, and keeps {kept:.1f} of {best:.0f} best strings", True


def _spread(rows: Sequence[Mapping[str, float]], key: str) -> str:
    values = [row[key] for row in rows]
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return f"{mean(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


# ---- cost --------------------------------------------------------------------------------------------------


def cost(algo: Mapping[str, Any], group_size: int) -> str:
    """What one call costs, in a sentence; of 128 rows as many as make up whole groups."""
    import torch

    from distmatch.study.loss_cost import loss_cost

    torch.set_num_threads(1)
    rows = group_size * max(1, 128 // group_size)
    found = loss_cost(make_loss(algo, group_size), rows=rows, group_size=group_size, rounds=1)
    return (
        f"cost      {1e3 * found.loss:.1f} ms a call at {rows} x 512 tokens, {100 * found.share:.2g} % of an "
        "update of the tiny model"
    )


if __name__ == "__main__":
    sys.exit(main("check", run, __doc__, NUMBERS))
