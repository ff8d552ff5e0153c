"""Fronts of reward against coverage in the exact lab: does any objective lie above the published ones?

    python -m benchmarks.fronts [--out FOLDER] [--jobs N] [--iterations N]

Every method is run at six temperatures on three landscapes with the same references, starts and numbers of
samples; methods, temperatures, landscapes and seeds are the constants below, fixed before the runs. A front
says how many different best strings 64 samples hold at an expected reward of at least r. A method's *gain* is
the mean over r in `REWARDS` of its front minus the upper envelope of the fronts of `PUBLISHED`, paired by
landscape and seed; the 95 % interval over seeds is Student's. `TILTED` is no method but the exact tilted
reference at any inverse temperature, where balance losses arrive if nothing is lost in training; a second
table has the gains over its front. Goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
from hydra.utils import instantiate
from matplotlib.figure import Figure

from benchmarks.runs import write_json
from distmatch.settings.compose import Catalogue, compose
from distmatch.study.comparison.report import markdown
from distmatch.study.comparison.style import QUIET, SETTINGS, START, colours, save
from distmatch.study.exact import exact_target, measure
from distmatch.study.lab_study import Cell, Finished, computed, make_cells, read_finished
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy

CONFIGS = Path(__file__).parents[1] / "configs"
SEEDS = tuple(range(100, 110))  # five before the first run, five more when their interval proved too wide
T_975 = 2.262  # 0.975 quantile of Student's t with len(SEEDS) - 1 degrees of freedom
LANDSCAPES: Mapping[str, Sequence[str]] = {
    "equal_modes": (),
    "broad_and_narrow": (),
    "lengths": ("task.min_length=2",),
}
SCALAR = {"_target_": "distmatch.losses.log_z.ScalarLogZ", "lr": 0.1}
BETAS = (3.0, 5.0, 7.0, 10.0, 14.0, 20.0)
METHODS: Mapping[str, tuple[str, Mapping[str, Any], str, Sequence[float]]] = {
    "trajectory_balance": ("trajectory_balance", {"log_z": SCALAR}, "beta", BETAS),
    "vargrad": ("vargrad", {}, "beta", BETAS),
    "flowrl": ("flowrl", {}, "beta", (0.25, 0.5, 1.0, 2.0, 5.0, 15.0)),
    "dmpo term alone": ("dmpo", {"base": None}, "temperature", (1.0, 0.5, 0.25, 0.125, 1 / 15, 0.03)),
    "grpo + log_mse": (
        "dmpo",
        {"divergence": "log_mse", "length_normalize": False, "weight": 0.1},
        "temperature",
        (0.5, 0.33, 0.25, 0.167, 0.1, 0.0667),
    ),
    "levelled 0.5": ("levelled_balance", {"level": 0.5}, "beta", (1.0, 2.0, 3.0, 5.0, 8.0, 12.0)),
    "levelled 1": ("levelled_balance", {"level": 1.0}, "beta", (0.5, 1.0, 1.5, 2.5, 4.0, 8.0)),
}
PUBLISHED = ("trajectory_balance", "vargrad", "flowrl")
TILTED = "tilted reference"
TILTS = np.linspace(0, 40, 401)
REWARDS = np.linspace(0.5, 0.98, 49)


def cells_of(landscape: str, overrides: Sequence[str], iterations: int) -> list[Cell]:
    """Every method at every temperature with every seed on one landscape."""
    shape = [f"iterations={iterations}", f"measure_every={iterations}", f"seeds={list(SEEDS)}"]
    cfg = compose(Catalogue(CONFIGS, "lab"), [f"task.landscape={landscape}", *overrides, *shape])
    cfg.entries = {
        f"{method} @ {value:.4g}": {"algo": algo, "set": {**changes, key: value}}
        for method, (algo, changes, key, values) in METHODS.items()
        for value in values
    }
    return make_cells(cfg)


def run_all(out: Path, jobs: int, asked: Mapping[str, Sequence[Cell]]) -> dict[str, list[Finished]]:
    """The results of every landscape's cells, computed or read."""
    found = {}
    for name, cells in asked.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        done = {(f.entry, f.seed): f for f in read_finished(folder)}
        missing = [cell for cell in cells if (cell.entry, cell.seed) not in done]
        print(f"{name}: {len(missing)} of {len(cells)} cells to do", flush=True)
        with (folder / "trajectories.jsonl").open("a", encoding="utf-8") as log:
            for cell, result in computed(missing, jobs):
                if isinstance(result, Exception):
                    raise result
                done[cell.entry, cell.seed] = result
                log.write(json.dumps(asdict(result)) + "\n")
                log.flush()
        found[name] = list(done.values())
    return found


