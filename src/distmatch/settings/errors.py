"""The one exception for what a user can put right in a config or on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A setting that cannot work; the message names the key, its value and what would be right.

    The entry points print it without a traceback and exit with status 2.
    """


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is most probably a misspelling of, or None."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """A sentence that suggests the nearest known name in the given form, or an empty text."""
    match = nearest(name, known)
    return f" Did you mean {form.format(match)}?" if match else ""


def listing(names: Iterable[str]) -> str:
    """Names in alphabetical order, separated by commas; "(nothing)" for none."""
    return ", ".join(sorted(names)) or "(nothing)"
