"""The question of a picture task: the picture shows the instance, the words only say what is asked."""

from __future__ import annotations

from distmatch.batch import Prompt
from distmatch.tasks.base import Instance, Task
from distmatch.tasks.prompts import Wording
from distmatch.tasks.render.graph_data import WEIGHTED
from distmatch.tasks.render.layout import Layout
from distmatch.tasks.render.painting import paint
from distmatch.tasks.render.pictures import compose

_TEMPLATE = """\
# Introduction
You are an expert in combinatorial optimisation. Solve the instance of the {title} that the picture shows.

# Task description
{given} {asked}

# Question
The picture.

# Example output
For another instance: Answer: {example_answer}

# Submission format
{submission}
Write the numbers as plain integers. Text before the answer is welcome; only what follows the last "Answer:" \
is read, and it must hold one answer.

# Instructions
Think step by step and write down how you reach your answer. Stay within the token limit and do not fill up \
space. Among the valid answers, look for one that is as good as possible.

# Response format
Keep strictly to this form: your reasoning first, then, as the last line,
Answer: YOUR ANSWER"""


def picture_prompt(task: Task, instance: Instance, size: int = 768, layout: Layout = "circle") -> Prompt:
    """The chat message that asks for an answer to the instance in the picture.

    Args:
        task: The instance's task, or a mixture that holds it.
        instance: The problem.
        size: Side of the drawing in pixels.
        layout: `circle`, `spring` or `grid`.

    Returns:
        A natural prompt without the instance's JSON, with one `PIL.Image` in `images`.

    Raises:
        ValueError: A task without pictures, an unknown layout or a size below 256.
    """
    drawing = compose(instance, size=size, layout=layout)
    wording: Wording = task.problem(instance).wording  # type: ignore[attr-defined]  # all pictured tasks have one
    # The first sentence of a description says how the JSON is to be read, the others what to look for.
    asked = wording.description.partition(". ")[2]
    text = _TEMPLATE.format(
        title=wording.title,
        given=_given(instance.task, drawing.table is not None),
        asked=asked,
        example_answer=wording.example_answer,
        submission=wording.submission,
    )
    return Prompt(text, "natural", (paint(drawing),))


def _given(task: str, table: bool) -> str:
    """How the picture is to be read."""
    if task == "tsp":
        where = (
            "The table beside them holds the distance between any two of them"
            if table
            else "The number on the line between two cities is their distance"
        )
        return f"The picture shows cities as discs with their numbers. {where}, the same in both directions."
    nodes = "The picture shows an undirected graph: discs with numbers are its vertices, lines are its edges."
    if task in WEIGHTED:
        return f"{nodes} " + (
            "The table beside it holds the weights of the edges: row and column are the ends."
            if table
            else "The number on an edge is its weight."
        )
    if table:
        return f"{nodes} The table beside it has a 1 where the vertices of row and column are adjacent."
    return f"{nodes} Vertices are adjacent if a line joins them."
