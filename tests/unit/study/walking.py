"""Probabilities of strings under a table, by walking it letter by letter in plain Python."""

from __future__ import annotations

import itertools
import math

from distmatch.study.tabular import TabularPolicy


def walked(policy: TabularPolicy) -> dict[str, float]:
    """Probability of every string; rows of the table are prefixes, short ones first, EOS last in a row."""
    letters = "abcdefgh"[: policy.alphabet]
    rows = iter(policy.logits.tolist())
    table = {
        "".join(prefix): next(rows)
        for level in range(policy.length)
        for prefix in itertools.product(letters, repeat=level)
    }
    return {
        text: math.prod(step for _, step in steps(policy, table, text))
        for level in range(policy.min_length, policy.length + 1)
        for text in map("".join, itertools.product(letters, repeat=level))
    }


def steps(policy: TabularPolicy, table: dict[str, list[float]], text: str) -> list[tuple[str, float]]:
    """Each choice on the way to a string, with its probability; `.` is EOS, where it is a choice."""
    letters, ends = "abcdefgh"[: policy.alphabet], policy.min_length < policy.length
    found = []
    for place in range(len(text) + 1):
        prefix = text[:place]
        if place == policy.length or (place == len(text) and not ends):
            break
        names = letters + ("." if ends and place >= policy.min_length else "")
        weights = {name: math.exp(x) for name, x in zip(names, table[prefix], strict=False)}
        chosen = text[place] if place < len(text) else "."
        found.append((chosen, weights[chosen] / sum(weights.values())))
    return found
