"""Reads the signature of a `_target_` from its source text: a config is checked before torch is imported.

Nothing is executed: modules are located by the import system's path finder and parsed with `ast`. A target
whose source cannot be followed (compiled, built at run time) is not judged.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from distmatch.settings.annotations import Kind, read_annotation
from distmatch.settings.errors import ConfigError, did_you_mean, listing

_MAX_HOPS = 8  # re-exports and base classes followed before giving up
_Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Target:
    """A class or function found in source text.

    Attributes:
        parameters: Names that its call takes, or None if it takes any name or cannot be read.
        constants: Class attributes with literal values, inherited ones included.
        kinds: What the annotated parameters take, as far as their annotations can be followed.
    """

    parameters: frozenset[str] | None
    constants: dict[str, object] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)


@dataclass
class _Signature:
    """Parameters by name, each with its kind or None; `is_open` where any other name is taken too."""

    kinds: dict[str, Kind | None]
    is_open: bool = False

    def target(self, constants: dict[str, object]) -> Target:
        kinds = {name: kind for name, kind in self.kinds.items() if kind is not None}
        return Target(None if self.is_open else frozenset(self.kinds), constants, kinds)


@dataclass(frozen=True)
class _Module:
    name: str
    tree: ast.Module
    is_package: bool

    def definition(self, name: str) -> _Definition | None:
        """The top-level class or function called `name`; the last one wins, as at run time."""
        found = None
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                found = node
        return found

    def imported(self, name: str) -> tuple[str, str] | None:
        """The (module, name) that `name` is imported from, or None."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return self._absolute(node), alias.name
        return None

    def assigned(self, name: str) -> ast.expr | None:
        """The value that the top-level `name` is given, such as `Literal["a", "b"]`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign):
                targets: list[ast.expr] = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            else:
                continue
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node.value
        return None

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        drop = node.level - 1 if self.is_package else node.level
        return ".".join([*parts[: len(parts) - drop], *filter(None, [node.module])])

    def public_names(self) -> list[str]:
        """Classes and functions defined here without a leading underscore."""
        nodes = [n for n in self.tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
        return [node.name for node in nodes if not node.name.startswith("_")]

    def is_dynamic(self) -> bool:
        """Whether names may exist that the text does not spell out."""
        stars = (n for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*")
        return next(stars, None) is not None or self.definition("__getattr__") is not None


@cache
def _module(name: str) -> _Module | None:
    """Parse the module `name`; None if there is none or it has no Python source."""
    spec = _spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"), filename=spec.origin)
    return _Module(name, tree, spec.submodule_search_locations is not None)


def _spec(name: str) -> ModuleSpec | None:
    """Locate a module without importing its parents."""
    path: Sequence[str] = sys.path
    spec = None
    parts = name.split(".")
    for depth, part in enumerate(parts):
        try:
            spec = PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        except KeyError:  # a folder without __init__.py asks for its parent, which is not imported
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(Path(place) / part) for place in path]
        if spec is None or (spec.submodule_search_locations is None and depth < len(parts) - 1):
            return None
        path = spec.submodule_search_locations or []
    return spec


def find_target(path: str) -> Target | None:
    """Look up a dotted path such as `distmatch.losses.dmpo.DMPOLoss`.

    Returns:
        What its source text says, or None where the text does not tell.

    Raises:
        ConfigError: No such module, or the module has no such name.
    """
    module_name, _, name = path.rpartition(".")
    spec = _spec(module_name) if module_name else None
    if spec is None:
        return _method_or_missing(path)
    module = _parse(module_name)
    if module is None:
        return None
    found = _follow(module, name)
    if found is None:
        if _may_exist(module, name):
            return None
        names = module.public_names()
        hint = did_you_mean(name, names)
        raise ConfigError(f"{module_name} has no {name!r}; it defines: {listing(names)}.{hint}")
    return _read(*found)


def _parse(module_name: str) -> _Module | None:
    try:
        return _module(module_name)
    except SyntaxError as error:
        raise ConfigError(f"{error.filename}, line {error.lineno}: {error.msg}") from error


def _may_exist(module: _Module, name: str) -> bool:
    assigned = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    return module.is_dynamic() or name in assigned or module.imported(name) is not None


def _method_or_missing(path: str) -> None:
    """Accept `package.module.Class.method`, which is not read; refuse what has no module at all."""
    owner = path.rpartition(".")[0].rpartition(".")[0]
    if owner and _spec(owner) is not None:
        module = _parse(owner)
        name = path.split(".")[-2]
        if module is None or _follow(module, name) is not None or _may_exist(module, name):
            return
    module_name = path.rpartition(".")[0]
    if not module_name:
        raise ConfigError(f"_target_={path!r} is not a dotted path; write package.module.Name")
    raise ConfigError(
        f"_target_={path!r}: there is no module {module_name!r}. "
        "A file my_loss.py beside train.py is the module my_loss."
    )


def _follow(module: _Module, name: str, hops: int = _MAX_HOPS) -> tuple[_Module, _Definition] | None:
    """Follow re-exports from `module` to the definition of `name`."""
    definition = module.definition(name)
    if definition is not None:
        return module, definition
    source = module.imported(name)
    if source is None or not hops:
        return None
    origin = _parse(source[0])
    return _follow(origin, source[1], hops - 1) if origin else None


def _read(module: _Module, node: _Definition) -> Target:
    if isinstance(node, ast.FunctionDef):
        return _arguments(module, node, skip_first=False).target({})
    lineage = list(_lineage(module, node, _MAX_HOPS))
    constants: dict[str, object] = {}
    for _, cls in reversed(lineage):
        constants.update(_constants(cls))
    return _constructor(lineage).target(constants)


def _lineage(module: _Module, node: ast.ClassDef, hops: int) -> Iterator[tuple[_Module, ast.ClassDef]]:
    """The class and its readable bases, depth first. Close enough to the method resolution order here."""
    yield module, node
    for base in node.bases:
        found = _follow(module, base.id) if isinstance(base, ast.Name) and hops else None
        if found and isinstance(found[1], ast.ClassDef):
            yield from _lineage(found[0], found[1], hops - 1)


def _constructor(lineage: list[tuple[_Module, ast.ClassDef]]) -> _Signature:
    fields: dict[str, Kind | None] = {}
    for module, cls in lineage:
        for item in cls.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                own = _arguments(module, item, skip_first=True)
                return _Signature(own.kinds | fields, own.is_open)
        if _is_dataclass(cls):
            fields = _dataclass_fields(module, cls) | fields
    return _Signature(fields, is_open=not fields)


def _arguments(module: _Module, node: ast.FunctionDef, *, skip_first: bool) -> _Signature:
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    unset = [None] * (len(positional) - len(given.defaults))
    pairs = [*zip(positional, [*unset, *given.defaults], strict=True)][1 if skip_first else 0 :]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    kinds = {argument.arg: _kind(module, argument.annotation, default) for argument, default in pairs}
    return _Signature(kinds, is_open=given.kwarg is not None)


def _kind(module: _Module, annotation: ast.expr | None, default: ast.expr | None = None) -> Kind | None:
    kind = read_annotation(annotation, lambda name: _alias(module, name, _MAX_HOPS))
    implicit = isinstance(default, ast.Constant) and default.value is None
    return kind | Kind(frozenset({"null"})) if kind and implicit else kind


def _alias(module: _Module, name: str, hops: int) -> Kind | None:
    """The kind of a name such as `Style` in `Style = Literal["natural", "compact"]`, re-exports followed."""
    value = module.assigned(name)
    if value is not None:
        return read_annotation(value, lambda other: _alias(module, other, hops - 1) if hops else None)
    owned = module.definition(name) if module.name.startswith("distmatch.") else None
    if isinstance(owned, ast.ClassDef) and not any("Enum" in ast.unparse(base) for base in owned.bases):
        return Kind(frozenset({"object"}))
    source = module.imported(name)
    origin = _parse(source[0]) if source and hops else None
    return _alias(origin, source[1], hops - 1) if source and origin else None


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _dataclass_fields(module: _Module, node: ast.ClassDef) -> dict[str, Kind | None]:
    fields = {}
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        hidden = "ClassVar" in ast.unparse(item.annotation)
        if not hidden and not (item.value and "init=False" in ast.unparse(item.value)):
            fields[item.target.id] = _kind(module, item.annotation, item.value)
    return fields


def _constants(node: ast.ClassDef) -> dict[str, object]:
    values: dict[str, object] = {}
    for item in node.body:
        target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
        value = getattr(item, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    return values
