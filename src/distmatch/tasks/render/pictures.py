"""Pictures of the instances of graph problems: the question of MM-NP-Bench as an image.

`compose` computes everything that a picture shows, with its place; `paint` puts exactly that on paper. No
text touches another text or a node. Edges may cross but pass under no node that is not their end. Where there
are too many to follow, a table beside the picture tells them and their weights, and the lines are only a
background.

One picture: `python -m distmatch.tasks.render.pictures task=tsp level=easy index=0 out=/tmp/tour.png`
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import numpy as np
from PIL import Image

from distmatch.tasks.base import Instance, Task, derive_seed, fingerprint
from distmatch.tasks.render.graph_data import Graph, read_graph
from distmatch.tasks.render.layout import Box, Layout, Panel
from distmatch.tasks.render.lettering import largest_font, text_size
from distmatch.tasks.render.painting import Drawing, Edge, paint, to_png
from distmatch.tasks.render.routes import Path, arranged
from distmatch.tasks.render.weights import SMALLEST, Label, Table, place_labels, weight_table

JOINED = "1"  # in the table of a graph without weights
SIZES = (512, 768, 1024, 1536)  # the usual ones; any size from 256 does
MOST_LABELS = 40  # weighted edges; beyond, the weights go into a table
MOST_EDGES = 100  # edges without weights; beyond, nobody can follow them and a table tells which there are


def draw_instance(
    instance: Instance | Mapping[str, object],
    *,
    task: str | None = None,
    size: int = 768,
    layout: Layout = "circle",
) -> Image.Image:
    """Paint an instance.

    Args:
        instance: An instance, or its data.
        task: Name of the task; an instance knows its own.
        size: Side of the square with the graph in pixels. A table comes in addition, at the right; a graph
            with too many nodes for readable names gets a larger square.
        layout: `circle`, `spring` or `grid`.

    Returns:
        An RGB image; the same instance, size and layout give the same bytes.

    Raises:
        ValueError: A task without pictures, damaged data, an unknown layout or a size below 256.
    """
    return paint(compose(instance, task=task, size=size, layout=layout))


def compose(
    instance: Instance | Mapping[str, object],
    *,
    task: str | None = None,
    size: int = 768,
    layout: Layout = "circle",
) -> Drawing:
    """Everything that `draw_instance` paints, with its place; same arguments and errors."""
    if size < 256:
        raise ValueError(f"size={size!r} must be at least 256 pixels")
    name, data = _named(instance, task)
    graph = read_graph(name, data)
    panel = _panel(graph, size)
    rng = random.Random(derive_seed("picture", fingerprint(name, data), layout))
    crowded = len(graph.pairs) > (MOST_EDGES if graph.weights is None else MOST_LABELS)
    places, paths = arranged(layout, len(graph.names), graph.pairs, panel, rng, strict=not crowded)
    discs = _discs(graph, places, panel)
    labels = None if crowded else []
    if graph.weights is not None and not crowded:
        texts = list(graph.weights.values())
        labels = place_labels(graph.edge_names, texts, paths, discs, panel)
    table = None
    if labels is None:
        entries = graph.weights or dict.fromkeys(graph.pairs, JOINED)
        table = weight_table(graph.names, entries, panel.side, panel.side, graph.caption)
    return _assembled(graph, panel, places, paths, labels or [], table)


# ---- composing ---------------------------------------------------------------------------------------------


def _named(instance: Instance | Mapping[str, object], task: str | None) -> tuple[str, Mapping[str, object]]:
    if isinstance(instance, Instance):
        if task not in (None, instance.task):
            raise ValueError(f"task={task!r} does not fit an instance of {instance.task}")
        return instance.task, instance.data
    if task is None:
        raise ValueError("task is missing: plain data does not say which problem it is of")
    return task, instance


def _panel(graph: Graph, size: int) -> Panel:
    """The square and its discs: as large as neighbours on a circle allow, and the names must fit."""
    count = max(len(graph.names), 2)
    wide, high = text_size(max(graph.names, key=len, default="0"), SMALLEST, True)
    smallest = ((wide * wide + high * high) ** 0.5) / 2 + 1.5
    side = size
    while (radius := min(0.033 * side, 1.14 * side / (count + 4))) < smallest:
        side += 16
    clear = (0.45 if len(graph.pairs) <= MOST_EDGES / 2 else 0.28) * radius
    return Panel(side, float(round(radius)), max(3.0, clear))


def _discs(graph: Graph, places: np.ndarray, panel: Panel, down: int = 0) -> list[Box]:
    reach = panel.radius
    return [
        Box("node", name, x - reach, y + down - reach, x + reach, y + down + reach, round=True)
        for name, (x, y) in zip(graph.names, places.tolist(), strict=True)
    ]


def _assembled(
    graph: Graph,
    panel: Panel,
    places: np.ndarray,
    paths: Sequence[Path],
    labels: Sequence[Label],
    table: Table | None,
) -> Drawing:
    """The parts on one canvas; beside a higher table the graph stands half-way up."""
    border = max(8, panel.side // 48)
    width = height = panel.side
    if table:
        width, height = table.right + border, max(height, table.bottom + border)
    down = (height - panel.side) // 2
    edges = [
        Edge((graph.names[a], graph.names[b]), path + np.array([0, down]))
        for (a, b), path in zip(graph.pairs, paths, strict=True)
    ]
    longest = max(graph.names, key=len, default="0")
    across = 1.7 * panel.radius  # of the text, whose corners must stay inside the disc
    wide, high = text_size(longest, 100, True)
    share = across / (wide * wide + high * high) ** 0.5
    name_size = largest_font(
        longest, share * wide, share * high, (SMALLEST - 2, round(1.15 * panel.radius)), True
    )
    discs = _discs(graph, places, panel, down)
    return Drawing(width, height, tuple(discs), name_size, tuple(edges), tuple(labels), table)


# ---- one picture from the command line ---------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    """Draw one instance: task= level= index= split= seed= size= layout= out=."""
    known = {"task": "tsp", "level": "easy", "index": "0", "split": "train", "seed": "0"}
    known |= {"size": "768", "layout": "circle", "out": "picture.png"}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in known:
            raise SystemExit(f"{argument!r} is not understood; give {'= '.join(known)}=")
        known[key] = value
    try:
        task = _task(known["task"])(level=known["level"], seed=int(known["seed"]))
        instance = task.instance(known["split"], int(known["index"]))  # type: ignore[arg-type]  # checked there
        image = draw_instance(instance, size=int(known["size"]), layout=known["layout"])  # type: ignore[arg-type]
    except ValueError as error:
        raise SystemExit(str(error)) from error
    FilePath(known["out"]).write_bytes(to_png(image))
    print(f"{known['out']}: {image.width} x {image.height} pixels, {instance.id}")


def _task(name: str) -> type[Task]:
    """The task in the module of its name."""
    try:
        module = importlib.import_module(f"distmatch.tasks.np.{name}")
    except ModuleNotFoundError as error:
        raise ValueError(f"task={name!r} is unknown: there is no distmatch.tasks.np.{name}") from error
    return next(iter(_tasks(module.__dict__.values(), name)))


def _tasks(values: Iterator[object], name: str) -> Iterator[type[Task]]:
    for value in list(values):
        if isinstance(value, type) and issubclass(value, Task) and value.__dict__.get("name") == name:
            yield value


if __name__ == "__main__":
    main(sys.argv[1:])
