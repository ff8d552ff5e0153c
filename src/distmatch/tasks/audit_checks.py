"""The checks of an audit; each takes a probe and returns what it found."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from distmatch.rewards import NPPaper, Outcome, score
from distmatch.tasks.attacks import attacks, candidates, garbage, mutations
from distmatch.tasks.base import SPLITS, Instance, Solution, Task, derive_seed, quality
from distmatch.tasks.lab import Lab
from distmatch.tasks.np.integer_answers import IntegerAnswerTask

T = TypeVar("T")
FORMAT_BONUS = 0.1  # what `NPPaper` pays for the form alone
SMALL = "tiny"  # the level whose answers can all be listed
ENUMERATED = 12  # small instances whose answers are all listed
MOST_ANSWERS = 20_000
MUTATIONS, GARBAGE = 60, 120  # texts: a small instance, a task
SPEED_SECONDS = 0.3  # of CPU time for each measurement
HANG = 0.05  # seconds of CPU time that one answer may take
CRASHES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError, RuntimeError),
    *(TypeError, ValueError),
)
"""What a broken task may raise; an audit reports it."""


@dataclass(frozen=True)
class Limits:
    """How much is checked and what is demanded; see `configs/audit.yaml`."""

    n: int
    answers: int
    proofs: int
    seconds: float
    max_duplicates: float
    min_verified: float
    min_generated: float


@dataclass
class Finding:
    """What a check found.

    Attributes:
        figure: A number or two for the table; None if the check does not apply.
        failures: What went wrong, a line each; empty if nothing did.
    """

    figure: str | None = None
    failures: list[str] = field(default_factory=list)


@dataclass
class Probe:
    """A problem under audit."""

    problem: Task
    limits: Limits

    @cached_property
    def small(self) -> IntegerAnswerTask | None:
        """The same problem at a size whose answers can be listed; None if there is no such size."""
        if not isinstance(self.problem, IntegerAnswerTask) or SMALL not in self.problem.levels:
            return None
        return self.problem if self.problem.level == SMALL else type(self.problem)(SMALL, self.problem.seed)

    def sample(self, count: int) -> Iterator[Instance]:
        """The first test instances."""
        return (self.problem.instance("test", index) for index in range(count))

    @cached_property
    def listed(self) -> list[tuple[Instance, Mapping[str, float]]]:
        """Small instances with the value of every valid answer by its canonical form."""
        if self.small is None:
            return []
        pairs = []
        for index in range(ENUMERATED):
            instance = self.small.instance("test", index)
            answers = list(itertools.islice(self.small.feasible_answers(instance), MOST_ANSWERS + 1))
            if len(answers) <= MOST_ANSWERS:
                values = {self.small.key(a): self.small.value(instance, a) for a in answers}
                pairs.append((instance, values))
        return pairs

    @cached_property
    def rng(self) -> random.Random:
        """The audit's own randomness, the same every time."""
        return random.Random(derive_seed("audit", self.problem.name, self.problem.level))


def checked(check: Callable[[Probe], Finding], probe: Probe) -> Finding:
    """What a check finds; a task that raises fails it."""
    finding = Finding("")
    return _attempt(finding, "the check", lambda: check(probe)) or finding


def _attempt(finding: Finding, what: str, work: Callable[[], T]) -> T | None:
    try:
        return work()
    except CRASHES as error:
        finding.failures.append(f"{what} raises {type(error).__name__}: {str(error)[:100]}")
        return None


# ---- solutions ---------------------------------------------------------------------------------------------


def references(probe: Probe) -> Finding:
    """References pass the verifier, at the value that they state."""
    finding, problem = Finding("0"), probe.problem
    for count, instance in enumerate(probe.sample(probe.limits.answers), start=1):
        _check_solution(problem, instance, problem.reference(instance), finding)
        finding.figure = str(count)
    return finding


def _check_solution(problem: Task, instance: Instance, solution: Solution, finding: Finding) -> None:
    verdict = problem.verify(instance, problem.format(solution.answer))
    if not (verdict.feasible and verdict.formatted and verdict.value == solution.value):
        finding.failures.append(f"{instance.id}: {solution} is judged {verdict}")


def enumeration(probe: Probe) -> Finding:
    """At small size the exact solver finds the best of all valid answers, and all of them verify."""
    if probe.small is None or not probe.listed:
        return Finding()
    finding, small = Finding(str(len(probe.listed))), probe.small
    for instance, values in probe.listed:
        best = (max if small.sense == "max" else min)(values.values())
        exact = small.solve_exact(instance)
        if exact.value != best or not exact.proved:
            finding.failures.append(f"{instance.id}: exact {exact}, but the best answer is worth {best:g}")
        _check_solution(small, instance, exact, finding)
        for answer in small.feasible_answers(instance):
            if not small.verify(instance, small.format(answer)).feasible:
                finding.failures.append(f"{instance.id}: the verifier rejects {answer}")
    return finding


def proofs(probe: Probe) -> Finding:
    """No heuristic beats a proved optimum; the figure is their mean ratio and how many were proved."""
    finding, ratios, problem = Finding(), [], probe.problem
    end = time.monotonic() + probe.limits.seconds
    for instance in probe.sample(probe.limits.proofs):
        if time.monotonic() > end:
            break
        try:
            exact = problem.solve_exact(instance)
        except ValueError:  # it refuses sizes that it cannot prove
            continue
        if not exact.proved:
            continue
        _check_solution(problem, instance, exact, finding)
        heuristic = problem.solve(instance)
        ratios.append(quality(heuristic.value, exact.value, problem.sense))
        if ratios[-1] > 1 + 1e-9:
            finding.failures.append(f"{instance.id}: heuristic {heuristic} beats the proved {exact}")
    finding.figure = f"{sum(ratios) / len(ratios):.3f} ({len(ratios)})" if ratios else None
    return finding


