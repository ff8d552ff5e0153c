"""What a parameter's annotation lets a config say, read from the annotation's source text."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_PLAIN = {"bool": "bool", "int": "int", "float": "float", "str": "str", "Path": "str", "None": "null"}
_LISTS = ("list", "List", "tuple", "Tuple", "Sequence", "MutableSequence")
_MAPPINGS = ("dict", "Dict", "Mapping", "MutableMapping")
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "mapping": "a mapping",
    "object": "a mapping with a _target_",
    "null": "null",
}


@dataclass(frozen=True)
class Kind:
    """The plain values that a parameter takes.

    Attributes:
        words: Names of `_WORDS`.
        choices: The values of a `Literal`.
        element: What a list or a mapping holds, or None where that is not checked.
    """

    words: frozenset[str] = frozenset()
    choices: tuple[object, ...] = ()
    element: Kind | None = None

    def __or__(self, other: Kind) -> Kind:
        """Either kind; elements stay checked only where a single side has containers."""
        containers = {"list", "mapping"}
        both = self.words & containers and other.words & containers
        element = None if both else self.element or other.element
        return Kind(self.words | other.words, (*self.choices, *other.choices), element)

    def refusal(self, key: str, value: object) -> str | None:
        """Why `value` cannot be given for `key`, or None. A node that becomes an object is not judged."""
        if isinstance(value, dict) and "_target_" in value:
            return None
        if not self._accepts(value):
            return f"{key}={shown(value)} must be {self.demand()}{self._advice(key, value)}"
        if self.element is None:
            return None
        refusals = (self.element.refusal(path, item) for path, item in _items(key, value))
        return next(filter(None, refusals), None)

    def demand(self) -> str:
        """The condition in words."""
        hidden = {"int"} if "float" in self.words else set()
        parts = [text for word, text in _WORDS.items() if word in self.words - hidden and word != "null"]
        if self.choices:
            parts.append(f"one of: {', '.join(shown(choice) for choice in self.choices)}")
        return " or ".join([*parts, *(["null"] if "null" in self.words else [])])

    def _accepts(self, value: object) -> bool:
        if any(type(value) is type(choice) and value == choice for choice in self.choices):
            return True
        if isinstance(value, int) and not isinstance(value, bool):
            return bool(self.words & {"int", "float"}) and abs(value) < 2**63
        if isinstance(value, float):
            return "float" in self.words and math.isfinite(value)
        names = {bool: "bool", str: "str", list: "list", dict: "mapping", type(None): "null"}
        return names.get(type(value)) in self.words

    def _advice(self, key: str, value: object) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return " and finite"
        if "str" in self.words and isinstance(value, bool | int | float):
            return f"; as a text it is written {key}='\"{shown(value)}\"'"
        return ""


def shown(value: object) -> str:
    """`value` as it is written on the command line; a text that looks like something else in quotes."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    try:
        json.loads(value)
    except ValueError:
        return value or "''"
    return repr(value)


def _items(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, list):
        yield from ((f"{key}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{key}.{name}", item) for name, item in value.items())


def read_annotation(node: ast.expr | None, alias: Callable[[str], Kind | None]) -> Kind | None:
    """The kind that an annotation describes, or None where it says more than is checked.

    Args:
        node: The annotation.
        alias: The kind of a name that is not built in.
    """
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return read_annotation(ast.parse(node.value, mode="eval").body, alias)
        return Kind(frozenset({"null"})) if node.value is None else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right], alias)
    if isinstance(node, ast.Subscript):
        return _read_subscript(_name(node.value), node.slice, alias)
    name = _name(node)
    return _container(name, None) or (_plain(name) or alias(name) if name else None)


def _read_subscript(name: str, inner: ast.expr, alias: Callable[[str], Kind | None]) -> Kind | None:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name == "Literal":
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        null = Kind(frozenset({"null"})) if None in values else Kind()
        choices = Kind(choices=tuple(v for v in values if v is not None))
        return choices | null if len(values) == len(parts) else None
    if name == "Union":
        return _union(parts, alias)
    if name == "Optional":
        return _union([*parts, ast.Constant(None)], alias)
    if name in ("Annotated", "Final"):
        return read_annotation(parts[0], alias)
    held = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is ...)]
    same = len({ast.dump(part) for part in held}) == 1 or name in _MAPPINGS
    return _container(name, read_annotation(held[-1], alias) if held and same else None)


def _union(parts: list[ast.expr], alias: Callable[[str], Kind | None]) -> Kind | None:
    whole = Kind()
    for part in parts:
        kind = read_annotation(part, alias)
        if kind is None:
            return None
        whole |= kind
    return whole


def _container(name: str, element: Kind | None) -> Kind | None:
    if name in _LISTS:
        return Kind(frozenset({"list"}), element=element)
    return Kind(frozenset({"mapping"}), element=element) if name in _MAPPINGS else None


def _plain(name: str) -> Kind | None:
    return Kind(frozenset({_PLAIN[name]})) if name in _PLAIN else None


def _name(node: ast.expr | None) -> str:
    """The last part of a (dotted) name, or an empty text."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
