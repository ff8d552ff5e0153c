"""A suite whose questions are pictures, or the same instances in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from distmatch.batch import Prompt, Style
from distmatch.tasks.base import Instance, Task
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.render.graph_data import PICTURED
from distmatch.tasks.render.layout import Layout
from distmatch.tasks.render.picture_prompt import picture_prompt


class PictureSuite(Mixture):
    """A mixture of graph problems that are shown as pictures.

    Args:
        tasks: Members by name; all must be problems that can be drawn.
        weights: Shares by the same names; equal if None.
        categories: Categories by the same names.
        form: `picture` shows the instance and asks in words; `text` gives the same instance as JSON, for
            models that cannot see.
        size: Side of the drawing in pixels.
        layout: `circle`, `spring` or `grid`.

    Raises:
        ValueError: A member that cannot be drawn, an unknown form, or what `Mixture` refuses.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        weights: Mapping[str, float] | None = None,
        categories: Mapping[str, str] | None = None,
        form: Literal["picture", "text"] = "picture",
        size: int = 768,
        layout: Layout = "circle",
    ) -> None:
        super().__init__(tasks, weights, categories)
        if form not in ("picture", "text"):
            raise ValueError(f"form={form!r} is unknown; choose picture or text")
        blind = [name for name in self.tasks if name not in PICTURED]
        if blind:
            raise ValueError(f"{', '.join(blind)} cannot be drawn; these can: {', '.join(sorted(PICTURED))}")
        self._form, self._size, self._layout = form, size, layout

    def render(self, instance: Instance, style: Style) -> Prompt:
        """A picture with a question for natural prompts, unless `form` is `text`; compact ones have none."""
        if style == "natural" and self._form == "picture":
            return picture_prompt(self, instance, self._size, self._layout)
        return super().render(instance, style)