# ---- the verifier ------------------------------------------------------------------------------------------


def attacked(probe: Probe) -> Finding:
    """Texts without a valid answer get no success, no quality and at most the format bonus."""
    finding, problem, count = Finding(), probe.problem, 0
    for instance in probe.sample(min(probe.limits.answers, ENUMERATED)):
        gold = problem.format(problem.reference(instance).answer)
        prompts = [problem.render(instance, style).text for style in ("natural", "compact")]
        for name, text in attacks(gold, prompts, candidates(instance)).items():
            count += 1
            what = f"{instance.id}: {name} {text[:60]!r}"
            outcome = _attempt(finding, what, partial(score, problem, instance, text, NPPaper()))
            if outcome and (outcome.success or outcome.quality or outcome.reward > FORMAT_BONUS):
                finding.failures.append(f"{what} gets {_short(outcome)}")
    finding.figure = str(count)
    return finding


def fuzzed(probe: Probe) -> Finding:
    """Near-valid answers score only if the list of all valid ones has them; garbage is survived in time."""
    finding, count = Finding(), 0
    for instance, values in probe.listed:
        small: IntegerAnswerTask = probe.small  # type: ignore[assignment]  # or nothing is listed
        gold = small.format(small.solve(instance).answer)
        for text in mutations(gold, candidates(instance), probe.rng, MUTATIONS):
            count += 1
            what = f"{instance.id}: {text[:80]!r}"
            verdict = _attempt(finding, what, partial(small.verify, instance, text))
            if verdict and verdict.feasible and values.get(str(verdict.key)) != verdict.value:
                finding.failures.append(f"{what} is accepted: {verdict}")
    instance = probe.problem.instance("test", 0)
    for text in garbage(probe.rng, GARBAGE):
        count += 1
        _survives(probe.problem, instance, text, finding)
    finding.figure = str(count)
    return finding


def _survives(problem: Task, instance: Instance, text: str, finding: Finding) -> None:
    what = f"{text[:60]!r}, {len(text)} characters,"
    start = time.process_time()
    verdict = _attempt(finding, what, lambda: problem.verify(instance, text))
    took = time.process_time() - start
    if took > HANG:
        finding.failures.append(f"{what} takes {took:.3f} s")
    if verdict and not (verdict.feasible == (verdict.value is not None) == (verdict.key is not None)):
        finding.failures.append(f"{what} gets the contradictory {verdict}")


def _short(outcome: Outcome) -> str:
    return f"success={outcome.success} quality={outcome.quality:.3g} reward={outcome.reward:.3g}"


# ---- the stream of instances -------------------------------------------------------------------------------


def duplicates(probe: Probe) -> Finding:
    """Few training instances repeat an earlier one."""
    if isinstance(probe.problem, Lab):  # a handful of landscapes, on purpose
        return Finding()
    count = probe.limits.n
    distinct = {probe.problem.instance("train", index).fingerprint for index in range(count)}
    rate = 1 - len(distinct) / count
    finding = Finding(f"{rate:.1%}")
    if rate > probe.limits.max_duplicates:
        finding.failures.append(f"{rate:.1%} of {count} instances repeat an earlier one")
    return finding


def disjoint(probe: Probe) -> Finding:
    """No problem is in two splits."""
    if isinstance(probe.problem, Lab):  # its splits are equal on purpose
        return Finding()
    seen: dict[str, str] = {}
    finding = Finding(str(probe.limits.n))
    for split, index in itertools.product(SPLITS, range(probe.limits.n)):
        instance = probe.problem.instance(split, index)
        if seen.setdefault(instance.fingerprint, split) != split:
            finding.failures.append(f"{instance.id} is also in split {seen[instance.fingerprint]}")
    return finding


# ---- speed -------------------------------------------------------------------------------------------------


def verified_per_second(probe: Probe) -> Finding:
    """Right answers judged in a second of CPU time."""
    problem = probe.problem
    pairs = [
        (i, problem.format(problem.reference(i).answer)) for i in probe.sample(min(8, probe.limits.answers))
    ]
    rate = _rate(lambda turn: problem.verify(*pairs[turn % len(pairs)]))
    return _fast(rate, probe.limits.min_verified)


def generated_per_second(probe: Probe) -> Finding:
    """Instances made in a second of CPU time, without references."""
    rate = _rate(lambda turn: probe.problem.instance("train", 10**6 + turn))
    return _fast(rate, probe.limits.min_generated)


def _rate(work: Callable[[int], object]) -> float:
    start, done = time.process_time(), 0
    while time.process_time() - start < SPEED_SECONDS or done < 3:
        work(done)
        done += 1
    return done / (time.process_time() - start)


def _fast(rate: float, least: float) -> Finding:
    failures = [f"{rate:,.0f} a second, fewer than {least:,.0f}"] if rate < least else []
    return Finding(f"{rate:,.0f}/s", failures)


CHECKS: Mapping[str, Callable[[Probe], Finding]] = {
    "references": references,
    "enumeration": enumeration,
    "heuristic/proved": proofs,
    "attacks": attacked,
    "fuzzing": fuzzed,
    "duplicates": duplicates,
    "disjoint": disjoint,
    "verified": verified_per_second,
    "generated": generated_per_second,
}
"""The checks by the names of the table's columns."""
