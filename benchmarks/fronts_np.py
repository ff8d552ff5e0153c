"""The fronts of `benchmarks.fronts` again, of the tiny transformer on four NP problems: quality, diversity.

    python -m benchmarks.fronts_np [--out FOLDER] [OVERRIDE ...]

Every method is trained at six temperatures with the same start, prompts and number of answers, and then asked
128 held-out prompts 32 times. A front says how many distinct feasible solutions 32 answers hold at a quality
ratio of at least q. A method's *gain* is the mean over q in `QUALITIES` of its front minus the upper envelope
of the fronts of `PUBLISHED`, once for all feasible solutions and once for good ones. Intervals are those of
`compare.py`, of a bootstrap over prompts and seeds with the same resamples for all. Methods, temperatures,
qualities and seeds are the constants below, fixed before the runs. `compare.py` does the work and leaves its
own report in FOLDER; it takes further settings, such as `jobs=2` or `seeds=[100]`, and goes on where it was
stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.fronts import PUBLISHED, draw, front
from benchmarks.runs import write_json
from distmatch.settings.compose import Catalogue
from distmatch.study import compare
from distmatch.study.comparison.evaluation import read_records
from distmatch.study.comparison.plan import literal, make_plan
from distmatch.study.comparison.report import markdown
from distmatch.study.comparison.request import read_request
from distmatch.study.comparison.results import Results, collect
from distmatch.study.comparison.statistics import Bootstrap, Estimate, contributions, estimate

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "compare.yaml"
SEEDS = (100, 101, 102)
COMMON = ("trainer.max_epochs=50", "data.eval_prompts=128", "threads=1")
SAMPLES = 32
DISTINCT = f"distinct@{SAMPLES}"
GOOD = 0.9  # added after the first look: are they good solutions that are kept?
BETAS = (3.0, 5.0, 7.0, 10.0, 14.0, 20.0)
# Otherwise the clipped gradient of a squared sum of log-probabilities is a unit vector for ever.
SMALL = "algo.coefficient=0.02"
METHODS: Mapping[str, tuple[Sequence[str], str, Sequence[float]]] = {
    "trajectory_balance": (("algo=trajectory_balance", SMALL), "algo.beta", BETAS),
    "vargrad": (("algo=vargrad", SMALL), "algo.beta", BETAS),
    "flowrl": (("algo=flowrl", SMALL), "algo.beta", (0.25, 0.5, 1.0, 2.0, 5.0, 15.0)),
    "dmpo term alone": (
        ("algo=dmpo", "algo.base=null"),
        "algo.temperature",
        (1.0, 0.5, 0.25, 0.125, 0.0667, 0.03),
    ),
    "grpo + log_mse": (
        ("algo=dmpo", "algo.divergence=log_mse", "algo.length_normalize=false", "algo.weight=0.1"),
        "algo.temperature",
        (0.5, 0.33, 0.25, 0.167, 0.1, 0.0667),
    ),
    "levelled 0.5": (("algo=levelled_balance", SMALL, "algo.level=0.5"), "algo.beta", BETAS),
    "levelled 1": (("algo=levelled_balance", SMALL, "algo.level=1"), "algo.beta", BETAS),
}
REFERENCE = "grpo"
QUALITIES = np.linspace(0.66, 0.80, 15)


def variants() -> dict[str, list[str]]:
    """Names and settings of all points, and of GRPO."""
    points = {
        f"{method} @ {value:.4g}": [*settings, f"{key}={value}"]
        for method, (settings, key, values) in METHODS.items()
        for value in values
    }
    return {REFERENCE: ["algo=grpo"], **points}


def request(out: Path, further: Sequence[str]) -> list[str]:
    """The command line of `compare.py`."""
    given = [f"variants={literal(variants())}", f"seeds={list(SEEDS)}", f"eval_samples={SAMPLES}"]
    return [*given, f"folder={literal(out.as_posix())}", f"name={literal(out.name)}", *COMMON, *further]


def replicates(results: Results) -> dict[str, np.ndarray]:
    """Quality ratio, distinct solutions and distinct good ones of every arm in every resample, (1 + R, 3)."""
    columns = [results.column(name) for name in ("quality_ratio", DISTINCT)]
    request, cells = results.plan.request, results.plan.cells
    first = [record.score() for record in read_records(cells[0].evaluation)]
    bootstrap = Bootstrap(first, sorted({cell.seed for cell in cells}), request.resamples)
    found = {}
    for arm in results.arms:
        tables = {cell.seed: _good(cell.evaluation) for cell in cells if cell.arm == arm.label}
        good = bootstrap.replicates(tables)[:, [results.column(DISTINCT)]]
        found[arm.label] = np.hstack([arm.replicates[:, columns], good])
    return found


def _good(evaluation: Path) -> tuple[np.ndarray, np.ndarray]:
    """Contributions of answers of at least the quality `GOOD`; the others count as infeasible."""
    scores = []
    for score in (record.score() for record in read_records(evaluation)):
        good = [quality >= GOOD for quality in score.qualities]
        qualities = [q if is_good else 0.0 for q, is_good in zip(score.qualities, good, strict=True)]
        scores.append(dataclasses.replace(score, successes=good, qualities=qualities))
    return contributions(scores)


def gains(found: Mapping[str, np.ndarray], column: int) -> dict[str, Estimate]:
    """From method to its gain over the envelope of the published methods.

    Args:
        found: By arm, (1 + R, 3).
        column: What is counted: 1 for all distinct solutions, 2 for good ones.
    """
    fronts = {}
    for method, (_, _, values) in METHODS.items():
        stacked = np.stack([found[f"{method} @ {value:.4g}"] for value in values])  # (T, 1 + R, 3)
        fronts[method] = front(stacked[..., 0], stacked[..., column], QUALITIES)  # (1 + R, Q)
    envelope = np.max([fronts[method] for method in PUBLISHED], axis=0)
    return {method: estimate((place - envelope).mean(axis=1)) for method, place in fronts.items()}


def points(results: Results) -> dict[str, tuple[float, float]]:
    """Quality and number of distinct solutions of every arm and the start."""
    names = ("quality_ratio", DISTINCT)
    return {
        arm.label: tuple(results.figure(arm, name).value for name in names)
        for arm in (*results.starts, *results.arms)
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="further settings, of compare.py or of all runs")
    parser.add_argument("--out", type=Path, default=Path("logs/fronts_np"))
    options = parser.parse_intermixed_args(argv)
    asked = request(options.out, options.overrides)
    status = compare.main(CONFIG, __doc__, asked)
    if status:
        sys.exit(status)
    plan = make_plan(
        read_request(Catalogue(CONFIG.parent, CONFIG.stem), asked), Catalogue(CONFIG.parent, "train")
    )
    results = collect(plan, [])
    found, places = replicates(results), points(results)
    gained = [gains(found, column) for column in (1, 2)]
    lines = [
        [method, *(f"{e.value:+.2f} [{e.low:+.2f}, {e.high:+.2f}]" for e in (one[method] for one in gained))]
        for method in METHODS
    ]
    print(markdown([f"gain in {DISTINCT}", "all feasible", f"of quality {GOOD:g} or more"], lines))
    record = {
        name: {m: [e.value, e.low, e.high] for m, e in one.items()}
        for name, one in zip(("all", "good"), gained, strict=True)
    }
    write_json(
        options.out / "fronts.json", {"seeds": list(plan.request.seeds), "gain": record, "points": places}
    )
    panel = {m: [places[f"{m} @ {value:.4g}"] for value in values] for m, (*_, values) in METHODS.items()}
    marks = [(name, *places[name]) for name in (*(start.label for start in results.starts), REFERENCE)]
    labels = ("quality ratio", f"distinct solutions of {SAMPLES}")
    # Policies that have left the language, with a quality near 0, are outside.
    shown = {"xlim": (0.6, 0.82), "ylim": (5.5, 14.5)}
    draw({"np_tiny": panel}, {"np_tiny": marks}, labels, options.out / "fronts.png", shown)


if __name__ == "__main__":
    main()
