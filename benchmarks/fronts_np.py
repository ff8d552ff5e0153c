"""The fronts of `benchmarks.fronts` again, of the tiny transformer on four NP problems: quality, diversity.

    python -m benchmarks.fronts_np [--out FOLDER] [OVERRIDE ...]

Every method is trained at six temperatures with the same start, prompts and number of answers, and then asked
128 held-out prompts 32 times. A front says how many distinct feasible solutions 32 answers hold at a quality
ratio of at least q. A method's *gain* is the mean over q in `QUALITIES` of its front minus the upper envelope
of the fronts of `PUBLISHED`. Intervals are of the bootstrap over prompts and seeds that `compare.py` uses,
with the same resamples for all. Methods, temperatures, qualities and seeds are the constants below, fixed
before the runs. `compare.py` does the work and leaves its own report in FOLDER; it takes further settings,
such as `jobs=2` or `seeds=[100]`, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.fronts import PUBLISHED, draw, front
from benchmarks.runs import write_json
from distmatch.settings.compose import Catalogue
from distmatch.study import compare
from distmatch.study.comparison.plan import literal, make_plan
from distmatch.study.comparison.report import markdown
from distmatch.study.comparison.request import read_request
from distmatch.study.comparison.results import Results, collect
from distmatch.study.comparison.statistics import Estimate, estimate

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "compare.yaml"
SEEDS = (100, 101, 102)
COMMON = ("trainer.max_epochs=50", "data.eval_prompts=128", "threads=1")
SAMPLES = 32
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
    "levelled 0.5": (("algo=levelled_balance", SMALL), "algo.beta", BETAS),
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


def gains(results: Results) -> dict[str, Estimate]:
    """From method to its gain over the envelope of the published methods."""
    columns = [results.column(name) for name in ("quality_ratio", f"distinct@{SAMPLES}")]
    replicates = {arm.label: arm.replicates[:, columns] for arm in results.arms}
    found = {}
    for method, (_, _, values) in METHODS.items():
        stacked = np.stack([replicates[f"{method} @ {value:.4g}"] for value in values])  # (T, 1 + R, 2)
        found[method] = front(stacked[..., 0], stacked[..., 1], QUALITIES)  # (1 + R, Q)
    envelope = np.max([found[method] for method in PUBLISHED], axis=0)
    return {method: estimate((place - envelope).mean(axis=1)) for method, place in found.items()}


def points(results: Results) -> dict[str, tuple[float, float]]:
    """Quality and number of distinct solutions of every arm and the start."""
    names = ("quality_ratio", f"distinct@{SAMPLES}")
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
    gained, places = gains(results), points(results)
    lines = [[m, f"{e.value:+.2f} [{e.low:+.2f}, {e.high:+.2f}]"] for m, e in gained.items()]
    print(markdown(["method", "gain in distinct solutions of 32"], lines))
    record = {m: [e.value, e.low, e.high] for m, e in gained.items()}
    write_json(
        options.out / "fronts.json", {"seeds": list(plan.request.seeds), "gain": record, "points": places}
    )
    panel = {m: [places[f"{m} @ {value:.4g}"] for value in values] for m, (*_, values) in METHODS.items()}
    marks = [(name, *places[name]) for name in (*(start.label for start in results.starts), REFERENCE)]
    labels = ("quality ratio", f"distinct solutions of {SAMPLES}")
    draw({"np_tiny": panel}, {"np_tiny": marks}, labels, options.out / "fronts.png")


if __name__ == "__main__":
    main()
