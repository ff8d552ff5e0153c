"""Texts that try to score without a valid answer, and texts that try to break a verifier.

All deterministic. `attacks` must never score; `mutations` may be valid by chance, so they are judged against
the enumeration of all valid answers; `garbage` must be survived.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from distmatch.tasks.base import Instance
from distmatch.tasks.np.drawing import pick
from distmatch.tasks.parsing import MARKER

Json = int | list["Json"]
_PIECES = (
    *(
        "Answer:",
        "Answer: ",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        "(",
        ")",
        ",",
        ", ",
        "->",
        "\n",
        " ",
        "\t",
        "**",
    ),
    *(
        "\\boxed{",
        "0",
        "1",
        "2",
        "7",
        "-1",
        "1.0",
        "1e9",
        "007",
        "+3",
        "9" * 30,
        "None",
        "NaN",
        "inf",
        "True",
    ),
    *("Impossible", '"', "'", "\\", "\x00", "\u202e", "٣", "Ⅷ", "²", "é", "🙂", "<think>", "</think>", "or"),
    *("__import__('os')", "lambda: 0", "*", "/", "%s", "{0}", "$x$", "and so", "\ud7ff", "\ufeff"),
)


def candidates(instance: Instance) -> int:
    """Roughly how many ids an answer may name."""
    data = instance.data
    sizes = [len(part) for part in data.values() if isinstance(part, dict | list)]
    nested = {"items", "S", "U", "numbers", "meetings", "edges"} & set(data)
    return max(sizes, default=1) if nested else len(data)


def body_of(gold: str) -> Json | None:
    """The list in `Answer: [...]`; None if the task answers otherwise."""
    try:
        body = json.loads(gold.removeprefix(MARKER))
    except ValueError:
        return None
    return body if isinstance(body, list) and gold.startswith(MARKER) else None


def attacks(gold: str, prompts: list[str], ids: int) -> dict[str, str]:
    """Texts that must not score, by name.

    Args:
        gold: A right answer as the task formats it.
        prompts: The question in each style.
        ids: Number of candidates that an answer might name.
    """
    texts = {
        "empty": "",
        "marker alone": MARKER,
        "think tags": "<think></think>",
        "code": f"{MARKER} __import__('os').system('true')",
        "endless list": f"{MARKER} [" + "0, " * 330_000,
        "endless number": f"{MARKER} [{'9' * 5000}]",
        "million characters": "a" * 1_000_000,
        **{f"prompt {number}": text for number, text in enumerate(prompts)},
    }
    body = body_of(gold)
    return texts if body is None else texts | _list_attacks(gold, body, ids)


def _list_attacks(gold: str, body: Json, ids: int) -> dict[str, str]:
    listed = gold.removeprefix(MARKER).strip()
    far = chr(0x430) + "nswer:"  # a Cyrillic letter
    texts = {
        "lower case": f"answer: {listed}",
        "foreign letter": f"{far} {listed}",
        "every candidate": f"{MARKER} " + " or ".join(f"[{number}]" for number in range(ids)),
        "two answers": f"{gold} or {listed}",
        "answers line by line": f"{gold}\n{listed}\n[0]",
        "expression": f"{gold} * 1",
        "sum": f"{gold} + [0]",
        "index": f"{gold}[0]",
        "withdrawn": f"{gold}\nBut that may be wrong.\n{MARKER} I do not know",
        "answer first": f"{gold}\nLet me think. {MARKER} {MARKER}",
        "cut": gold.removesuffix("]"),
        "too deep": f"{MARKER} [[[{listed}]]]",
        "negated": f"{MARKER} {_spelt(body, lambda number: str(-1 - number))}",
    }
    if not _numbers(body):
        return texts
    first = body[0]  # type: ignore[index]  # not empty
    return texts | {
        "a duplicate": f"{MARKER} {json.dumps([*body, first])}",  # type: ignore[misc]
        "floats": f"{MARKER} {_spelt(body, lambda number: f'{number}.0')}",
        "exponents": f"{MARKER} {_spelt(body, lambda number: f'{number}e0')}",
        "strings": f"{MARKER} {_spelt(body, lambda number: repr(str(number)))}",
        "plus signs": f"{MARKER} {_spelt(body, lambda number: f'+{number}')}",
        "leading zeros": f"{MARKER} {_spelt(body, lambda number: f'0{number}')}",
        "Arabic digits": f"{MARKER} {_spelt(body, _arabic)}",
        "booleans": f"{MARKER} {_spelt(body, lambda number: str(bool(number)))}",
    }


def mutations(gold: str, ids: int, rng: random.Random, count: int) -> Iterator[str]:
    """Answers one or a few edits away from a right one; the first two list nothing and everything."""
    body = body_of(gold)
    if body is None:
        return
    yield f"{MARKER} []"
    yield f"{MARKER} {list(range(ids))}"
    for _ in range(count):
        edited = json.loads(json.dumps(body))
        for _ in range(1 + rng.randrange(3)):
            _edit(edited, ids, rng)
        yield f"{MARKER} {json.dumps(edited)}"


def _edit(body: list[Json], ids: int, rng: random.Random) -> None:
    """Change one place of a list or of one of its rows."""
    rows = [row for row in body if isinstance(row, list)]
    target = pick(rng, rows) if rows and rng.random() < 0.8 else body
    fresh: Json = rng.randrange(-1, ids + 2)
    kind = rng.randrange(5)
    if not target or kind == 0:
        target.insert(rng.randrange(len(target) + 1), fresh if not rows or target is not body else [fresh])
        return
    place, other = rng.randrange(len(target)), rng.randrange(len(target))
    if kind == 1:
        del target[place]
    elif kind == 2:
        target[place] = target[other]
    elif kind == 3:
        target[place], target[other] = target[other], target[place]
    elif not isinstance(target[place], list):
        target[place] = fresh


def garbage(rng: random.Random, count: int) -> Iterator[str]:
    """Arbitrary texts: pieces of answers in any order, any characters, and one of a million."""
    for number in range(count):
        if number % 2:
            text = "".join(pick(rng, _PIECES) for _ in range(rng.randrange(40)))
        else:
            text = "".join(_character(rng) for _ in range(rng.randrange(60)))
        yield text
        yield f"{MARKER} {text}"
        yield f"{MARKER} [{text}]"
    for unit in ("[", "Answer:", "Answer: [", "0,", "\\boxed{", "(", "->"):
        yield unit * (1_000_000 // len(unit))


def _character(rng: random.Random) -> str:
    code = rng.randrange(0x11000) if rng.random() < 0.5 else rng.randrange(128)
    return "?" if 0xD800 <= code < 0xE000 else chr(code)


def _spelt(body: Json, spell: Callable[[int], str]) -> str:
    if isinstance(body, list):
        return f"[{', '.join(_spelt(part, spell) for part in body)}]"
    return spell(body)


def _numbers(body: Json) -> int:
    return sum(map(_numbers, body)) if isinstance(body, list) else 1


def _arabic(number: int) -> str:
    return str(number).translate({ord("0") + digit: 0x660 + digit for digit in range(10)})
