"""Train two algorithms with three seeds each, one run after another, and measure them: the README's tables.

    python -m benchmarks.run_seeds FOLDER [--algos dmpo,grpo] [--seeds 0,1,2] [OVERRIDE ...]

Each run is `python train.py algo=<algo> seed=<seed> <overrides>` in a folder of its own under FOLDER, as
`train.py -m` would do it, but under names that are known before: the same command goes on where it was
interrupted, and runs that are finished are not repeated. Then `side_by_side` and `reads_the_instance` print
their tables and leave `side_by_side.json` and `reads_the_instance.json` in FOLDER.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks import reads_the_instance, side_by_side
from benchmarks.runs import Run, read_runs

ROOT = Path(__file__).resolve().parents[1]


def train(folder: Path, overrides: Sequence[str]) -> None:
    """Start a run in `folder`, or go on with the one that is there, unless it is finished.

    Raises:
        SystemExit: The run failed, or the folder holds a run with other settings.
    """
    job = [*overrides, f"paths.run_dir={folder}"]
    record = folder / "overrides.yaml"
    if record.is_file() and yaml.safe_load(record.read_text(encoding="utf-8")) != job:
        sys.exit(f"error: {folder} holds a run with other settings; name another folder")
    if (folder / "metrics.json").is_file():
        print(f"{folder} is finished")
        return
    if list((folder / "checkpoints").glob("*.ckpt")):
        job = [f"resume={folder}"]
    print(f"python train.py {' '.join(job)}", flush=True)
    process = subprocess.Popen([sys.executable, str(ROOT / "train.py"), *job])
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C reached it too: it saves what it has
        sys.exit("stopped; the same command goes on")
    if status:
        sys.exit(f"error: exit status {status} from python train.py {' '.join(job)}")


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
    parser.add_argument("overrides", nargs="*", help="further settings, the same for all runs")
    parser.add_argument("--algos", default="dmpo,grpo", help="with commas; the first two are compared")
    parser.add_argument("--seeds", default="0,1,2", help="with commas")
    parser.add_argument("--prompts", type=int, default=256, help="of reads_the_instance, for each task")
    parser.add_argument("--samples", type=int, default=16, help="of reads_the_instance")
    options = parser.parse_intermixed_args(argv)
    algos, seeds = options.algos.split(","), options.seeds.split(",")
    folders = []
    for seed, algo in itertools.product(seeds, algos):
        folders.append(options.folder.resolve() / f"{algo}-seed{seed}")
        train(folders[-1], [f"algo={algo}", f"seed={seed}", *options.overrides])
    runs = read_runs(folders)
    out = ["--out", str(options.folder / "side_by_side.json")]
    pair = ["--compare", *algos[:2]] if len(algos) > 1 else []
    side_by_side.main([*map(str, folders), *pair, *out])
    sizes = ["--prompts", str(options.prompts), "--samples", str(options.samples)]
    out = ["--out", str(options.folder / "reads_the_instance.json")]
    reads_the_instance.main([start_of(runs), *map(str, folders), *sizes, *out])


if __name__ == "__main__":
    main()
