"""Does a policy read the instance, and did training teach it to optimise?

    python -m benchmarks.reads_the_instance START RUN [RUN ...] [--prompts 256] [--samples 16] [--out FILE]

START is the model that the runs started from (`shipped`, `random` or a model folder); of each RUN folder the
`export/` is measured. All models answer the same held-out instances (split val, `--prompts` of each member of
`np_tiny`), with the same random numbers and the sampling settings of `configs/data`.

Quality is measured against the exact optimum, found by enumerating all valid answers. For an instance i, q_i
is the mean quality of the policy's feasible answers and r_i the exact mean over all valid answers, each
solution once: what somebody gets who knows the rules and ignores the numbers as objective. Over the instances
with a feasible answer,

    n = (mean q_i - mean r_i) / (1 - mean r_i)

is 0 for uniformly random valid answers and 1 for optimal ones. Obedience alone, more answers in a valid form,
raises the success rate and leaves n where it is.

**The gain** is n of the trained model minus n of the start, on the instances where both have a feasible
answer, so that the comparison is paired. Intervals are 95 % bootstrap percentiles over instances, the two
models resampled together. They say how other instances would move the figures, not other seeds; those have
rows of their own.

**The swap** shows each instance's neighbour of the same task and level (a rotation by one) and scores the
answers on the instance itself. A policy that optimises by reading falls back to what answers to a foreign
instance are worth; one that recites good guesses keeps its n. What such an answer is worth differs by task,
because feasibility itself depends on the numbers:

- `tsp`: any tour is valid on any instance of the size, nothing is selected, and an answer that depends on a
  foreign instance alone has n = 0 in expectation. This is the clean case.
- `knapsack`: whoever fills a knapsack beats uniformly random selections even blindly, for those are smaller
  on average; and only those swapped answers count that happen to fit. So n under swap is above 0 for a
  perfect reader. "Matched" takes this out: there r is the mean over the valid answers of the same size as
  the one judged. Names of items carry no meaning, so a foreign answer that fits is a random one of its size,
  and a reader has matched n = 0 under swap, beside a matched n above 0 on the true instances.
- `graph_coloring`, `maximum_clique`: a swapped answer is seldom valid, and those that are were selected by
  that: small cliques and colourings with many colours survive, from few instances. Size is quality here, so
  there is nothing to match, and n under swap says little in either direction. That the success rate falls is
  the evidence that instances are read.

Two planted answerers, sampled from the same enumeration, show what to expect: `random answers`, uniform over
the valid answers of the instance shown, and `exact solver`, uniform over its optimal ones. The solver's line
under swap is what a perfect reader falls back to: compare a policy's with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from benchmarks.answers import (
    Answerer,
    PolicyAnswers,
    Problem,
    Scores,
    held_out,
    planted,
    score,
)
from benchmarks.estimates import RESAMPLES, UNKNOWN, Estimate, estimate
from benchmarks.runs import Run, by_algo, read_runs, write_json
from distmatch.modules.tiny import load_tiny
from distmatch.run import quiet
from distmatch.sampling.base import SamplingParams
from distmatch.settings.compose import Catalogue, compose
from distmatch.study.comparison.report import markdown, number

Array = np.ndarray
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
HEADERS = (
    "task",
    "model",
    "SR",
    "q",
    "q random",
    "n",
    "n matched",
    "gain",
    "SR swap",
    "n swap",
    "n swap matched",
)


# ---- figures -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What the table says about one model on one task.

    Attributes:
        task: Name of the task.
        model: What was asked.
        success_rate: Of all answers.
        quality: Mean q_i, over instances with a feasible answer.
        random_quality: Mean r_i over the same instances.
        n: Normalised quality.
        matched_n: The same against random answers of equal size; nan where size is quality.
        gain: n minus the start's, paired; None for the start and the planted answerers.
        swap_success_rate: Success rate under swap.
        swap_n: n under swap.
        swap_matched_n: Matched n under swap.
    """

    task: str
    model: str
    success_rate: float
    quality: float
    random_quality: float
    n: Estimate
    matched_n: Estimate
    gain: Estimate | None
    swap_success_rate: float
    swap_n: Estimate
    swap_matched_n: Estimate

    def cells(self) -> list[str]:
        """The row of a table."""
        means = [self.success_rate, self.quality, self.random_quality]
        gain = "" if self.gain is None else str(self.gain)
        swap = [number(self.swap_success_rate), f"{self.swap_n} ({self.swap_n.instances})"]
        return [
            self.task,
            self.model,
            *map(number, means),
            str(self.n),
            str(self.matched_n),
            gain,
            *swap,
            str(self.swap_matched_n),
        ]


def row(model: str, problems: Sequence[Problem], true: Scores, swapped: Scores, start: Scores | None) -> Row:
    """Turn scores into a row."""
    baseline = np.array([problem.random_quality for problem in problems])
    known = ~np.isnan(true.quality)
    matched = not all(problem.size_is_quality for problem in problems)
    return Row(
        task=problems[0].task.name,
        model=model,
        success_rate=float(true.success.mean()),
        quality=float(true.quality[known].mean()) if known.any() else np.nan,
        random_quality=float(baseline[known].mean()) if known.any() else np.nan,
        n=estimate(baseline, true.quality),
        matched_n=estimate(true.matched, true.quality) if matched else UNKNOWN,
        gain=None if start is None else estimate(baseline, true.quality, start.quality),
        swap_success_rate=float(swapped.success.mean()),
        swap_n=estimate(baseline, swapped.quality),
        swap_matched_n=estimate(swapped.matched, swapped.quality) if matched else UNKNOWN,
    )


