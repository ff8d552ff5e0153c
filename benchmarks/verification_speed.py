"""How fast instances are made and answers judged: one core, every NP problem at level bench.

    python -m benchmarks.verification_speed [--level bench] [--seconds 1.0] [--out F]

For each problem: instances a second without reference; verdicts a second on right answers; the slowest
verdict on hostile text of a million characters, in milliseconds; the heuristic's time. Best of three rounds,
so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from distmatch.tasks.base import Task

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "task"
ROUNDS = 3
HOSTILE = (
    "Answer: [" + "0, " * 330_000,
    "Answer: " + "[" * 1_000_000,
    "Answer: [" + "9" * 1_000_000 + "]",
    "Answer:" * 140_000,
    "(" * 500_000 + ")" * 500_000,
)


def problems(level: str) -> dict[str, Task]:
    """Every single problem that has the level, by name."""
    found = {}
    for file in sorted(CONFIGS.glob("*.yaml")):
        node = OmegaConf.load(file)
        if ".np." in node._target_:
            found[file.stem] = instantiate(node, level=level)
    return found


def rate(act: Callable[[int], object], seconds: float) -> float:
    """Calls a second, the best of some rounds; `act` gets a running number."""
    best, number = 0.0, 0
    for _ in range(ROUNDS):
        start, calls = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < seconds / ROUNDS:
            act(number)
            number, calls = number + 1, calls + 1
        best = max(best, calls / spent)
    return best


def measure(task: Task, seconds: float) -> dict[str, float]:
    """The figures of one problem."""
    instances = [task.instance("test", index) for index in range(8)]
    solutions = [task.solve(instance) for instance in instances]
    answers = [task.format(solution.answer) for solution in solutions]
    hostile = [
        1 / rate(lambda _, text=text: task.verify(instances[0], text), seconds / 5) for text in HOSTILE
    ]
    return {
        "instances per second": rate(lambda i: task.instance("train", i), seconds),
        "verdicts per second": rate(lambda i: task.verify(instances[i % 8], answers[i % 8]), seconds),
        "slowest hostile verdict, ms": 1000 * max(hostile),
        "heuristic, ms": 1000 / rate(lambda i: task.solve(instances[i % 8]), seconds),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", default="bench")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures = {name: measure(task, arguments.seconds) for name, task in problems(arguments.level).items()}
    table = Table("problem", *next(iter(figures.values())), title=f"level {arguments.level}, one core")
    for name, row in figures.items():
        table.add_row(name, *(f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in row.values()))
    Console(width=140).print(table)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
