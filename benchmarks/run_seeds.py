"""Train two algorithms with three seeds each, compare them, and ask whether they read: the README's tables.

    python -m benchmarks.run_seeds FOLDER [--algos dmpo,grpo] [--seeds 0,1,2] [OVERRIDE ...]

`compare.py` does the training and leaves its report in FOLDER, `comparison.md`; what it takes on its command
line may follow here. Then `reads_the_instance` prints its tables and leaves `reads_the_instance.json` in
FOLDER. The same command goes on where it was interrupted, and runs that are finished are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import reads_the_instance
from benchmarks.runs import Run, read_runs
from distmatch.study import compare
from distmatch.study.comparison.plan import literal

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "compare.yaml"


def cells(folder: Path, algos: Sequence[str], seeds: Sequence[str]) -> list[Path]:
    """The folders of the runs of a comparison of algorithms."""
    return [folder / "cells" / f"{algo}-seed{seed}" for seed, algo in itertools.product(seeds, algos)]


def start_of(runs: Sequence[Run]) -> str:
    """The weights that all runs started from.

    Raises:
        SystemExit: They started from different ones.
    """
    starts = {str(run.config["model"].get("weights", "")) for run in runs}
    if len(starts) > 1 or "" in starts:
        sys.exit(
            f"error: the runs started from {sorted(starts)}; they need one start of model=tiny in common"
        )
    return starts.pop()


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the runs and the figures go")
    parser.add_argument("overrides", nargs="*", help="further settings, of compare.py or of all runs")
    parser.add_argument("--algos", default="dmpo,grpo", help="with commas; differences are to the last one")
    parser.add_argument("--seeds", default="0,1,2", help="with commas")
    parser.add_argument("--prompts", type=int, default=256, help="of reads_the_instance, for each task")
    parser.add_argument("--samples", type=int, default=16, help="of reads_the_instance")
    options = parser.parse_intermixed_args(argv)
    algos, seeds = options.algos.split(","), options.seeds.split(",")
    asked = [f"algos=[{options.algos}]", f"seeds=[{options.seeds}]", f"baseline={algos[-1]}"]
    asked += [f"folder={literal(options.folder.as_posix())}", f"name={literal(options.folder.name)}"]
    status = compare.main(CONFIG, __doc__, [*asked, *options.overrides])
    if status:
        sys.exit(status)
    folders = cells(options.folder, algos, seeds)
    sizes = ["--prompts", str(options.prompts), "--samples", str(options.samples)]
    out = ["--out", str(options.folder / "reads_the_instance.json")]
    reads_the_instance.main([start_of(read_runs(folders)), *map(str, folders), *sizes, *out])


if __name__ == "__main__":
    main()
