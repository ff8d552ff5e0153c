"""The prefix tree and landscapes against plain enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch

from distmatch.study.language import MAX_STRINGS, Landscape, tree_of
from distmatch.tasks.lab import Lab
from distmatch.tasks.strings import Language

SHAPES = [(2, 1, 1), (2, 5, 5), (3, 3, 3), (5, 2, 2), (2, 4, 1), (3, 3, 2), (4, 5, 2), (5, 2, 1)]
"""Alphabet, length, shortest length."""


def words(alphabet: int, low: int, high: int) -> list[tuple[int, ...]]:
    return [w for size in range(low, high + 1) for w in itertools.product(range(alphabet), repeat=size)]


@pytest.mark.parametrize(("alphabet", "length", "shortest"), SHAPES)
def test_every_string_is_a_path(alphabet: int, length: int, shortest: int) -> None:
    tree, eos = tree_of(alphabet, length, shortest), [alphabet] if shortest < length else []
    prefixes = words(alphabet, 0, length)
    strings = words(alphabet, shortest, length)
    assert len(tree.tokens) == len(strings)
    for row, word in enumerate(strings):
        spelled = [*word, *eos]
        size, pad = len(spelled), tree.tokens.shape[1] - len(spelled)
        assert tree.tokens[row].tolist() == spelled + [0] * pad
        assert tree.before[row].tolist() == [prefixes.index(word[:i]) for i in range(size)] + [0] * pad
        assert tree.mask[row].tolist() == [True] * size + [False] * pad
        chosen = [i != length for i in range(size)]  # EOS after the longest prefix is certain
        assert tree.free[row].tolist() == chosen + [False] * pad
        assert tree.lengths[row] == len(word)
    choosing = [p for p in prefixes if len(p) < length]
    assert tree.prefixes == len(choosing) and tree.depth.tolist() == [len(p) for p in choosing]
    assert tree.nodes == (len(prefixes) if eos else len(choosing))
    if eos:
        assert tree.may_end.tolist() == [len(p) >= shortest for p in choosing]
    else:
        assert tree.may_end is None


@pytest.mark.parametrize(("shortest", "landscape"), [(None, "equal_modes"), (2, "lengths"), (2, "needle")])
def test_rewards_are_the_values_of_the_task(shortest: int | None, landscape: str) -> None:
    lab = Lab(alphabet=3, length=4, min_length=shortest, landscape=landscape)
    made, instance = Landscape.of(lab, 1), lab.instance("train", 1)
    assert made.strings == list(lab.strings()) and len(set(made.strings)) == len(made.rewards)
    for text, reward, best in zip(made.strings, made.rewards.tolist(), made.best.tolist(), strict=True):
        verdict = lab.verify(instance, " ".join(text))
        assert verdict.feasible and verdict.value == reward and best == (reward == 1)
    assert made.rewards.dtype == torch.float64


def test_a_landscape_has_one_reward_a_string() -> None:
    with pytest.raises(ValueError, match=r"shape \(26,\), expected one for each of the 27 strings"):
        Landscape(Language("abc", 3, 3), torch.zeros(26))


def test_too_large_a_language_is_refused_before_it_is_enumerated() -> None:
    with pytest.raises(
        ValueError, match=rf"alphabet=26 and length=9 give \d+ strings, more than the {MAX_STRINGS}"
    ):
        Landscape.of(Lab(alphabet=26, length=9))
