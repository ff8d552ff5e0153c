"""Put runs of two algorithms side by side: held-out figures before and after, and paired differences.

    python -m benchmarks.side_by_side RUN [RUN ...] [--compare dmpo grpo] [--out FILE]

Reads `metrics.json` and `config.yaml` of finished runs, nothing else. A cell says `start → end`. A line over
seeds gives the mean of starts and of ends with the ends' (min, max); a difference is end minus end of the
same seed, whose runs share instances and random numbers. Best-of-k is at the largest k that all runs have.
Settings other than algorithm and seed that differ between the runs are named on stderr. After a resume, the
minutes are those since then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.runs import Run, by_algo, markdown, number, read_runs, write_json

FIGURES = {
    "success_rate": "SR",
    "quality_ratio": "QR",
    "quality_feasible": "quality of feasible",
    "best": "best@{k}",
    "distinct_solutions": "distinct",
    "effective_solutions": "effective",
}
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Line:
    """One run's figures.

    Attributes:
        algo: Its algorithm.
        seed: Its seed.
        start: Held-out figures before training, by the names of `FIGURES`; nan where a run has none.
        end: The same after training.
        minutes: Wall time.
        peak_memory_mib: Peak resident memory.
    """

    algo: str
    seed: int
    start: dict[str, float]
    end: dict[str, float]
    minutes: float
    peak_memory_mib: float


def largest_k(runs: Sequence[Run]) -> int:
    """The largest k for which every run has best@k.

    Raises:
        SystemExit: There is none.
    """
    prefix = "val/best@"
    common = set.intersection(
        *({int(key.removeprefix(prefix)) for key in run.metrics if _is_figure(key, prefix)} for run in runs)
    )
    if not common:
        sys.exit("error: the runs have no best@k in common")
    return max(common)


def line(run: Run, k: int) -> Line:
    """Read a run's figures."""
    start, end = (
        {
            name: float(run.metrics.get(f"{stage}/{f'best@{k}' if name == 'best' else name}", "nan"))
            for name in FIGURES
        }
        for stage in ("start", "val")
    )
    minutes = run.metrics["run/wall_seconds"] / 60
    return Line(run.algo, run.seed, start, end, minutes, run.metrics["run/peak_memory_bytes"] / MEBIBYTE)


def differences(lines: Sequence[Line], one: str, other: str) -> dict[int, dict[str, float]]:
    """End of `one` minus end of `other`, by seed and figure, for the seeds that both have."""
    ends = {(line.algo, line.seed): line.end for line in lines}
    seeds = sorted(seed for algo, seed in ends if algo == one and (other, seed) in ends)
    return {
        seed: {name: ends[one, seed][name] - ends[other, seed][name] for name in FIGURES} for seed in seeds
    }


def spread(values: Sequence[float]) -> str:
    """Mean, and in brackets the smallest and the largest if there are several."""
    around = f" ({number(min(values))}, {number(max(values))})" if len(values) > 1 else ""
    return f"{number(mean(values))}{around}"


def table(lines: Sequence[Line], gaps: dict[int, dict[str, float]], pair: Sequence[str], k: int) -> str:
    """The Markdown table."""
    headers = ["algo", "seed", *(title.format(k=k) for title in FIGURES.values()), "minutes", "peak MiB"]
    rows = []
    for algo in dict.fromkeys(line.algo for line in lines):
        mine = [line for line in lines if line.algo == algo]
        rows += [_cells(line) for line in mine]
        rows += [_mean_cells(mine)] if len(mine) > 1 else []
    name = " − ".join(pair)
    rows += [[name, str(seed), *(number(gap[f]) for f in FIGURES), "", ""] for seed, gap in gaps.items()]
    if len(gaps) > 1:
        over_seeds = [spread([gap[f] for gap in gaps.values()]) for f in FIGURES]
        rows.append([f"**{name}**", "mean (min, max)", *over_seeds, "", ""])
    return markdown(headers, rows)


def _cells(line: Line) -> list[str]:
    figures = [f"{number(line.start[f])} → {number(line.end[f])}" for f in FIGURES]
    return [line.algo, str(line.seed), *figures, number(line.minutes, 1), number(line.peak_memory_mib, 0)]


def _mean_cells(lines: Sequence[Line]) -> list[str]:
    figures = [
        f"{number(mean(line.start[f] for line in lines))} → {spread([line.end[f] for line in lines])}"
        for f in FIGURES
    ]
    minutes = number(mean(line.minutes for line in lines), 1)
    memory = number(max(line.peak_memory_mib for line in lines), 0)
    return [f"**{lines[0].algo}**", "mean (min, max)", *figures, minutes, memory]


def _is_figure(key: str, prefix: str) -> bool:
    return key.startswith(prefix) and key.removeprefix(prefix).isdecimal()


def report(runs: Sequence[Run], pair: Sequence[str]) -> dict[str, Any]:
    """Print the table and return its figures."""
    k = largest_k(runs)
    lines = [line(run, k) for run in runs]
    gaps = differences(lines, *pair)
    print(f"\n{table(lines, gaps, pair, k)}\n")
    means = {
        algo: {f: mean(line.end[f] for line in lines if line.algo == algo) for f in FIGURES}
        for algo in by_algo(runs)
    }
    return {
        "k": k,
        "runs": [asdict(line) for line in lines],
        "means": means,
        "compared": list(pair),
        "differences": gaps,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument(
        "--compare", nargs=2, default=["dmpo", "grpo"], metavar="ALGO", help="difference of these"
    )
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args(argv)
    figures = report(read_runs(options.runs), options.compare)
    if options.out:
        write_json(options.out, figures)


if __name__ == "__main__":
    main()
