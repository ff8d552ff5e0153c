"""A whole small language as tensors: its strings as paths through a prefix tree, and the rewards on them.

Letters: **A** alphabet, **L** longest length, **S** strings in the order of `Language.strings` (short ones
first), **T** tokens of the longest string. Prefixes, the nodes of the tree, are in the same order, from the
empty one on.

Where lengths differ, a string ends with an EOS token, numbered A. It competes with the letters at every
prefix that may end, and is certain after L letters: there it is a token of log-probability 0, so that l
letters always count l + 1 tokens, as in a language model. Where all strings are equally long there is no EOS.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from distmatch.tasks.base import Split
from distmatch.tasks.lab import Lab
from distmatch.tasks.strings import Language

MAX_STRINGS = 200_000
"""Larger languages are not enumerated."""


@dataclass(frozen=True, eq=False)
class Tree:
    """The strings of a language as tokens; build with `tree_of`.

    Attributes:
        prefixes: Number of prefixes with a choice of what follows: those shorter than L.
        nodes: Number of prefixes with a token after them: with EOS also the strings of L letters.
        tokens: Of every string, EOS included, padded with 0, (S, T) long.
        before: The prefix that each token follows, padded with 0, (S, T) long.
        mask: Which of these are tokens, (S, T) bool.
        free: Which are chosen, that is all but a certain EOS, (S, T) bool.
        lengths: Letters of every string, (S,) long.
        depth: Letters of every prefix, (prefixes,) long.
        may_end: At which prefixes EOS may follow, (prefixes,) bool; None in a language without EOS.
    """

    prefixes: int
    nodes: int
    tokens: Tensor
    before: Tensor
    mask: Tensor
    free: Tensor
    lengths: Tensor
    depth: Tensor
    may_end: Tensor | None


@functools.lru_cache(maxsize=16)
def tree_of(alphabet: int, length: int, min_length: int) -> Tree:
    """The prefix tree of a language; the same object for the same numbers.

    Raises:
        ValueError: It has more than `MAX_STRINGS` strings.
    """
    size = sum(alphabet**level for level in range(min_length, length + 1))
    if size > MAX_STRINGS:
        raise ValueError(
            f"alphabet={alphabet} and length={length} give {size} strings, more than the {MAX_STRINGS} that "
            "are enumerated; lower one of them"
        )
    has_eos = min_length < length
    first = torch.tensor([(alphabet**level - 1) // (alphabet - 1) for level in range(length + 2)])
    place = torch.arange(length + has_eos)
    parts = [_paths(alphabet, level, place, first) for level in range(min_length, length + 1)]
    lengths = torch.cat([torch.full((len(part[0]),), level) for level, part in enumerate(parts, min_length)])
    mask = place < lengths[:, None] + has_eos
    prefixes = int(first[length])
    depth = torch.repeat_interleave(torch.arange(length), first[1:-1] - first[:-2])
    return Tree(
        prefixes=prefixes,
        nodes=int(first[length + 1]) if has_eos else prefixes,
        tokens=torch.cat([part[0] for part in parts]) * mask,
        before=torch.cat([part[1] for part in parts]) * mask,
        mask=mask,
        free=mask & (place < length),
        lengths=lengths,
        depth=depth,
        may_end=depth >= min_length if has_eos else None,
    )


def _paths(alphabet: int, level: int, place: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and prefixes (A^level, T) of the strings of `level` letters; beyond EOS they mean nothing."""
    number = torch.arange(alphabet**level)[:, None]
    letters = number // alphabet ** (level - 1 - place).clamp(min=0) % alphabet
    depth = place.clamp(max=level)
    before = number // alphabet ** (level - depth) + first[depth]
    return torch.where(place < level, letters, alphabet), before


@dataclass(frozen=True)
class Landscape:
    """Rewards of all strings of a language, for one prompt.

    Attributes:
        language: The strings.
        rewards: Of every string, (S,) float64.

    Raises:
        ValueError: Not one reward a string, or too many strings.
    """

    language: Language
    rewards: Tensor

    def __post_init__(self) -> None:
        if self.rewards.shape != (self.language.size,):
            raise ValueError(
                f"rewards have shape {tuple(self.rewards.shape)}, expected one for each of the "
                f"{self.language.size} strings of {self.language}"
            )

    @classmethod
    def of(cls, lab: Lab, index: int = 0, split: Split = "train") -> Landscape:
        """The landscape of one prompt of the task, with values as rewards.

        Raises:
            ValueError: The language is too large to enumerate.
        """
        language = lab.language
        tree_of(len(language.letters), language.length, language.min_length)  # refuses before it enumerates
        planted = lab.planted(lab.instance(split, index))
        values = [planted.get(text, 0.0) for text in language.strings()]
        return cls(language, torch.tensor(values, dtype=torch.float64))

    @property
    def alphabet(self) -> int:
        """A."""
        return len(self.language.letters)

    @property
    def length(self) -> int:
        """L."""
        return self.language.length

    @property
    def min_length(self) -> int:
        """Letters of the shortest strings."""
        return self.language.min_length

    @property
    def tree(self) -> Tree:
        """The language as tensors."""
        return tree_of(self.alphabet, self.length, self.min_length)

    @property
    def strings(self) -> list[str]:
        """Every string, in the order of `rewards`."""
        return list(self.language.strings())

    @functools.cached_property
    def best(self) -> Tensor:
        """Which strings have the highest reward, (S,) bool."""
        return self.rewards == self.rewards.max()
