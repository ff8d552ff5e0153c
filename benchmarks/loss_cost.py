"""What every loss of configs/algo costs beside an update of the tiny model, at 128 rows x 512 tokens.

    python -m benchmarks.loss_cost [--algos dmpo,grpo] [--out FILE]

For each loss, in one process with one thread: seconds of a call with its backward pass down to the policy's
outputs, and seconds of a whole update (scoring in chunks, loss, backward, optimizer step), in turns. Only the
ratio means something on another machine. About half a minute a loss.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from benchmarks.runs import write_json
from distmatch.settings.compose import Catalogue, compose
from distmatch.study.comparison.report import markdown
from distmatch.study.loss_cost import loss_cost

CONFIGS = Path(__file__).parents[1] / "configs"
CHANGES = {"disa": ["algo.log_z={_target_: distmatch.losses.log_z.FrozenLogZ, values: 1.0}"]}
"""A regressor that no stage has trained cannot be called."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted(file.stem for file in (CONFIGS / "algo").glob("*.yaml") if file.stem != "custom")
    parser.add_argument("--algos", type=lambda text: text.split(","), default=known)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, record = [], {}
    for algo in arguments.algos:
        cfg = compose(Catalogue(CONFIGS, "train"), [f"algo={algo}", "data.max_tokens=512"])
        for text in CHANGES.get(algo, []):
            key, _, value = text.partition("=")
            OmegaConf.update(cfg, key, OmegaConf.create(value), merge=False, force_add=True)
        cost = loss_cost(instantiate(cfg.algo), rounds=2)
        record[algo] = {"loss_seconds": cost.loss, "update_seconds": cost.update, "share": cost.share}
        rows.append([algo, f"{1e3 * cost.loss:.1f}", f"{cost.update:.1f}", f"{cost.share:.3%}"])
        print(*rows[-1], flush=True)
    print(markdown(["algo", "call, ms", "update, s", "share"], rows))
    if arguments.out:
        write_json(arguments.out, record)


if __name__ == "__main__":
    main()
