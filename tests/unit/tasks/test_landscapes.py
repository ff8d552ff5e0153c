"""Landscapes by plain enumeration: what each claims about its strings holds for every prompt."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import pytest

from distmatch.tasks.lab import Lab
from distmatch.tasks.landscapes import LANDSCAPES
from distmatch.tasks.strings import Language, ball, hamming, within

PROMPTS = 6
OPTIONS = {
    "equal_modes": [{}, {"min_length": 2}, {"modes": 1, "near": 0}],
    "broad_and_narrow": [{}, {"modes": 8, "radius": 1}, {"min_length": 3}],
    "deceptive": [{}, {"modes": 5, "trap": 0.5}, {"alphabet": 3, "length": 6}],
    "needle": [{}, {"min_length": 1}],
    "lengths": [{"min_length": 2}, {"min_length": 4, "modes": 3, "near": 0}],
}
CASES = [(name, options) for name in LANDSCAPES for options in OPTIONS[name]]


def labs(name: str, options: dict) -> Lab:
    return Lab(landscape=name, prompts=PROMPTS, **options)


def values(lab: Lab, prompt: int) -> dict[str, float]:
    """Of every string, as the verifier sees it."""
    instance = lab.instance("train", prompt)
    return {text: lab.verify(instance, " ".join(text)).value for text in lab.strings()}


def neighbours(lab: Lab, text: str) -> list[str]:
    """Strings that differ in one letter."""
    return [
        text[:i] + letter + text[i + 1 :]
        for i, old in enumerate(text)
        for letter in lab.letters
        if letter != old
    ]


def best(worth: dict[str, float]) -> list[str]:
    return [text for text, value in worth.items() if value == 1]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_what_holds_for_all(name: str, options: dict) -> None:
    """Values in [0, 1], the best exactly 1 and as many as asked for, the same again and other elsewhere."""
    lab, seen = labs(name, options), set()
    for prompt in range(PROMPTS):
        worth = values(lab, prompt)
        assert min(worth.values()) >= 0 and max(worth.values()) == 1
        assert len(best(worth)) == getattr(lab.landscape, "modes", 1)
        assert lab.solve(lab.instance("train", prompt)).answer in best(worth)
        assert worth == values(labs(name, options), prompt)
        seen.add(
            json.dumps(lab.instance("train", prompt).data["values" if name != "equal_modes" else "modes"])
        )
        assert all(text in worth for text in lab.planted(lab.instance("train", prompt)))
    assert len(seen) == PROMPTS
    other = Lab(landscape=name, prompts=PROMPTS, seed=1, **options)
    assert values(other, 0) != values(lab, 0)


@pytest.mark.parametrize("options", OPTIONS["broad_and_narrow"])
def test_one_top_has_a_hill_and_the_others_stand_alone(options: dict) -> None:
    lab = labs("broad_and_narrow", options)
    radius = lab.landscape.radius
    for prompt in range(PROMPTS):
        worth = values(lab, prompt)
        broad = [text for text in best(worth) if any(worth[other] > 0 for other in neighbours(lab, text))]
        assert len(broad) == 1 and len(broad[0]) == lab.length
        for text, value in worth.items():
            if len(text) == lab.length and value < 1:
                distance = sum(a != b for a, b in zip(text, broad[0], strict=True))
                assert value == pytest.approx(max(0.0, 1 - distance / (radius + 1)))
            elif value < 1:
                assert value == 0


@pytest.mark.parametrize("options", OPTIONS["deceptive"])
def test_the_slope_leads_from_most_starts_to_the_worse_optimum(options: dict) -> None:
    """Steepest ascent over one-letter changes; the best are never next to each other."""
    lab = labs("deceptive", options)
    for prompt in range(PROMPTS):
        worth = values(lab, prompt)
        tops = set(best(worth))
        trap = max((text for text in worth if text not in tops), key=worth.get)
        assert worth[trap] == pytest.approx(lab.landscape.trap)
        ends = Counter()
        for start in worth:
            here = start
            while max(map(worth.get, neighbours(lab, here))) > worth[here]:
                here = max(neighbours(lab, here), key=worth.get)
            ends[here] += 1
        assert set(ends) == tops | {trap}
        assert ends[trap] > 0.85 * len(worth)
        for top in tops:
            assert not any(other in tops for other in neighbours(lab, top))
            assert all(a != b for a, b in zip(top, trap, strict=True))
            assert max(map(worth.get, neighbours(lab, top))) < lab.landscape.trap / 2


def test_a_needle_is_alone() -> None:
    assert sorted(values(labs("needle", {"min_length": 1}), 0).values())[-2:] == [0, 1]


@pytest.mark.parametrize("options", OPTIONS["lengths"])
def test_best_strings_have_all_lengths(options: dict) -> None:
    lab = labs("lengths", options)
    for prompt in range(PROMPTS):
        worth = values(lab, prompt)
        for level, wanted in ((1.0, lab.landscape.modes), (0.5, lab.landscape.near)):
            counts = Counter(len(text) for text, value in worth.items() if value == level)
            dealt = Counter(itertools.islice(itertools.cycle(range(options["min_length"], 6)), wanted))
            assert counts == dealt


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"landscape": "hilly"}, "landscape='hilly' is unknown; choose one of equal_modes, broad_and_narrow"),
        (
            {"landscape": "needle", "modes": 2},
            "modes=2 is no setting of landscape=needle, which takes nothing",
        ),
        (
            {"landscape": "deceptive", "near": 3},
            "near=3 is no setting of landscape=deceptive, which takes modes",
        ),
        ({"radius": 2}, "radius=2 is no setting of landscape=equal_modes"),
        ({"modes": 1000, "near": 25}, "modes=1000 and near=25 strings cannot be planted among 1024"),
        ({"landscape": "broad_and_narrow", "modes": 1}, "modes=1 must be at least 2"),
        ({"landscape": "broad_and_narrow", "radius": 0}, "radius=0 must be between 1 and length=5"),
        ({"landscape": "broad_and_narrow", "radius": 5}, "modes=4 with radius=5 leaves no room"),
        ({"landscape": "broad_and_narrow", "modes": 100}, "modes=100 with radius=2 leaves no room for 99"),
        ({"landscape": "deceptive", "trap": 1.0}, "trap=1.0 must be above 0 and below 1"),
        ({"landscape": "deceptive", "modes": 0}, "modes=0 must be at least 1"),
        ({"landscape": "deceptive", "modes": 23}, "modes=23 isolated strings .* at most 22 surely can"),
        ({"landscape": "deceptive", "length": 9}, "length=9 would plant 262144 strings, more than 100000"),
        ({"landscape": "lengths"}, "landscape=lengths needs min_length=5 below length=5"),
        (
            {"landscape": "lengths", "min_length": 1, "near": 12},
            "modes=8 and near=12 ask for 5 strings of length 1",
        ),
        ({"min_length": 0}, "min_length=0 must be between 1 and length=5"),
        ({"min_length": 6}, "min_length=6 must be between 1 and length=5"),
    ],
)
def test_what_cannot_be_planted_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lab(**options)


@pytest.mark.parametrize("modes", [22, 1])
def test_as_many_isolated_strings_as_are_allowed_always_fit(modes: int) -> None:
    for seed in range(10):
        lab = Lab(landscape="deceptive", modes=modes, seed=seed)
        planted = lab.planted(lab.instance("train", 0))
        assert sum(value == 1 for value in planted.values()) == modes


# ---- strings -----------------------------------------------------------------------------------------------


def test_strings_within_a_distance_are_each_there_once() -> None:
    language = Language("abc", 4, 4)
    for radius in range(5):
        found = dict(within(language, "abca", radius))
        everything = map("".join, itertools.product("abc", repeat=4))
        expected = {t: sum(a != b for a, b in zip(t, "abca", strict=True)) for t in everything}
        assert found == {text: d for text, d in expected.items() if d <= radius}
        assert len(list(within(language, "abca", radius))) == len(found) == ball(language, radius)


def test_strings_of_different_lengths_have_no_distance() -> None:
    assert hamming("ab", "abc") is None and hamming("abc", "bbc") == 1


def test_draws_are_uniform_over_strings_of_all_lengths() -> None:
    language, rng = Language("ab", 3, 1), random.Random(0)
    counts = Counter(language.draw(rng) for _ in range(14_000))
    assert set(counts) == set(language.strings()) and len(counts) == 14 == language.size
    assert max(abs(count - 1000) for count in counts.values()) < 150  # 5 deviations
    assert {len(language.draw(rng, 2)) for _ in range(10)} == {2}
