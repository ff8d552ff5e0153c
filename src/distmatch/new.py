"""Start a plug-in of your own from a skeleton that runs and passes its tests.

python -m distmatch.new loss my_loss
python -m distmatch.check algo=my_loss
python train.py algo=my_loss

Writes src/distmatch/losses/<name>.py, configs/algo/<name>.yaml and tests/unit/losses/test_<name>.py, and
overwrites nothing. Run it from the project's root.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from distmatch.settings.errors import ConfigError

LOSS: Mapping[str, str] = {
    "loss.py.txt": "src/distmatch/losses/{name}.py",
    "loss.yaml.txt": "configs/algo/{name}.yaml",
    "test_loss.py.txt": "tests/unit/losses/test_{name}.py",
}
"""Skeletons, and where each goes below the project's root."""


def new_loss(name: str, root: Path) -> list[Path]:
    """Write a loss, its YAML and its test.

    Args:
        name: Lower case with underscores, such as `my_loss`.
        root: The project's root.

    Returns:
        The files, the loss first.

    Raises:
        ConfigError: The name cannot be one, a file exists, or `root` is not a project.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"loss {name}: a name is lower case with underscores, such as my_loss")
    targets = {skeleton: root / place.format(name=name) for skeleton, place in LOSS.items()}
    for file in targets.values():
        if file.exists():
            raise ConfigError(f"loss {name}: {file.relative_to(root)} exists already; choose another name")
        if not file.parent.is_dir():
            raise ConfigError(
                f"{root} has no {file.parent.relative_to(root)}; run it from the project's root"
            )
    parts = name.removesuffix("_loss").split("_")
    words = {"name": name, "Class": "".join(part.capitalize() for part in parts) + "Loss"}
    skeletons = files("distmatch") / "assets" / "new"
    for skeleton, file in targets.items():
        text = (skeletons / skeleton).read_text(encoding="utf-8")
        file.write_text(Template(text).substitute(words), encoding="utf-8")
    return list(targets.values())


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; the exit status."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__.strip())
        return 0
    if len(arguments) != 2 or arguments[0] != "loss":
        print(f"error: {' '.join(arguments)}: write python -m distmatch.new loss <name>", file=sys.stderr)
        return 2
    try:
        written = new_loss(arguments[1], Path.cwd())
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for file in written:
        print(file.relative_to(Path.cwd()))
    print(f"next: python -m distmatch.check algo={arguments[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
