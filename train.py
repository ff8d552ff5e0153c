"""Train a policy by reinforcement learning, and measure it before and after.

python train.py algo=dmpo
python train.py algo=grpo data.group_size=16 trainer.max_epochs=20 seed=1
python train.py resume=logs/train/dmpo-np_tiny/<run>
"""

import sys
from pathlib import Path

from omegaconf import DictConfig

from distmatch.settings import main


def _run(cfg: DictConfig) -> dict[str, float]:
    from distmatch.run import (
        run,
    )  # torch, transformers and lightning: only once the config is known to be right

    return run(cfg)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent / "configs" / "train.yaml", _run, __doc__))
