"""Text of pictures: the font that ships with matplotlib, and how much room its words take."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import matplotlib
from PIL import ImageDraw, ImageFont

DIGITS = "0123456789"


@lru_cache(maxsize=128)
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans at `size` pixels. Basic layout: equal pictures whether or not libraqm is installed."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=100_000)
def text_size(text: str, size: int, bold: bool = False) -> tuple[int, int]:
    """Width of the ink and height of the digits, in whole pixels; all texts of a size are equally high."""
    left, _, right, _ = font(size, bold).getbbox(text, anchor="ls")
    _, top, _, bottom = font(size, bold).getbbox(DIGITS, anchor="ls")
    return round(right - left), round(bottom - top)


def write(
    draw: ImageDraw.ImageDraw,
    middle: tuple[float, float],
    text: str,
    size: int,
    color: str,
    bold: bool = False,
) -> None:
    """Draw a text with its ink in the middle of a place; digits are centred by height, not by baseline."""
    left, _, right, _ = font(size, bold).getbbox(text, anchor="ls")
    _, top, _, bottom = font(size, bold).getbbox(DIGITS, anchor="ls")
    at = round(middle[0] - (left + right) / 2), round(middle[1] - (top + bottom) / 2)
    draw.text(at, text, fill=color, font=font(size, bold), anchor="ls")


def largest_font(text: str, width: float, height: float, sizes: tuple[int, int], bold: bool = False) -> int:
    """The largest size between two bounds at which a text fits; the smaller bound if none does."""
    for size in range(sizes[1], sizes[0], -1):
        wide, high = text_size(text, size, bold)
        if wide <= width and high <= height:
            return size
    return sizes[0]