def compare(
    tasks: Mapping[str, Sequence[Problem]], models: Mapping[str, Answerer], start: str, planted: Sequence[str]
) -> list[Row]:
    """All rows, task by task.

    Args:
        tasks: Problems by task.
        models: Answerers by name, in the order of the rows.
        start: Which of them the others are compared with; it comes before those.
        planted: Which of them are not compared.
    """
    rows = []
    for problems in tasks.values():
        first: Scores | None = None
        for name, answerer in models.items():
            true, swapped = (score(problems, answerer, swap=swap) for swap in (False, True))
            rows.append(row(name, problems, true, swapped, None if name in planted else first))
            first = true if name == start else first
    return rows


def seed_means(rows: Sequence[Row], runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Figures of each task and algorithm with several seeds: mean, min and max over the seeds."""
    for task in dict.fromkeys(row.task for row in rows):
        for algo, members in by_algo(runs).items():
            labels = {run.label for run in members}
            chosen = [row for row in rows if row.task == task and row.model in labels]
            if len(chosen) > 1:
                yield {"task": task, "model": f"{algo}, mean of {len(chosen)} seeds", **_summary(chosen)}


def _summary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    figures = {
        "success_rate": [row.success_rate for row in rows],
        "quality": [row.quality for row in rows],
        "random_quality": [row.random_quality for row in rows],
        "n": [row.n.value for row in rows],
        "matched_n": [row.matched_n.value for row in rows],
        "gain": [row.gain.value for row in rows if row.gain],
        "swap_success_rate": [row.swap_success_rate for row in rows],
        "swap_n": [row.swap_n.value for row in rows],
        "swap_matched_n": [row.swap_matched_n.value for row in rows],
    }
    return {
        name: {"mean": float(np.mean(values)), "min": float(min(values)), "max": float(max(values))}
        for name, values in figures.items()
    }


# ---- the program -------------------------------------------------------------------------------------------


def measure(start: str, runs: Sequence[Run], prompts: int, samples: int, seed: int) -> dict[str, Any]:
    """Measure the start, the runs and the planted answerers; print the tables and return the report."""
    quiet()
    cfg = compose(Catalogue(CONFIGS, "train"), ["task=np_tiny"])
    models: dict[str, Answerer] = {
        "random answers": partial(planted, samples=samples, optimal=False),
        "exact solver": partial(planted, samples=samples, optimal=True),
        "start": _policy_answers(cfg, start, samples, seed),
        **{run.label: _policy_answers(cfg, str(run.folder / "export"), samples, seed) for run in runs},
    }
    tasks = held_out(instantiate(cfg.task), prompts)
    rows = compare(tasks, models, "start", ["random answers", "exact solver"])
    means = list(seed_means(rows, runs))
    show(rows, means)
    settings = {"start": start, "runs": [str(run.folder) for run in runs], "resamples": RESAMPLES}
    settings |= {"prompts": prompts, "samples": samples, "seed": seed}
    return {"settings": settings, "rows": [asdict(row) for row in rows], "means": means}


def _policy_answers(cfg: DictConfig, weights: str, samples: int, seed: int) -> PolicyAnswers:
    params = SamplingParams(samples, cfg.data.max_tokens, cfg.data.temperature)
    return PolicyAnswers(load_tiny(weights).eval(), instantiate(cfg.sampler), params, seed)


def show(rows: Sequence[Row], means: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for the eye and the same in Markdown."""
    lines = []
    for task in dict.fromkeys(row.task for row in rows):
        lines += [row.cells() for row in rows if row.task == task]
        lines += [_mean_cells(mean) for mean in means if mean["task"] == task]
    table = Table(*HEADERS, title="brackets: 95 % over instances; (k): instances with a feasible answer")
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.width = max(console.width, 240)  # a wrapped table cannot be read
    console.print(table)
    print(f"\n{markdown(HEADERS, lines)}\n")


def _mean_cells(mean: Mapping[str, Any]) -> list[str]:
    names = [
        "success_rate",
        "quality",
        "random_quality",
        "n",
        "matched_n",
        "gain",
        "swap_success_rate",
        "swap_n",
        "swap_matched_n",
    ]
    return [mean["task"], mean["model"], *(number(mean[name]["mean"]) for name in names)]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("start", help="'shipped', 'random' or the folder of the model before training")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--prompts", type=int, default=256, help="held-out instances of each task")
    parser.add_argument("--samples", type=int, default=16, help="answers to each instance")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling, the same for all models")
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args(argv)
    runs = read_runs(options.runs)
    report = measure(options.start, runs, options.prompts, options.samples, options.seed)
    if options.out:
        write_json(options.out, report)


if __name__ == "__main__":
    main()
