"""Enumerated instances, and what policies and planted answerers say about them; see `reads_the_instance`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import Sampler, SamplingParams
from distmatch.tasks.base import Instance, derive_seed, quality
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.integer_answers import IntegerAnswerTask

Array = np.ndarray


@dataclass(frozen=True)
class Answer:
    """A valid answer.

    Attributes:
        numbers: What it says.
        quality: Against the optimum, in (0, 1].
        matched: Mean quality of all valid answers of its size, the number of different integers in it.
    """

    numbers: Sequence[int]
    quality: float
    matched: float


@dataclass(frozen=True)
class Problem:
    """A held-out instance with all that enumeration says about it.

    Attributes:
        task: The task that made it.
        instance: The instance.
        answers: Every valid answer by its canonical key.
    """

    task: IntegerAnswerTask
    instance: Instance
    answers: Mapping[str, Answer]

    @property
    def random_quality(self) -> float:
        """Mean quality of all valid answers."""
        return float(np.mean([answer.quality for answer in self.answers.values()]))

    @property
    def size_is_quality(self) -> bool:
        """Whether all valid answers of a size are equally good."""
        return all(abs(answer.quality - answer.matched) < 1e-9 for answer in self.answers.values())


Answerer = Callable[[Sequence[Problem]], Sequence[Sequence[str]]]
"""Shown some problems, writes some completions for each."""


@dataclass(frozen=True)
class Scores:
    """How the answers to m instances of one task did.

    Attributes:
        success: Share of feasible answers, (m,).
        quality: Mean quality of the feasible answers, nan where there is none, (m,).
        matched: Mean of what random answers of their sizes are worth, nan where there is none, (m,).
    """

    success: Array
    quality: Array
    matched: Array


def enumerate_problem(task: IntegerAnswerTask, instance: Instance) -> Problem:
    """List all valid answers; for tiny instances."""
    listed = list(task.feasible_answers(instance))
    values = [task.value(instance, numbers) for numbers in listed]
    best = max(values) if task.sense == "max" else min(values)
    ratios = [quality(value, best, task.sense) for value in values]
    sizes: dict[int, list[float]] = {}
    for numbers, ratio in zip(listed, ratios, strict=True):
        sizes.setdefault(len(set(numbers)), []).append(ratio)
    answers = {
        task.key(numbers): Answer(numbers, ratio, float(np.mean(sizes[len(set(numbers))])))
        for numbers, ratio in zip(listed, ratios, strict=True)
    }
    return Problem(task, instance, answers)


def held_out(mixture: Mixture, count: int) -> dict[str, list[Problem]]:
    """The first `count` validation instances of each member."""
    return {
        name: [enumerate_problem(task, task.instance("val", i)) for i in range(count)]
        for name, task in mixture.tasks.items()
    }


def score(problems: Sequence[Problem], answerer: Answerer, *, swap: bool) -> Scores:
    """Ask about each problem, or about its neighbour's numbers, and judge the answers on the problem."""
    shown = [*problems[1:], problems[0]] if swap else list(problems)
    completions = answerer(shown)
    found = [feasible(*pair) for pair in zip(problems, completions, strict=True)]
    return Scores(
        np.array([len(some) / len(texts) for some, texts in zip(found, completions, strict=True)]),
        np.array([np.mean([a.quality for a in some]) if some else np.nan for some in found]),
        np.array([np.mean([a.matched for a in some]) if some else np.nan for some in found]),
    )


def feasible(problem: Problem, texts: Sequence[str]) -> list[Answer]:
    """The valid answers among completions, as the task's verifier reads them."""
    verdicts = [problem.task.verify(problem.instance, text) for text in texts]
    return [problem.answers[verdict.key] for verdict in verdicts if verdict.key is not None]


def planted(problems: Sequence[Problem], samples: int, *, optimal: bool) -> list[list[str]]:
    """Uniformly random valid answers to what is shown, or only optimal ones."""
    texts = []
    for problem in problems:
        rng = random.Random(derive_seed("planted", problem.instance.id))
        pool = [a.numbers for a in problem.answers.values() if a.quality == 1 or not optimal]
        texts.append([problem.task.format(rng.choice(pool)) for _ in range(samples)])
    return texts


@dataclass(frozen=True)
class PolicyAnswers:
    """A language model as an answerer.

    Args:
        policy: The model.
        sampler: Draws from it; set up here.
        params: How.
        seed: Of the random numbers; a row's also depend on its place, and not on the model.
    """

    policy: LanguageModel
    sampler: Sampler
    params: SamplingParams
    seed: int

    def __call__(self, problems: Sequence[Problem]) -> list[list[str]]:
        """Sample `params.n` completions for each problem."""
        self.sampler.setup(self.policy)
        self.sampler.sync(self.policy)
        prompts = [self.policy.encode(p.task.render(p.instance, self.policy.style)) for p in problems]
        n = self.params.n
        seeds = [
            derive_seed("reads_the_instance", self.seed, p.task.name, place, k)
            for place, p in enumerate(problems)
            for k in range(n)
        ]
        drawn = self.sampler.sample(prompts, self.params, seeds)
        lengths = drawn.mask.sum(dim=1).tolist()
        rows = zip(drawn.ids.tolist(), lengths, strict=True)
        texts = [self.policy.decode(ids[:length]) for ids, length in rows]
        return [texts[i : i + n] for i in range(0, len(texts), n)]
