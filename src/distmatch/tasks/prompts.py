"""The natural prompt that all NP problems share: NP-Bench's sections, in our own words."""

from __future__ import annotations

from dataclasses import dataclass

from distmatch.batch import Prompt


@dataclass(frozen=True)
class Wording:
    """What differs between problems in the shared prompt.

    Attributes:
        title: Name of the problem.
        description: What is given, what is asked and which answers are valid.
        example_question: A small instance as JSON.
        example_answer: A valid answer to it, without `Answer:`.
        submission: How an answer is written.
    """

    title: str
    description: str
    example_question: str
    example_answer: str
    submission: str


_TEMPLATE = """\
# Introduction
You are an expert in combinatorial optimisation. Solve the following instance of the {title}.

# Task description
{description}

# Question
{question}

# Example input and output
Input: {example_question}
Output: Answer: {example_answer}

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


def natural_prompt(wording: Wording, question: str) -> Prompt:
    """The chat message that asks for an answer to `question`, an instance as JSON on one line."""
    text = _TEMPLATE.format(
        title=wording.title,
        description=wording.description,
        question=question,
        example_question=wording.example_question,
        example_answer=wording.example_answer,
        submission=wording.submission,
    )
    return Prompt(text, "natural")
