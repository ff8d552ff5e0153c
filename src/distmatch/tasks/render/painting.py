"""A composed drawing, and how it becomes pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image, ImageDraw

from distmatch.tasks.render.layout import Box
from distmatch.tasks.render.lettering import write
from distmatch.tasks.render.routes import Path
from distmatch.tasks.render.solved import ACCENT, FAINT, INK, PAPER, SOFT
from distmatch.tasks.render.weights import Label, Table

EDGE, BEHIND, RIM, BAND = "#858fa1", "#d3d8e0", "#c3c9d2", "#f3f5f8"
FINER, LARGE = (4, 3), 900  # shapes are painted so much larger (less from a height on) and reduced
CROWDS = ((60, 1.9), (160, 1.5))  # up to so many edges, lines are so wide at 768 pixels
THIN = 1.1


@dataclass(frozen=True)
class Edge:
    """An edge as drawn: the names of its ends and the points it runs through."""

    ends: tuple[str, str]
    path: Path


@dataclass(frozen=True)
class Drawing:
    """All that a picture shows; what is not in here is not painted.

    Attributes:
        width, height: Of the picture, in pixels.
        discs: One a node, in order; the owner is the name inside.
        name_size: Font size of the names.
        edges: All edges.
        labels: Weights on the edges, in their order; empty if there are none or a table holds them.
        table: Weights beside the picture.
    """

    width: int
    height: int
    discs: tuple[Box, ...]
    name_size: int
    edges: tuple[Edge, ...]
    labels: tuple[Label, ...]
    table: Table | None


def boxes(drawing: Drawing) -> list[Box]:
    """Places of all discs and texts but the names inside the discs, as they are painted."""
    cells = drawing.table.cells if drawing.table else ()
    return [*drawing.discs, *(label.box for label in drawing.labels), *(cell.box for cell in cells)]


def to_png(image: Image.Image) -> bytes:
    """The image as a PNG file without time stamps: equal images give equal bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def paint(drawing: Drawing) -> Image.Image:
    """The drawing in pixels."""
    image = _shapes(drawing)
    draw = ImageDraw.Draw(image)
    for disc in drawing.discs:
        write(draw, disc.center, disc.owner, drawing.name_size, PAPER, bold=True)
    for label in drawing.labels:
        write(draw, label.box.center, label.text, label.size, ACCENT)
    if drawing.table:
        _paint_table(draw, drawing.table)
    return image


def _shapes(drawing: Drawing) -> Image.Image:
    """Edges, discs and the labels' boxes, painted larger and reduced."""
    right = drawing.width
    if drawing.table:  # all of them lie left of it
        right = int(min(cell.box.left for cell in drawing.table.cells))
    finer = FINER[drawing.height > LARGE]
    fine = Image.new("RGB", (right * finer, drawing.height * finer), PAPER)
    draw = ImageDraw.Draw(fine)
    scale = min(drawing.width, drawing.height) / 768
    count = len(drawing.edges)
    width = max(0.8, scale) * next((wide for most, wide in CROWDS if count <= most), THIN)
    color = BEHIND if drawing.table else EDGE
    for edge in drawing.edges:
        points = [(finer * x, finer * y) for x, y in edge.path.tolist()]
        draw.line(points, fill=color, width=max(2, round(finer * width)), joint="curve")
    for disc in drawing.discs:
        draw.ellipse(_scaled(disc, finer), fill=INK)
    for label in drawing.labels:
        corner = finer * (label.box.bottom - label.box.top) * 0.3
        draw.rounded_rectangle(_scaled(label.box, finer), corner, fill=PAPER, outline=RIM, width=finer - 1)
    image = Image.new("RGB", (drawing.width, drawing.height), PAPER)
    image.paste(fine.reduce(finer), (0, 0))
    return image


def _scaled(box: Box, finer: int) -> tuple[float, float, float, float]:
    return (finer * box.left, finer * box.top, finer * box.right - 1, finer * box.bottom - 1)


def _paint_table(draw: ImageDraw.ImageDraw, table: Table) -> None:
    (wide, high), count = table.step, table.count
    right, bottom = table.left + count * wide - 1, table.top + count * high - 1
    for row in range(1, count, 2):
        top = table.top + row * high
        draw.rectangle((table.left, top, right, top + high - 1), fill=BAND)
    for place in range(count):
        left, top = table.left + place * wide, table.top + place * high
        draw.rectangle((left, top, left + wide - 1, top + high - 1), fill=FAINT)
    draw.line((table.left, table.top - 1, right, table.top - 1), fill=SOFT)
    draw.line((table.left - 1, table.top - 1, table.left - 1, bottom), fill=SOFT)
    colors = {"header": INK, "caption": SOFT, "blank": RIM, "cell": INK}
    for cell in table.cells:
        write(draw, cell.box.center, cell.text, table.size, colors[cell.box.kind], cell.bold)
