"""Train several algorithms with several seeds under equal settings, and compare what they became.

python compare.py 'algos=[dmpo,grpo]' 'seeds=[0,1,2]' trainer.max_epochs=50
python compare.py experiment=dmpo_grid 'seeds=[0,1]' jobs=2
python compare.py 'runs=[logs/train/dmpo-np_tiny/<run>,logs/train/grpo-np_tiny/<run>]' baseline=grpo
"""

import sys
from pathlib import Path

from distmatch.study.compare import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent / "configs" / "compare.yaml", __doc__))
