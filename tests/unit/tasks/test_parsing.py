"""The rules of `distmatch.tasks.parsing`, each tested on both sides."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmatch.tasks.parsing import integers, parse_integers

READ_BY_ALL = [
    ("Answer: [0, 2, 1, 0]", (0, 2, 1, 0)),
    ("Answer:[0,2]", (0, 2)),
    ("First I think.\nAnswer:\n\n [ 3 ,0 ]", (3, 0)),
    ("Answer: [1, 2]\nNo.\nAnswer: [3, 4]", (3, 4)),
    ("Answer: [0, 1, 2] is the clique", (0, 1, 2)),
    ("Answer: [0, 1, 2]. It has size 3.", (0, 1, 2)),
    ("Answer: [0, 1, 2]\n\nThis uses the edges (0, 1) and (1, 2).", (0, 1, 2)),
    ("**Answer:** [0, 1]", (0, 1)),
    ("Answer: **[0, 1]**", (0, 1)),
    ("Answer: \\boxed{[0, 1]}", (0, 1)),
    ("Answer: **\\boxed{[0, 1]}**", (0, 1)),
    ("Answer: [-1, 5]", (-1, 5)),
    ("Answer: [999999999999999999]", (999999999999999999,)),
]
READ_BY_SETS = [
    ("Answer: {0, 2}", (0, 2)),
    ("Answer: (0, 2)", (0, 2)),
    ("Answer: 0->2->1", (0, 2, 1)),
    ("Answer: 0 -> 2 -> 1.", (0, 2, 1)),
    ("Answer: **0 -> 2**\nDone.", (0, 2)),
    ("Answer: \\boxed{{0, 2}}", (0, 2)),
    ("Answer: \\boxed{0->2}", (0, 2)),
]
READ_BY_SEQUENCES = [
    ("Answer: 0, 2, 1, 0", (0, 2, 1, 0)),
    ("Answer: 0,2\nThat is all.", (0, 2)),
    ("Answer: \\boxed{0, 2}", (0, 2)),
]
READ_BY_NONE = [
    "",
    "[0, 1]",
    "answer: [0, 1]",
    "Answer:",
    "Answer: ",
    "Answer: YOUR ANSWER",
    "Answer: [0, 1",
    "Answer: 3",
    "Answer: [0, 1,]",
    "Answer: [,]",
    "Answer: [0, , 1]",
    "Answer: [0 1]",
    "Answer: [0; 1]",
    "Answer: [1.0, 2]",
    "Answer: [1e3]",
    "Answer: [+1]",
    "Answer: [--1]",
    "Answer: [- 1]",
    "Answer: [007]",
    "Answer: [-0]",
    "Answer: [0x1]",
    "Answer: [1_0]",
    "Answer: ['3']",
    'Answer: ["3"]',
    "Answer: [True]",
    "Answer: [None]",
    "Answer: [[0, 1]]",
    "Answer: [[0], [1]]",
    "Answer: [٣]",
    "Answer: [３]",
    "Answer: [²]",
    "Answer: [0 → 1]",
    "Answer: 0 → 1",
    "Answer: [" + "9" * 19 + "]",
    "Answer: [" + "9" * 5000 + "]",
    "Answer: [0]*5",
    "Answer: [0] * 5",
    "Answer: [0] + [1]",
    "Answer: [0][1]",
    "Answer: [0] or [1]",
    "Answer: [0]\n[1]\n[2]",
    "Answer: [0]..[5]",
    "Answer: [0] -> 1",
    "Answer: \\boxed{[0]} or \\boxed{[1]}",
    "Answer: \\boxed{[0]",
    "Answer: \\boxed{}",
    "Answer: the set is [0, 1]",
    "Answer: range(5)",
    "Answer: __import__('os').system('true')",
    "Answer: 0->1,2",
    "Answer: 0->",
    "Answer: ->",
]


@pytest.mark.parametrize("spelling", ["list", "set", "sequence"])
@pytest.mark.parametrize(("text", "numbers"), READ_BY_ALL)
def test_read_by_every_task(text, numbers, spelling):
    answer = parse_integers(text, spelling)
    assert answer.numbers == numbers
    assert answer.formatted
    assert all(type(number) is int for number in answer.numbers)


@pytest.mark.parametrize(("text", "numbers"), READ_BY_SETS)
def test_brackets_and_arrows(text, numbers):
    assert parse_integers(text, "list").numbers is None
    assert parse_integers(text, "set").numbers == numbers
    assert parse_integers(text, "sequence").numbers == numbers


@pytest.mark.parametrize(("text", "numbers"), READ_BY_SEQUENCES)
def test_bare_lists_are_for_sequences_only(text, numbers):
    assert parse_integers(text, "set").numbers is None
    assert parse_integers(text, "sequence").numbers == numbers


@pytest.mark.parametrize("spelling", ["list", "set", "sequence"])
@pytest.mark.parametrize("text", READ_BY_NONE)
def test_read_by_no_task(text, spelling):
    answer = parse_integers(text, spelling)
    assert answer.numbers is None
    assert answer.reason


def test_empty_list_is_parsed_but_not_formatted():
    assert parse_integers("Answer: []", "set").numbers == ()
    assert not parse_integers("Answer: [ ]", "set").formatted


@pytest.mark.parametrize(
    ("text", "formatted"),
    [
        ("Answer: [a, b]", True),
        ("Answer: {0, 1}", True),
        ("Answer: [1.5]", True),
        ("Answer: [0] or [1]", True),
        ("Answer: YOUR ANSWER", False),
        ("Answer: [0, 1", False),
        ("[0, 1]", False),
        ("<think></think>a", False),
    ],
)
def test_formatted_is_about_shape(text, formatted):
    assert parse_integers(text, "list").formatted is formatted


MILLION = 1_000_000
HOSTILE = {
    "digits": "Answer: " + "9" * MILLION,
    "list of digits": "Answer: [" + "9" * MILLION + "]",
    "long list": "Answer: [" + "1, " * (MILLION // 3) + "1]",
    "open brackets": "Answer: " + "[" * MILLION,
    "open boxes": "Answer: " + "\\boxed{" * (MILLION // 7),
    "open braces in a box": "Answer: \\boxed{" + "{" * MILLION,
    "many lists": "Answer: [1] " + "[1" * (MILLION // 2),
    "blanks": "Answer: " + " " * MILLION,
    "commas": "Answer: " + "," * MILLION,
    "arrows": "Answer: " + "->" * (MILLION // 2),
    "markers": "Answer: [1] " * (MILLION // 12),
    "no marker": "Answer " * (MILLION // 7),
    "stars": "Answer: " + "*" * MILLION,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_million_characters_take_no_time(name):
    text = HOSTILE[name]
    seconds = []
    for _ in range(3):  # the best of three, for busy machines
        start = time.process_time()
        parse_integers(text, "sequence")
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05


@given(st.text())
def test_any_text_is_judged(text):
    for spelling in ("list", "set", "sequence"):
        for completion in (text, "Answer:" + text, "Answer: [" + text + "]", "Answer: \\boxed{" + text + "}"):
            answer = parse_integers(completion, spelling)
            assert (answer.numbers is None) == bool(answer.reason)


@given(st.lists(st.integers(-(10**17), 10**17)))
def test_round_trip(numbers):
    assert parse_integers(f"Answer: {numbers}", "list").numbers == tuple(numbers)
    assert integers(",".join(map(str, numbers))) == tuple(numbers)
