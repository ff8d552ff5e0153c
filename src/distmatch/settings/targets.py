"""Reads the signature of a `_target_` from its source text: a config is checked before torch is imported.

Nothing is executed: modules are located by the import system's path finder and parsed with `ast`. A target
whose source cannot be followed (compiled, built at run time) is not judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from distmatch.settings.errors import ConfigError, did_you_mean, listing

_MAX_HOPS = 8  # re-exports and base classes followed before giving up
_Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Target:
    """A class or function found in source text.

    Attributes:
        parameters: Names that its call takes, or None if it takes any name or cannot be read.
        constants: Class attributes with literal values, inherited ones included.
    """

    parameters: frozenset[str] | None
    constants: dict[str, object] = field(default_factory=dict)


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
    path = None
    spec = None
    parts = name.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        if spec is None or (spec.submodule_search_locations is None and depth < len(parts) - 1):
            return None
        path = spec.submodule_search_locations
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
        return Target(_arguments(node, skip_first=False))
    lineage = list(_lineage(module, node, _MAX_HOPS))
    constants: dict[str, object] = {}
    for _, cls in reversed(lineage):
        constants.update(_constants(cls))
    return Target(_constructor(lineage), constants)


def _lineage(module: _Module, node: ast.ClassDef, hops: int) -> Iterator[tuple[_Module, ast.ClassDef]]:
    """The class and its readable bases, depth first. Close enough to the method resolution order here."""
    yield module, node
    for base in node.bases:
        found = _follow(module, base.id) if isinstance(base, ast.Name) and hops else None
        if found and isinstance(found[1], ast.ClassDef):
            yield from _lineage(found[0], found[1], hops - 1)


def _constructor(lineage: list[tuple[_Module, ast.ClassDef]]) -> frozenset[str] | None:
    fields: set[str] = set()
    for _, cls in lineage:
        for item in cls.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                own = _arguments(item, skip_first=True)
                return None if own is None else own | fields
        if _is_dataclass(cls):
            fields |= _dataclass_fields(cls)
    return frozenset(fields) if fields else None


def _arguments(node: ast.FunctionDef, *, skip_first: bool) -> frozenset[str] | None:
    if node.args.kwarg is not None:
        return None
    positional = [*node.args.posonlyargs, *node.args.args][1 if skip_first else 0 :]
    return frozenset(argument.arg for argument in [*positional, *node.args.kwonlyargs])


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _dataclass_fields(node: ast.ClassDef) -> set[str]:
    names = set()
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        hidden = "ClassVar" in ast.unparse(item.annotation)
        if not hidden and not (item.value and "init=False" in ast.unparse(item.value)):
            names.add(item.target.id)
    return names


def _constants(node: ast.ClassDef) -> dict[str, object]:
    values: dict[str, object] = {}
    for item in node.body:
        target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
        value = getattr(item, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    return values
