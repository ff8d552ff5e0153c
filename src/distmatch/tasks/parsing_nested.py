r"""Reading a list of rows of integers, `[[0, 2], [1, 3]]` or `[(0, 1, 540)]`: total, linear, no `eval`.

The rules are those of `distmatch.tasks.parsing` (last `Answer:`, one `**` or one `\boxed{...}` around, plain
decimal integers, no trailing comma, one answer), with these differences:

* The outer brackets are square. The rows have square brackets; where the task allows it, round ones too.
* `[]` is a list without rows. Rows may be empty. Nothing is nested deeper.
"""

from __future__ import annotations

from dataclasses import dataclass

from distmatch.tasks.parsing import (
    AMBIGUOUS,
    BLANK,
    BOX,
    NO_MARKER,
    after_marker,
    another_list,
    box_end,
    goes_on,
    integers,
)

Rows = tuple[tuple[int, ...], ...]
_CLOSING = {"[": "]", "(": ")"}


@dataclass(frozen=True)
class RowsAnswer:
    """What was found after the last `Answer:`.

    Attributes:
        rows: The rows in order; None if there is no answer in an accepted spelling.
        formatted: Something non-empty in the shape of an answer follows the marker, right or wrong.
        reason: Why `rows` is None, in a few words; empty otherwise.
    """

    rows: Rows | None
    formatted: bool
    reason: str = ""


def parse_rows(completion: str, brackets: str = "[") -> RowsAnswer:
    """Find the answer of a completion.

    Args:
        completion: Any text.
        brackets: Opening brackets that a row may have: `[` or `[(`.

    Returns:
        The rows, or the reason why there are none. Never raises.
    """
    text = after_marker(completion)
    if text is None:
        return RowsAnswer(None, False, NO_MARKER)
    if not text.startswith(BOX):
        return _listed(text, brackets)
    end = box_end(text)
    if end is None:
        return RowsAnswer(None, False, "unclosed box")
    after = text[end + 1 :]
    inside = _listed(text[len(BOX) : end].strip(BLANK), brackets)
    if inside.rows is not None and (goes_on(after) or BOX in after):
        return RowsAnswer(None, inside.formatted, AMBIGUOUS)
    return inside


def _listed(text: str, brackets: str) -> RowsAnswer:
    if not text.startswith("["):
        return RowsAnswer(None, False, "no answer in an accepted form")
    end = _list_end(text)
    if end is None:
        return RowsAnswer(None, False, "unclosed list")
    body, after = text[1:end], text[end + 1 :]
    formatted = bool(body.strip(BLANK))
    rows = _rows(body, brackets)
    if rows is None:
        return RowsAnswer(None, formatted, "not a list of lists of integers")
    if goes_on(after) or _another_answer(after):
        return RowsAnswer(None, formatted, AMBIGUOUS)
    return RowsAnswer(rows, formatted)


def _list_end(text: str) -> int | None:
    """Position of the bracket that closes the one at the start of `text`."""
    depth = 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
            if depth == 0:
                return position
    return None


def _rows(body: str, brackets: str) -> Rows | None:
    """The rows of `[..], [..]`, none for a blank body, None where anything else is found."""
    rest = body.strip(BLANK)
    rows: list[tuple[int, ...]] = []
    position = 0
    while position < len(rest):
        opening = rest[position]
        end = rest.find(_CLOSING[opening], position) if opening in brackets else -1
        row = integers(rest[position + 1 : end]) if end > 0 else None
        if row is None:
            return None
        rows.append(row)
        position = _skip(rest, end + 1)
        if position == len(rest):
            break
        if rest[position] != ",":
            return None
        position = _skip(rest, position + 1)
        if position == len(rest):  # a trailing comma
            return None
    return tuple(rows)


def _skip(text: str, position: int) -> int:
    """The first position from here on that is not blank."""
    while position < len(text) and text[position] in BLANK:
        position += 1
    return position


def _another_answer(after: str) -> bool:
    """Whether a second list follows: of integers, of lists or of tuples."""
    return another_list(after, "[") or any(
        piece.lstrip(BLANK).startswith("(") for piece in after.split("[")[1:]
    )
