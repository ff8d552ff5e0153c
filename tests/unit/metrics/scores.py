"""Synthetic records for tests of metrics."""

from __future__ import annotations

import random
from collections.abc import Sequence

from distmatch.metrics.group_score import GroupScore

TASKS = {"tsp": "path", "cycle": "path", "clique": "subgraph"}


def make_score(
    keys: Sequence[str | None], qualities: Sequence[float] | None = None, task: str = "tsp"
) -> GroupScore:
    """A record in which answers with a key are feasible, of quality 1 unless given."""
    values = [0.0 if key is None else 1.0 for key in keys] if qualities is None else list(qualities)
    return GroupScore(task, TASKS[task], [key is not None for key in keys], values, list(keys))


def make_scores(prompts: int, n: int = 4, seed: int = 0) -> list[GroupScore]:
    """Random records over the tasks, in turn."""
    rng = random.Random(seed)
    scores = []
    for i in range(prompts):
        keys = [rng.choice(["a", "b", "c", None]) for _ in range(n)]
        qualities = [0.0 if key is None else rng.random() for key in keys]
        scores.append(make_score(keys, qualities, list(TASKS)[i % 3]))
    return scores
