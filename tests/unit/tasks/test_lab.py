import random
from collections import Counter

import pytest

from distmatch.tasks.lab import Lab


def test_the_planted_numbers_are_found_by_enumeration():
    lab = Lab(alphabet=3, length=4, modes=5, near=7, prompts=3)
    for prompt in range(3):
        instance = lab.instance("train", prompt)
        counts = Counter(lab.value_of(instance, string) for string in lab.strings())
        assert counts == {1.0: 5, 0.5: 7, 0.0: 81 - 12}


def test_a_full_language_can_be_planted():
    lab = Lab(alphabet=2, length=3, modes=3, near=5, prompts=1)
    assert {lab.value_of(lab.instance("train", 0), string) for string in lab.strings()} == {1.0, 0.5}


def test_prompts_repeat_and_are_the_same_in_all_splits():
    lab = Lab(prompts=4)
    ids = [lab.instance("train", index).fingerprint for index in range(8)]
    assert ids[:4] == ids[4:]
    assert len(set(ids)) == 4
    assert lab.instance("test", 2).data == lab.instance("train", 2).data
    assert Lab(prompts=4, seed=1).instance("train", 0).data != lab.instance("train", 0).data
    assert lab.render(lab.instance("train", 6), "compact").text == "lab 2"


@pytest.mark.parametrize(
    ("text", "parsed", "reason"),
    [
        ("", False, "not a string of letters"),
        ("Answer: a b c d a", False, "not a string of letters"),
        ("abcd1", False, "not a string of letters"),
        ("a b c d", True, "wrong length"),
        ("a b c d a b", True, "wrong length"),
        ("a b c d e", True, "foreign letter"),
        ("ä b c d a", False, "not a string of letters"),
        ("a" * 1_000_000, False, "too long"),
    ],
)
def test_infeasible_strings(text, parsed, reason):
    lab = Lab()
    verdict = lab.verify(lab.instance("train", 0), text)
    assert (verdict.feasible, verdict.parsed, verdict.reason) == (False, parsed, reason)


def test_white_space_is_ignored():
    lab = Lab()
    instance = lab.instance("train", 0)
    best = lab.solve(instance).answer
    for text in (best, " ".join(best), "\n" + best + " "):
        verdict = lab.verify(instance, text)
        assert (verdict.feasible, verdict.value, verdict.key, verdict.formatted) == (True, 1.0, best, True)


def test_lengths_in_range_are_feasible():
    lab = Lab(length=4, min_length=2)
    instance = lab.instance("train", 0)
    reasons = [lab.verify(instance, "a " * count).reason for count in range(1, 6)]
    assert reasons == ["wrong length", "", "", "", "wrong length"]
    assert lab.render(instance, "natural").text.startswith("Write 2 to 4 letters out of a b c d ")
    assert Lab().render(instance, "natural").text.startswith("Write 5 letters out of ")
    assert sum(1 for _ in lab.strings()) == 16 + 64 + 256


def test_demonstrations_have_all_lengths():
    lab, rng = Lab(alphabet=2, length=2, min_length=1, modes=1, near=1), random.Random(0)
    counts = Counter(lab.demonstrate(lab.instance("train", 0), rng) for _ in range(6000))
    assert set(counts) == {"a", "b", "a a", "a b", "b a", "b b"}
    assert min(counts.values()) > 850


def test_the_language_decides_the_landscape_too():
    planted = [Lab(min_length=n).planted(Lab(min_length=n).instance("train", 0)) for n in (None, 5, 4)]
    assert planted[0] == planted[1] != planted[2]


def test_demonstrations_are_uniform():
    lab, rng = Lab(alphabet=2, length=2, modes=1, near=1), random.Random(0)
    counts = Counter(lab.demonstrate(lab.instance("train", 0), rng) for _ in range(4000))
    assert set(counts) == {"a a", "a b", "b a", "b b"}
    assert min(counts.values()) > 900


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"alphabet": 1}, "between 2 and 26"),
        ({"alphabet": 27}, "between 2 and 26"),
        ({"length": 0}, "at least"),
        ({"modes": 0}, "at least"),
        ({"near": -1}, "at least"),
        ({"prompts": 0}, "at least"),
        ({"modes": 1025}, "cannot be planted"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Lab(**sizes)
