r"""Reading a list of integers out of model text: total, linear in time, no `eval`, no regular expressions.

The rules, for every task that answers with a list of integers:

* The answer follows the **last** `Answer:` (case matters). NP-Engine reads cliques after the first one; here
  one rule holds everywhere, so that a model may correct itself.
* Accepted spellings are `[1, 2]`, `{1, 2}`, `(1, 2)` and `1->2->3`, for sequence tasks also a bare `1, 2, 3`
  on one line; tasks that need a literal list take `[1, 2]` only. One pair of `**` and one `\boxed{...}` may
  surround the answer.
* Numbers are plain decimal integers: ASCII digits, an optional minus, no sign `+`, no fraction, exponent,
  quotes or leading zeros, at most 18 digits. No trailing comma.
* Prose may follow a bracketed answer. An operator on the same line (`[0]*5`) or a second list in the same
  brackets (`[0] or [1]`) makes it ambiguous, and an ambiguous answer is no answer.
* The answer lies within the first 20,000 characters after the marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Spelling = Literal["list", "set", "sequence"]

MARKER = "Answer:"
MAX_ANSWER = 20_000  # room for some 3,000 ids; bounds the work on hostile text
MAX_DIGITS = 18  # `int` raises beyond 4,300 digits and no id comes near this
BLANK = " \t\r\n"
_CLOSING = {"[": "]", "{": "}", "(": ")"}
BOX = "\\boxed{"
NO_MARKER = "no 'Answer:'"
AMBIGUOUS = "more than one answer"
_OPERATORS = ("*", "+", "/", "%", "|", "&", "^", "=", "<", ">", "@", "[", "{", "->", "..")
_PUNCTUATION = ".,;!"


@dataclass(frozen=True)
class Answer:
    """What was found after the last `Answer:`.

    Attributes:
        numbers: The integers in order; None if there is no answer in an accepted spelling.
        formatted: Something non-empty in the shape of an answer follows the marker, right or wrong.
        reason: Why `numbers` is None, in a few words; empty otherwise.
    """

    numbers: tuple[int, ...] | None
    formatted: bool
    reason: str = ""


def parse_integers(completion: str, spelling: Spelling) -> Answer:
    """Find the answer of a completion.

    Args:
        completion: Any text.
        spelling: `list` takes `[..]` only, `set` also `{..}`, `(..)` and arrows, `sequence` also a bare comma
            list.

    Returns:
        The integers, or the reason why there are none. Never raises.
    """
    text = after_marker(completion)
    if text is None:
        return Answer(None, False, NO_MARKER)
    if text.startswith(BOX):
        return _boxed(text, spelling)
    return _unwrapped(text, spelling)


def after_marker(completion: str) -> str | None:
    """What follows the last `Answer:`, without leading blanks and `**`; its length is bounded."""
    start = completion.rfind(MARKER)
    if start < 0:
        return None
    start += len(MARKER)
    return completion[start : start + MAX_ANSWER].lstrip(BLANK).removeprefix("**").lstrip(BLANK)


def _boxed(text: str, spelling: Spelling) -> Answer:
    r"""Read `\boxed{answer}`; the box must close and hold nothing else."""
    end = box_end(text)
    if end is None:
        return Answer(None, False, "unclosed box")
    after = text[end + 1 :]
    inside = _unwrapped(text[len(BOX) : end].strip(BLANK), spelling)
    if inside.numbers is not None and (goes_on(after) or BOX in after):
        return Answer(None, inside.formatted, AMBIGUOUS)
    return inside


def box_end(text: str) -> int | None:
    """Position of the brace that closes the box at the start of `text`."""
    depth = 0
    for position in range(len(BOX) - 1, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return None


def _unwrapped(text: str, spelling: Spelling) -> Answer:
    if text[:1] in _CLOSING:
        return _bracketed(text, spelling)
    return _one_line(text.partition("\n")[0], spelling)


def _bracketed(text: str, spelling: Spelling) -> Answer:
    opening = text[0]
    end = text.find(_CLOSING[opening])
    if end < 0:
        return Answer(None, False, "unclosed list")
    body, after = text[1:end], text[end + 1 :]
    formatted = bool(body.strip(BLANK))
    numbers = integers(body)
    if numbers is None:
        return Answer(None, formatted, "not a list of integers")
    if spelling == "list" and opening != "[":
        return Answer(None, formatted, "not in [ ]")
    if goes_on(after) or another_list(after, opening):
        return Answer(None, formatted, AMBIGUOUS)
    return Answer(numbers, formatted)


def _one_line(line: str, spelling: Spelling) -> Answer:
    """Read `1->2->3` or `1, 2, 3`, which must fill the line but for a closing `**` and full stop."""
    line = line.rstrip(BLANK).removesuffix("**").removesuffix(".").removesuffix("**")
    if spelling != "list" and "->" in line:
        numbers = integers(line.replace(",", "?").replace("->", ","))
    elif spelling == "sequence" and "," in line:
        numbers = integers(line)
    else:
        return Answer(None, False, "no answer in an accepted form")
    return Answer(numbers, numbers is not None, "" if numbers is not None else "not a list of integers")


def integers(body: str) -> tuple[int, ...] | None:
    """The integers of a comma list, `()` for a blank one, None where anything else is found."""
    if not body.strip(BLANK):
        return ()
    numbers: list[int] = []
    for part in body.split(","):
        digits = part.strip(BLANK)
        unsigned = digits.removeprefix("-")
        if not (len(unsigned) <= MAX_DIGITS and unsigned.isascii() and unsigned.isdigit()):
            return None
        if unsigned[0] == "0" and digits != "0":  # one spelling a number: no 007 and no -0
            return None
        numbers.append(int(digits))
    return tuple(numbers)


def goes_on(after: str) -> bool:
    """Whether what follows the closing bracket continues an expression instead of starting prose."""
    after = after.removeprefix("**")
    if after and after[0] not in BLANK + _PUNCTUATION:
        return True
    same_line = after.partition("\n")[0]
    return same_line.lstrip(BLANK + ",;!").startswith(_OPERATORS)


def another_list(after: str, opening: str) -> bool:
    """Whether a second list of integers in the same kind of brackets follows."""
    for piece in after.split(opening)[1:]:
        body, closing, _ = piece.partition(_CLOSING[opening])
        if closing and integers(body) is not None:
            return True
    return False
