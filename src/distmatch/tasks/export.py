"""Write instances with prompts and stored references: the same files load back as `task=stored`.

python -m distmatch.tasks.export task=tsp level=easy n=100
python -m distmatch.tasks.export task=np_bench n=1000 split=test out=data/np_bench
python -m distmatch.tasks.export task=maximum_cut level=easy n=20 pictures=true

The folder holds `instances.jsonl` (or `.parquet`), one record an instance; `card.json` and `README.md`, which
say where it comes from; and `pictures/`. References by a heuristic depend on the version of this package, so
they are stored with the data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from distmatch.settings.errors import ConfigError
from distmatch.settings.numbers import Number
from distmatch.tasks.command import fresh_folder, main, moved_into_place, versions

if TYPE_CHECKING:
    from distmatch.tasks.base import Instance, Task

Row = dict[str, object]
NUMBERS = (Number("n", low=1), Number("picture_size", low=256))
FORMATS = ("jsonl", "parquet")
SPLITS = ("train", "val", "test")
PUBLISHED_TASKS = (
    *(
        "maximum_clique",
        "maximum_independent_set",
        "graph_coloring",
        "meeting_scheduling",
        "minimum_bisection",
    ),
    *("set_cover", "subset_sum", "knapsack", "tsp", "hamiltonian_cycle"),
)
PUBLISHED_LEVELS = ("easy", "medium", "hard", "bench")
"""The text tasks' ranges at these levels are NP-Bench's; all other ranges are this package's own."""


def run(cfg: DictConfig) -> int:
    """Export what the config says; returns the exit status."""
    from hydra.utils import instantiate

    check_choices(cfg)
    default = f"export/{cfg.choices.task}{f'-{cfg.level}' if cfg.level else ''}-{cfg.split}-{cfg.n}"
    folder = fresh_folder(cfg.out, default)
    task: Task = instantiate(cfg.task)
    with moved_into_place(folder) as scratch:
        rows = list(_rows(task, cfg, scratch))
        card = make_card(task, cfg, rows)
        write_all(rows, card, scratch, cfg.format)
    print(f"{len(rows)} instances in {folder}, {card['proved']} of their references proved optimal")
    return 0


def check_choices(cfg: DictConfig) -> None:
    """Refuse words that mean nothing, and a format whose library is missing.

    Raises:
        ConfigError: With what is possible instead.
    """
    for key, choices in (("split", SPLITS), ("format", FORMATS)):
        if cfg[key] not in choices:
            raise ConfigError(f"{key}={cfg[key]} is unknown; choose one of {', '.join(choices)}")
    if cfg.format == "parquet" and find_spec("pyarrow") is None:
        raise ConfigError("format=parquet needs pyarrow: pip install 'distmatch[data]', or use format=jsonl")


# ---- records -----------------------------------------------------------------------------------------------


def _rows(task: Task, cfg: DictConfig, scratch: Path) -> Iterator[Row]:
    from distmatch.tasks.records import Spell, to_row

    spell, categories = Spell(), task.categories()
    paint = _painter(task, cfg, scratch) if cfg.pictures else None
    for index in range(cfg.n):
        try:
            instance = task.instance(cfg.split, index)
            extra = {"picture": paint(instance)} if paint else {}
            row = to_row(task, instance, categories[instance.task], spell, **extra)
        except ValueError as error:  # no such instance, or no proof of its reference
            raise ConfigError(f"instance {index}: {error}") from error
        yield row


def _painter(task: Task, cfg: DictConfig, scratch: Path) -> Callable[[Instance], str | None]:
    try:
        from distmatch.tasks.render.graph_data import PICTURED
        from distmatch.tasks.render.layout import LAYOUTS
        from distmatch.tasks.render.pictures import draw_instance, to_png
    except ImportError as error:
        raise ConfigError(f"pictures=true: this installation cannot draw ({error})") from error
    if not set(task.categories()) & set(PICTURED):
        raise ConfigError(
            f"pictures=true: {', '.join(task.categories())} cannot be drawn; those that can are "
            f"{', '.join(sorted(PICTURED))}"
        )
    if cfg.picture_layout not in LAYOUTS:
        raise ConfigError(f"picture_layout={cfg.picture_layout} is unknown; choose of {', '.join(LAYOUTS)}")
    (scratch / "pictures").mkdir()

    def paint(instance: Instance) -> str | None:
        if instance.task not in PICTURED:
            return None
        name = f"pictures/{instance.id}.png"
        image = draw_instance(instance, size=cfg.picture_size, layout=cfg.picture_layout)
        (scratch / name).write_bytes(to_png(image))
        return name

    return paint