def front(rewards: np.ndarray, coverage: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Most coverage at a reward of at least each that is wanted; zero where no point reaches it.

    Args:
        rewards: Of the points, (T, ...).
        coverage: Of the points, (T, ...).
        wanted: Rewards, (R,).

    Returns:
        The front, (..., R).
    """
    return np.where(rewards[..., None] >= wanted, coverage[..., None], 0.0).max(axis=0)


def tilted(cells: Sequence[Cell]) -> dict[int, np.ndarray]:
    """From seed to reward and coverage of the exact tilted reference at every one of `TILTS`, (T, 2)."""
    found = {}
    for cell in {cell.seed: cell for cell in cells}.values():
        landscape = Landscape.of(instantiate(cell.task))
        log_ref = TabularPolicy.of(landscape, cell.knobs["reference_scale"], cell.seed).logprobs().detach()
        measured = [
            measure(exact_target(log_ref, landscape.rewards, b), log_ref, landscape, b) for b in TILTS
        ]
        found[cell.seed] = np.array([[figures["reward"], figures["modes"]] for figures in measured])
    return found


def fronts(finished: Sequence[Finished]) -> dict[str, dict[int, np.ndarray]]:
    """From method and seed to its front."""
    places: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for f in finished:
        method = f.entry.rpartition(" @ ")[0]
        place = places.setdefault(method, {}).setdefault(f.seed, [])
        place.append((f.figures["reward"], f.figures["modes"]))
    return {
        m: {seed: front(*np.array(p).T, REWARDS) for seed, p in by_seed.items()}
        for m, by_seed in places.items()
    }


def gains(
    found: Mapping[str, dict[int, np.ndarray]], over: Sequence[str] = PUBLISHED
) -> dict[str, dict[int, float]]:
    """From method and seed to its mean gain over the envelope of some methods."""
    envelope = {seed: np.max([found[m][seed] for m in over], axis=0) for seed in SEEDS}
    return {m: {s: float(np.mean(found[m][s] - envelope[s])) for s in SEEDS} for m in found}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over `SEEDS` and its 95 % interval."""
    middle = mean(values)
    half = T_975 * stdev(values) / len(values) ** 0.5
    return middle, middle - half, middle + half


def table(
    by_landscape: Mapping[str, dict[str, dict[int, float]]],
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """From method and landscape, or `all` of them together, to the gain with its interval."""
    found = {}
    for method in (*METHODS, TILTED):
        found[method] = {name: interval([by[method][s] for s in SEEDS]) for name, by in by_landscape.items()}
        pooled = [mean(by[method][s] for by in by_landscape.values()) for s in SEEDS]
        found[method]["all"] = interval(pooled)
    return found


def points(finished: Sequence[Finished]) -> dict[str, list[tuple[float, float]]]:
    """From method to its reward and coverage at every temperature, means over seeds."""
    found = {}
    for method, (_, _, _, values) in METHODS.items():
        rows = [[f for f in finished if f.entry == f"{method} @ {v:.4g}"] for v in values]
        found[method] = [
            (mean(f.figures["reward"] for f in row), mean(f.figures["modes"] for f in row)) for row in rows
        ]
    return found


def draw(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    marks: Mapping[str, Sequence[tuple[str, float, float]]],
    axis_labels: tuple[str, str],
    file: Path,
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """Draw fronts.

    Args:
        panels: By title, then by method: reward and coverage at every temperature.
        marks: By title: single points with their names.
        axis_labels: Of reward and of coverage.
        file: The PNG.
        limits: What is shown of reward and coverage, as `xlim` and `ylim`; None: everything.
    """
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(2.0 + 4.2 * len(panels), 4.4), dpi=150, layout="constrained")
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        palette = {**colours([m for m in next(iter(panels.values())) if m != TILTED]), TILTED: START}
        for axes, (title, methods) in zip(row, panels.items(), strict=True):
            for method, places in methods.items():
                style = {"ls": "--" if method in PUBLISHED else "-", "marker": "o", "ms": 4}
                if method == TILTED:
                    style = {"ls": ":", "lw": 1.2, "zorder": 1}
                axes.plot(*zip(*places, strict=True), color=palette[method], label=method, **style)
            for name, x, y in marks.get(title, ()):
                axes.plot(x, y, "D", ms=5, color=START)
                axes.annotate(name, (x, y), (0, 6), textcoords="offset points", ha="center", color=QUIET)
            axes.set(title=title, xlabel=axis_labels[0], **(limits or {}))
        row[0].set_ylabel(axis_labels[1])
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside right center", handlelength=2.2)
        save(figure, file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("logs/fronts"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=2000)
    arguments = parser.parse_args()
    asked = {name: cells_of(name, overrides, arguments.iterations) for name, overrides in LANDSCAPES.items()}
    found = run_all(arguments.out, arguments.jobs, asked)
    exact = {name: tilted(cells) for name, cells in asked.items()}
    by_landscape = {
        name: {**fronts(finished), TILTED: {seed: front(*p.T, REWARDS) for seed, p in exact[name].items()}}
        for name, finished in found.items()
    }
    record = {"seeds": list(SEEDS)}
    for title, over in (("over the published methods", PUBLISHED), (f"over the {TILTED}", (TILTED,))):
        record[title] = table({name: gains(methods, over) for name, methods in by_landscape.items()})
        rows = [
            [method, *(f"{m:+.2f} [{low:+.2f}, {high:+.2f}]" for m, low, high in cells.values())]
            for method, cells in record[title].items()
            if (method,) != over
        ]
        print(markdown([f"gain {title}", *LANDSCAPES, "all"], rows), end="\n\n")
    write_json(arguments.out / "fronts.json", record)
    panels = {
        name.replace("_", " "): {**points(finished), TILTED: np.mean(list(exact[name].values()), axis=0)}
        for name, finished in found.items()
    }
    draw(panels, {}, ("expected reward", "best strings in 64 samples"), arguments.out / "fronts.png")


if __name__ == "__main__":
    main()
