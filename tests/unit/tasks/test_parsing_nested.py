"""The rules of `distmatch.tasks.parsing_nested`, each tested on both sides."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmatch.tasks.parsing_nested import parse_rows

READ = [
    ("Answer: [[0, 1], [2, 3]]", ((0, 1), (2, 3))),
    ("Answer:[[0,1],[2,3]]", ((0, 1), (2, 3))),
    ("Answer:\n [ [ 0 , 1 ] , [2] ]", ((0, 1), (2,))),
    ("Answer: [[0, 1], []]", ((0, 1), ())),
    ("Answer: [[3], [1]]\nNo.\nAnswer: [[0], [1]]", ((0,), (1,))),
    ("Answer: [[0], [1]]. The cut has weight 5.", ((0,), (1,))),
    ("Answer: [[0], [1]]\n\nIt cuts the edge (0, 1).", ((0,), (1,))),
    ("**Answer:** [[0], [1]]", ((0,), (1,))),
    ("Answer: **[[0], [1]]**", ((0,), (1,))),
    ("Answer: \\boxed{[[0], [1]]}", ((0,), (1,))),
    ("Answer: [[-1], [999999999999999999]]", ((-1,), (999999999999999999,))),
    ("Answer: []", ()),
    ("Answer: [[]]", ((),)),
]
READ_WITH_TUPLES = [
    ("Answer: [(0, 1, 540)]", ((0, 1, 540),)),
    ("Answer: [(0, 1, 540), (1, 0, 600)]", ((0, 1, 540), (1, 0, 600))),
    ("Answer: [(0, 1, 540), [1, 0, 600]] is best", ((0, 1, 540), (1, 0, 600))),
    ("Answer: \\boxed{[(0, 1, 540)]}", ((0, 1, 540),)),
]
NOT_READ = [
    "",
    "[[0], [1]]",
    "answer: [[0], [1]]",
    "Answer:",
    "Answer: YOUR ANSWER",
    "Answer: [0, 1]",
    "Answer: [0], [1]",
    "Answer: (0, 1, 540)",
    "Answer: {[0], [1]}",
    "Answer: ([0], [1])",
    "Answer: [{0}, {1}]",
    "Answer: [[0], [1]",
    "Answer: [[0], [1",
    "Answer: [[0], [1],]",
    "Answer: [, [0], [1]]",
    "Answer: [[0],, [1]]",
    "Answer: [[0] [1]]",
    "Answer: [[0], 1]",
    "Answer: [[0,], [1]]",
    "Answer: [[[0], [1]]]",
    "Answer: [[0, [2]], [1]]",
    "Answer: [[0.0], [1]]",
    "Answer: [['0'], ['1']]",
    "Answer: [[+0], [1]]",
    "Answer: [[00], [1]]",
    "Answer: [[٠], [1]]",
    "Answer: [[0)], [1]]",
    "Answer: [(0], [1)]",
    "Answer: [[0], [1]] * 2",
    "Answer: [[0], [1]] + [[2]]",
    "Answer: [[0], [1]][0]",
    "Answer: [[0], [1]] or [[1], [0]]",
    "Answer: [[0], [1]] or [(1), (0)]",
    "Answer: [[0], [1]]\n[[1], [0]]",
    "Answer: [[0], [1]]\n[0]",
    "Answer: \\boxed{[[0], [1]]} or \\boxed{[[1], [0]]}",
    "Answer: \\boxed{[[0], [1]]",
    "Answer: the sides are [[0], [1]]",
    "Answer: [range(2), range(2)]",
    "Answer: __import__('os').system('true')",
]


@pytest.mark.parametrize("brackets", ["[", "[("])
@pytest.mark.parametrize(("text", "rows"), READ)
def test_read_by_every_task(text, rows, brackets):
    answer = parse_rows(text, brackets)
    assert answer.rows == rows
    assert answer.formatted == bool(rows)
    assert all(type(number) is int for row in answer.rows for number in row)


@pytest.mark.parametrize(("text", "rows"), READ_WITH_TUPLES)
def test_tuples_are_for_schedules_only(text, rows):
    assert parse_rows(text, "[").rows is None
    assert parse_rows(text, "[(").rows == rows


@pytest.mark.parametrize("brackets", ["[", "[("])
@pytest.mark.parametrize("text", NOT_READ)
def test_read_by_no_task(text, brackets):
    answer = parse_rows(text, brackets)
    assert answer.rows is None
    assert answer.reason


@pytest.mark.parametrize(
    ("text", "formatted"),
    [
        ("Answer: [a, b]", True),
        ("Answer: [0, 1]", True),
        ("Answer: [[0], [1]] or [[1], [0]]", True),
        ("Answer: [ ]", False),
        ("Answer: [[0], [1]", False),
        ("Answer: YOUR ANSWER", False),
        ("[[0], [1]]", False),
    ],
)
def test_formatted_is_about_shape(text, formatted):
    assert parse_rows(text).formatted is formatted


MILLION = 1_000_000
HOSTILE = {
    "digits": "Answer: [[" + "9" * MILLION,
    "long list": "Answer: [" + "[1], " * (MILLION // 5) + "[1]]",
    "long row": "Answer: [[" + "1, " * 6_000 + "1]]",
    "many rows": "Answer: [" + "[1], " * 3_900 + "[1]]",
    "empty rows": "Answer: [" + "[]," * 6_000 + "[]]",
    "open brackets": "Answer: " + "[" * MILLION,
    "brackets": "Answer: " + "[" * 10_000 + "]" * 10_000,
    "open tuples": "Answer: [" + "(" * 19_000 + "]",
    "open boxes": "Answer: " + "\\boxed{" * (MILLION // 7),
    "many lists": "Answer: [[1]] " + "[1" * (MILLION // 2),
    "many answers": "Answer: [[1]] " + "[ (" * (MILLION // 3),
    "blanks": "Answer: " + " " * MILLION,
    "blanks within": "Answer: [[1]" + " " * 19_000 + ", [2]]",
    "markers": "Answer: [[1]] " * (MILLION // 14),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_million_characters_take_no_time(name):
    seconds = []
    for _ in range(3):  # the best of three, for busy machines
        start = time.process_time()
        parse_rows(HOSTILE[name], "[(")
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05


@given(st.text())
def test_any_text_is_judged(text):
    for completion in (text, "Answer:" + text, f"Answer: [[{text}]]", f"Answer: \\boxed{{[{text}]}}"):
        answer = parse_rows(completion, "[(")
        assert (answer.rows is None) == bool(answer.reason)


@given(st.lists(st.lists(st.integers(-(10**17), 10**17), max_size=5), max_size=5))
def test_round_trip(rows):
    assert parse_rows(f"Answer: {rows}").rows == tuple(map(tuple, rows))
    if all(len(row) > 1 for row in rows):  # (1,) has a trailing comma
        assert parse_rows(f"Answer: {[*map(tuple, rows)]}", "[(").rows == tuple(map(tuple, rows))
