"""Pictures of instances: nothing covers a text or a node, everything is shown, equal instances look equal."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import random
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from PIL import Image, ImageDraw

from distmatch.tasks.base import Instance, Task
from distmatch.tasks.np.dominating_set import DominatingSet
from distmatch.tasks.np.feedback_vertex_set import FeedbackVertexSet
from distmatch.tasks.np.graph_coloring import GraphColoring
from distmatch.tasks.np.hamiltonian_cycle import HamiltonianCycle
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.maximum_clique import MaximumClique
from distmatch.tasks.np.maximum_cut import MaximumCut
from distmatch.tasks.np.maximum_independent_set import MaximumIndependentSet
from distmatch.tasks.np.minimum_bisection import MinimumBisection
from distmatch.tasks.np.tsp import TSP
from distmatch.tasks.np.vertex_cover import VertexCover
from distmatch.tasks.render.graph_data import PICTURED, read_graph
from distmatch.tasks.render.layout import LAYOUTS, Box, overlap
from distmatch.tasks.render.lettering import text_size, write
from distmatch.tasks.render.painting import Drawing, boxes, to_png
from distmatch.tasks.render.picture_prompt import picture_prompt
from distmatch.tasks.render.pictures import MOST_EDGES, MOST_LABELS, SIZES, compose, draw_instance, main
from distmatch.tasks.render.weights import SMALLEST

TASKS = (
    *(TSP, HamiltonianCycle, VertexCover, DominatingSet, MinimumBisection, MaximumCut, MaximumClique),
    *(MaximumIndependentSet, GraphColoring, FeedbackVertexSet),
)
LEVELS = ("tiny", "easy", "medium", "hard", "bench")
KINDS = {kind.name: kind for kind in TASKS}


@cache
def task_of(kind: type[Task], level: str) -> Task:
    return kind(level=level)


def sample(level: str, count: int) -> list[Instance]:
    """Instances of a level, the ten tasks in turn."""
    return [task_of(TASKS[i % len(TASKS)], level).instance("train", i // len(TASKS)) for i in range(count)]


# ---- what must hold of every picture -----------------------------------------------------------------------


def collisions(drawing: Drawing) -> list[tuple[Box, Box]]:
    """All pairs of boxes that touch, found by cells of a coarse grid."""
    cells: dict[tuple[int, int], list[Box]] = defaultdict(list)
    for box in boxes(drawing):
        columns = range(int(box.left // 32), int(box.right // 32) + 1)
        rows = range(int(box.top // 32), int(box.bottom // 32) + 1)
        for cell in itertools.product(columns, rows):
            cells[cell].append(box)
    return [
        pair for members in cells.values() for pair in itertools.combinations(members, 2) if overlap(*pair)
    ]


def misread_edges(drawing: Drawing) -> list[tuple[str, str, str]]:
    """Edges that touch the disc of a third node, by points every pixel."""
    found = []
    middles = np.array([disc.center for disc in drawing.discs])
    names = [disc.owner for disc in drawing.discs]
    radius = (drawing.discs[0].right - drawing.discs[0].left) / 2
    for edge in drawing.edges:
        pieces = zip(edge.path[:-1], edge.path[1:], strict=True)
        points = np.concatenate(
            [np.linspace(start, end, int(np.abs(end - start).max()) + 2) for start, end in pieces]
        )
        near = np.sqrt(((points[:, None] - middles[None]) ** 2).sum(axis=2)).min(axis=0) < radius + 2
        touched = {name for name, hit in zip(names, near, strict=True) if hit}
        assert touched >= set(edge.ends), "an edge ends in its two discs"
        found += [(*edge.ends, name) for name in touched - set(edge.ends)]
    return found


def shown_edges(drawing: Drawing) -> dict[tuple[str, str], str | None]:
    """Edges and weights as a reader of the picture sees them."""
    shown: dict[tuple[str, str], str | None] = dict.fromkeys(edge.ends for edge in drawing.edges)
    assert len(shown) == len(drawing.edges)
    for label, edge in zip(drawing.labels, drawing.edges if drawing.labels else (), strict=True):
        assert label.box.owner == "-".join(edge.ends)
        shown[edge.ends] = label.text
    if drawing.table:
        cells = [cell for cell in drawing.table.cells if cell.box.kind == "cell"]
        told = {tuple(cell.box.owner.split("-")): cell.text for cell in cells}
        assert len(cells) == len(told) == 2 * len(shown)
        for a, b in shown:
            assert told[a, b] == told[b, a]
            shown[a, b] = told[a, b]
    return shown


def meant_edges(instance: Instance) -> dict[tuple[str, str], int]:
    """Edges and weights of the structure, 1 where the problem has none."""
    data = instance.data
    if "edges" in data:
        return {tuple(name.split("-")): weight for name, weight in data["edges"].items()}
    rows = {a: row if isinstance(row, dict) else {str(b): 1 for b in row} for a, row in data.items()}
    return {(a, b): w for a, row in rows.items() for b, w in row.items() if int(a) < int(b) and w}


def check(instance: Instance, layout: str, size: int = 768) -> None:
    drawing = compose(instance, size=size, layout=layout)
    where = f"{instance.id} {layout} {size}"
    assert not collisions(drawing), where
    for box in boxes(drawing):
        assert 0 <= box.left <= box.right <= drawing.width, where
        assert 0 <= box.top <= box.bottom <= drawing.height, where
    for edge in drawing.edges:
        assert edge.path.min() >= 0, where
        assert (edge.path <= [drawing.width, drawing.height]).all(), where
    for disc in drawing.discs:  # the name lies inside, corners too
        wide, high = text_size(disc.owner, drawing.name_size, True)
        assert wide**2 + high**2 < (disc.right - disc.left) ** 2, where
    assert drawing.table or not misread_edges(drawing), where
    meant = meant_edges(instance)
    weighted = instance.task in ("tsp", "minimum_bisection", "maximum_cut")
    assert bool(drawing.table) >= (len(meant) > (MOST_LABELS if weighted else MOST_EDGES)), where
    shown = shown_edges(drawing)
    assert set(shown) == set(meant), where
    if weighted or drawing.table:
        assert shown == {ends: str(weight) for ends, weight in meant.items()}, where
    else:
        assert set(shown.values()) <= {None}, where
    nodes = instance.data.get("num_vertices", len(instance.data))
    assert sorted(int(disc.owner) for disc in drawing.discs) == list(range(nodes)), where


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_overlaps_and_all_is_shown(level: str) -> None:
    for number, instance in enumerate(sample(level, 40)):
        check(instance, LAYOUTS[(number + number // len(TASKS)) % len(LAYOUTS)])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_overlaps_in_two_hundred(level: str, layout: str) -> None:
    for instance in sample(level, 200):
        check(instance, layout)


@pytest.mark.parametrize("size", [256, *SIZES])
def test_every_size(size: int) -> None:
    """Smaller pictures have smaller discs and texts, but no text is smaller than readable."""
    for number, instance in enumerate([*sample("easy", 10), *sample("bench", 2)]):
        layout = LAYOUTS[number % len(LAYOUTS)]
        check(instance, layout, size)
        drawing = compose(instance, size=size, layout=layout)
        assert min([drawing.name_size, *(label.size for label in drawing.labels)]) >= SMALLEST - 1
        assert drawing.table is None or drawing.table.size >= SMALLEST


def test_graphs_of_every_size_and_density() -> None:
    rng = random.Random(5)
    for number, nodes in enumerate([1, 2, 3, 4, 5, 8, 11, 16, 23, 40, 52, 104]):
        pairs = list(itertools.combinations(range(nodes), 2))
        for count in {0, min(len(pairs), nodes), min(len(pairs), 2 * nodes), min(len(pairs), MOST_EDGES)}:
            data: dict[str, list[int]] = {str(node): [] for node in range(nodes)}
            for a, b in rng.sample(pairs, count):
                data[str(a)].append(b)
                data[str(b)].append(a)
            instance = Instance("vertex_cover", "easy", "train", 0, number, data)
            check(instance, LAYOUTS[number % len(LAYOUTS)], 512)


def test_weighted_graphs_without_edges() -> None:
    for task, data in (
        ("minimum_bisection", {"0": {"1": 0}, "1": {"0": 0}}),
        ("maximum_cut", {"num_vertices": 3, "edges": {}}),
        ("tsp", {"0": {}}),
    ):
        check(Instance(task, "tiny", "train", 0, 0, data), "spring", 512)


def test_long_weights_go_to_the_table_when_they_do_not_fit() -> None:
    pairs = list(itertools.combinations(range(9), 2))
    data = {"num_vertices": 9, "edges": {f"{a}-{b}": 10**9 + a for a, b in pairs}}
    drawing = compose(data, task="maximum_cut", size=512)
    assert drawing.table is not None
    check(Instance("maximum_cut", "easy", "train", 0, 0, data), "circle", 512)


# ---- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "level"), [(TSP, "easy"), (TSP, "bench"), (MinimumBisection, "bench")])
def test_many_weights_stand_in_a_table(kind: type[Task], level: str) -> None:
    drawing = compose(task_of(kind, level).instance("test", 0), size=512)
    assert drawing.table is not None
    assert not drawing.labels
    assert drawing.width > drawing.height
    few = compose(task_of(kind, "tiny").instance("test", 0), size=512)
    assert few.table is None
    assert len(few.labels) == len(few.edges)


def test_a_table_reads_like_a_matrix() -> None:
    instance = task_of(TSP, "easy").instance("test", 1)
    table = compose(instance).table
    heads = [cell.box for cell in table.cells if cell.box.kind == "header"]
    for cell in table.cells:
        if cell.box.kind == "cell":
            row, column = cell.box.owner.split("-")
            (x, y) = cell.box.center
            above = [head for head in heads if abs(head.center[0] - x) <= 1]
            beside = [head for head in heads if abs(head.center[1] - y) <= 1]
            assert {head.owner for head in above} == {column}
            assert {head.owner for head in beside} == {row}
            assert cell.text == str(instance.data[row][column])


# ---- the same picture every time ---------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_instances_have_equal_bytes(layout: str) -> None:
    instance = task_of(MaximumCut, "medium").instance("val", 2)
    first = to_png(draw_instance(instance, size=512, layout=layout))
    random.seed(3)
    np.random.seed(4)
    elsewhere = Instance("maximum_cut", "easy", "test", 9, 9, json.loads(json.dumps(instance.data)))
    assert to_png(draw_instance(elsewhere, size=512, layout=layout)) == first
    assert to_png(draw_instance(instance.data, task="maximum_cut", size=512, layout=layout)) == first
    with Image.open(io.BytesIO(first)) as image:
        assert (image.size, image.mode) == ((512, 512), "RGB")


def test_geometry_is_the_same_on_every_machine() -> None:
    golden = dict(zip(LAYOUTS, ("8e12f3d393e1a343", "fef5f7a1b990a176", "8bbc23d6f115c6f1"), strict=True))
    instance = task_of(VertexCover, "hard").instance("test", 0)
    for layout in LAYOUTS:
        drawing = compose(instance, layout=layout)
        places = [(disc.owner, disc.center) for disc in drawing.discs]
        text = repr((places, [np.round(edge.path, 3).tolist() for edge in drawing.edges]))
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == golden[layout], layout


def test_layouts_and_sizes_differ() -> None:
    instance = task_of(VertexCover, "medium").instance("test", 0)
    pictures = [draw_instance(instance, size=size, layout=layout) for size in SIZES for layout in LAYOUTS]
    assert {picture.size for picture in pictures} == {(size, size) for size in SIZES}
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)


# ---- pixels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [9, 10, 13, 20, 33])
@pytest.mark.parametrize("bold", [True, False])
def test_a_text_stays_in_its_box(size: int, bold: bool) -> None:
    for text in ("0", "1", "44", "100", "-7", "2.5", "1000000007"):
        image = Image.new("L", (400, 80))
        write(ImageDraw.Draw(image), (200, 40), text, size, "white", bold)
        wide, high = text_size(text, size, bold)
        left, top, right, bottom = image.getbbox()
        assert 200 - wide / 2 - 1 <= left < right <= 200 + wide / 2 + 1
        assert 40 - high / 2 - 1 <= top < bottom <= 40 + high / 2 + 1


def test_what_is_composed_is_painted() -> None:
    data = {"0": {"1": 3, "2": 5}, "1": {"0": 3}, "2": {"0": 5}, "3": {}}
    drawing = compose(data, task="minimum_bisection", size=400)
    pixels = np.asarray(draw_instance(data, task="minimum_bisection", size=400)).astype(int)
    free = pixels.copy()
    for box in boxes(drawing):
        inside = pixels[int(box.top) : int(box.bottom) + 1, int(box.left) : int(box.right) + 1]
        assert inside.min() < 150  # dark discs, blue numbers
        free[int(box.top) - 1 : int(box.bottom) + 2, int(box.left) - 1 : int(box.right) + 2] = 255
    for edge in drawing.edges:
        for share in (0.25, 0.75):
            x, y = edge.path[0] + share * (edge.path[-1] - edge.path[0])
            assert free[round(y) - 1 : round(y) + 2, round(x) - 1 : round(x) + 2].min() < 200
            free[round(y) - 1 : round(y) + 2] = 255
    a, b = drawing.discs[1].center, drawing.discs[2].center  # no edge there
    middle = pixels[round((a[1] + b[1]) / 2) - 2 :, round((a[0] + b[0]) / 2) - 2 :][:4, :4]
    assert middle.min() == 255


# ---- boxes -------------------------------------------------------------------------------------------------


def test_overlap_of_discs_and_rectangles() -> None:
    disc = Box("node", "0", 0, 0, 20, 20, round=True)
    corner = Box("weight", "0-1", 18, 18, 30, 30)  # inside the square around the disc, outside the disc
    assert not overlap(disc, corner)
    assert not overlap(corner, disc)
    assert overlap(disc, corner, gap=2)
    assert overlap(disc, Box("weight", "", 19, 8, 30, 12))
    assert overlap(disc, Box("weight", "", 9, 9, 11, 11))
    assert overlap(disc, Box("node", "", 19, 0, 39, 20, round=True))
    assert not overlap(disc, Box("node", "", 15, 15, 35, 35, round=True))
    assert not overlap(corner, Box("cell", "", 30, 18, 40, 30))
    assert overlap(corner, Box("cell", "", 30, 18, 40, 30), gap=1)
    assert overlap(corner, Box("cell", "", 29, 29, 40, 40))


# ---- reading data ------------------------------------------------------------------------------------------


def test_all_published_forms_are_read() -> None:
    lists = read_graph("maximum_clique", {"0": [1], "1": [0], "2": []})
    assert lists == read_graph("maximum_clique", {"0": {"1": 1}, "1": {"0": 1, "2": 0}, "2": {}})
    assert (lists.names, lists.pairs, lists.weights) == (("0", "1", "2"), ((0, 1),), None)
    cut = read_graph("maximum_cut", {"num_vertices": 3, "edges": {"2-0": -4, "1-2": 2.5}})
    assert cut.weights == {(0, 2): "-4", (1, 2): "2.5"}
    assert read_graph("tsp", {"0": {"1": 0}, "1": {"0": 0}}).weights == {(0, 1): "0"}
    assert read_graph("minimum_bisection", {"0": {"1": 0}, "1": {"0": 0}}).weights == {}
    assert read_graph("graph_coloring", {"10": [9], "9": []}).names == ("9", "10")


@pytest.mark.parametrize(
    ("task", "data", "complaint"),
    [
        ("knapsack", {"capacity": 3}, "knapsack has no pictures"),
        ("vertex_cover", {"0": [1]}, "edge 0-1 has an end that is no node"),
        ("tsp", {"0": {"1": 3}, "1": {"0": 4}}, "two weights: 3 and 4"),
        ("maximum_cut", {"num_vertices": 2, "edges": {"0-1": 1, "1-0": 1}}, "edge 1-0 is listed twice"),
        ("maximum_cut", {"num_vertices": 2, "edges": {"0-1": float("nan")}}, "nan is no finite number"),
        ("tsp", {"0": {"1": "3"}, "1": {"0": "3"}}, "weight '3' is no finite number"),
    ],
)
def test_data_that_no_picture_can_show(task: str, data: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        compose(data, task=task)


def test_wrong_arguments() -> None:
    instance = task_of(TSP, "tiny").instance("train", 0)
    for options, complaint in (
        ({"layout": "heap"}, "choose one of circle, spring, grid"),
        ({"size": 100}, "at least 256"),
        ({"task": "maximum_cut"}, "does not fit an instance of tsp"),
    ):
        with pytest.raises(ValueError, match=complaint):
            draw_instance(instance, **options)
    with pytest.raises(ValueError, match="task is missing"):
        draw_instance(instance.data)


# ---- prompts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("level", ["tiny", "bench"])
def test_the_prompt_asks_and_the_picture_tells(kind: type[Task], level: str) -> None:
    task = task_of(kind, level)
    instance = task.instance("test", 0)
    prompt = picture_prompt(task, instance, size=512, layout="spring")
    assert prompt.style == "natural"
    assert [image.tobytes() for image in prompt.images] == [
        draw_instance(instance, size=512, layout="spring").tobytes()
    ]
    written = task.render(instance, "natural").text
    assert json.dumps(instance.data) in written
    for trace in ("JSON", "question[", '"', "Given", json.dumps(instance.data)[1:-1]):
        assert trace not in prompt.text.replace('"Answer:"', ""), trace
    headings = [line for line in written.splitlines() if line.startswith("#")]
    assert len([line for line in prompt.text.splitlines() if line.startswith("#")]) == len(headings)
    assert kind.wording.submission in prompt.text
    asked = kind.wording.description.partition(". ")[2]
    assert asked.split()[0] in ("Find", "Divide", "Give")
    assert asked in prompt.text
    assert ("table" in prompt.text) == (compose(instance, size=512, layout="spring").table is not None)


def test_text_tasks_have_no_picture_prompts() -> None:
    with pytest.raises(ValueError, match="knapsack has no pictures"):
        picture_prompt(Knapsack(), Knapsack().instance("train", 0))


def test_all_ten_have_pictures() -> None:
    assert set(KINDS) == set(PICTURED)


# ---- command line ------------------------------------------------------------------------------------------


def test_one_picture_from_the_command_line(tmp_path, capsys) -> None:
    out = tmp_path / "cut.png"
    main(["task=maximum_cut", "level=easy", "index=4", "size=512", "layout=grid", f"out={out}"])
    instance = task_of(MaximumCut, "easy").instance("train", 4)
    assert out.read_bytes() == to_png(draw_instance(instance, size=512, layout="grid"))
    assert instance.id in capsys.readouterr().out
    for wrong, complaint in (
        ("task=sudoku", "task='sudoku' is unknown"),
        ("colour=red", "'colour=red' is not understood"),
        ("task=knapsack", "knapsack has no pictures"),
        ("level=giant", "giant"),
        ("split=dev", "dev"),
    ):
        with pytest.raises(SystemExit, match=complaint):
            main([wrong, f"out={out}"])