def write_all(rows: Sequence[Row], card: Row, folder: Path, form: str) -> None:
    """Write the records and the card, which has the hash of their file."""
    file = write_rows(rows, folder, form)
    card = {**card, "file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(readme(card), encoding="utf-8")


def write_rows(rows: Sequence[Row], folder: Path, form: str) -> Path:
    """Write `instances.jsonl` or `instances.parquet`."""
    from distmatch.tasks.records import to_line

    path = folder / f"instances.{form}"

    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([_flat(row) for row in rows]), path)
        return path
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{to_line(row)}\n" for row in rows)
    return path


def _flat(row: Row) -> Row:
    """Nested values as JSON text: their shapes differ between tasks, and a column has one type."""
    return {name: json.dumps(value) if isinstance(value, Mapping) else value for name, value in row.items()}


# ---- card --------------------------------------------------------------------------------------------------


def make_card(task: Task, cfg: DictConfig, rows: Sequence[Row]) -> Row:
    """Where the records come from, and what is known about them."""
    kinds: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row["task"], row["level"], row["seed"]), []).append(row)
    return {
        "name": cfg.choices.task,
        "split": rows[0]["split"],
        "count": len(rows),
        "proved": _proved(rows),
        "problems": [_problem_card(task, cfg, mine) for mine in kinds.values()],
        "versions": versions(),
        "config": OmegaConf.to_container(cfg.task, resolve=True),
    }


def _problem_card(task: Task, cfg: DictConfig, rows: Sequence[Row]) -> Row:
    from distmatch.tasks.records import instance_of

    name, level = str(rows[0]["task"]), str(rows[0]["level"])
    problem = task.problem(instance_of(rows[0]))
    ranges = getattr(sys.modules[type(problem).__module__], "LEVELS", {}).get(level)
    return {
        "task": name,
        "level": level,
        "seed": rows[0]["seed"],
        "category": rows[0]["category"],
        "count": len(rows),
        "proved": _proved(rows),
        "solver": "as stored" if cfg.choices.task == "stored" else _solver(problem),
        "ranges": dataclasses.asdict(ranges) if dataclasses.is_dataclass(ranges) else None,  # type: ignore[arg-type]
        "ranges_are": "published"
        if name in PUBLISHED_TASKS and level in PUBLISHED_LEVELS
        else "this package's own",
    }


def _proved(rows: Sequence[Row]) -> int:
    return sum(bool(row["reference"]["proved"]) for row in rows)  # type: ignore[index]


def _solver(problem: Task) -> str:
    """How references were made, in the words of the solver's own docstring."""
    kind = problem._reference
    solver = problem.solve if kind == "heuristic" else problem.solve_exact
    return f"{kind}: {(inspect.getdoc(solver) or '').partition(chr(10))[0]}"


def readme(card: Row) -> str:
    """The card in Markdown."""
    head = ["task", "level", "seed", "category", "count", "proved", "ranges_are", "solver"]
    lines = [
        f"# {card['name']}, split {card['split']}: {card['count']} instances",
        "",
        f"Written by distmatch {card['versions']['distmatch']}; `{card['file']}`, sha256 {card['sha256']}.",  # type: ignore[index]
        f"{card['proved']} of {card['count']} references are proved optimal; the others are heuristic, and "
        "answers may beat them.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(str(p[key]) for key in head)} |" for p in card["problems"]),  # type: ignore[attr-defined]
        "",
        "Fields of a record: `id`, `task`, `level`, `split`, `seed`, `index` (the address); `data` (the "
        "instance in the published JSON form); `prompt` and `compact_prompt` (null where the small "
        "vocabulary cannot spell it); `reference` (`answer`, `value`, `proved`); `category`; `sense` (`max`, "
        "`min`).",
        "",
        "Load it back: `task=stored task.path=<this folder>`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main("export", run, __doc__, NUMBERS))
