"""The audit passes sound tasks and finds every kind of hole that is planted."""

import random
import re

import pytest

from distmatch.tasks import audit, audit_checks
from distmatch.tasks.attacks import attacks, body_of, garbage, mutations
from distmatch.tasks.audit_checks import CHECKS, Limits, Probe, checked
from distmatch.tasks.base import Instance, Solution, Verdict
from distmatch.tasks.command import main
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.maximum_clique import MaximumClique
from distmatch.tasks.np.tsp import TSP
from distmatch.tasks.np.vertex_cover import VertexCover
from distmatch.tasks.records import to_line, to_row

LIMITS = Limits(
    n=40, answers=12, proofs=6, seconds=5, max_duplicates=0.1, min_verified=500, min_generated=200
)


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch):
    monkeypatch.setattr(audit_checks, "SPEED_SECONDS", 0.02)


def call(*argv):
    return main("audit", audit.run, audit.__doc__, audit.NUMBERS, argv)


def test_the_tiny_suite_passes(capsys):
    assert call("task=np_tiny", "n=40") == 0
    out = capsys.readouterr().out
    for name in ("tsp", "knapsack", "graph_coloring", "maximum_clique"):
        assert f"{name} tiny" in out
    # The speeds in the last columns are measured, and may begin with these digits too.
    assert "FAILED" not in out and len(re.findall(r"ok 50 ", out)) == 4


def failing(problem):
    return {name for name, check in CHECKS.items() if checked(check, Probe(problem, LIMITS)).failures}


class Repeats(Knapsack):
    """Accepts an item twice: the hole of the published verifiers."""

    def fault(self, instance, numbers):
        return super().fault(instance, list(dict.fromkeys(numbers)))


class Unclosed(TSP):
    """Takes a tour that does not come home."""

    def fault(self, instance, numbers):
        return super().fault(instance, [*numbers, *numbers[:1]]) and super().fault(instance, numbers)


class FirstAnswer(MaximumClique):
    """Reads the first answer instead of the last."""

    def verify(self, instance, completion):
        return super().verify(instance, completion.partition("\n")[0])


class Strict(VertexCover):
    """Rejects valid covers of even size."""

    def fault(self, instance, numbers):
        return super().fault(instance, numbers) or ("" if len(numbers) % 2 else "even")


class Overrated(TSP):
    """Its exact solver takes the cities as they come and calls that proved."""

    def solve_exact(self, instance):
        cities = sorted(map(int, instance.data))
        return self.solution(instance, [*cities, cities[0]], proved=True)


class Misstated(TSP):
    """References state another value than they have."""

    def solve(self, instance):
        solution = super().solve(instance)
        return Solution(solution.answer, solution.value - 1)


class Leaky(Knapsack):
    """All splits hold the same problems, and few of them."""

    def instance(self, split, index):
        data = super().instance("train", index % 7).data
        return Instance(self.name, self.level, split, self.seed, index, data)


class Contradictory(TSP):
    """Feasible without a value."""

    def verify(self, instance, completion):
        return Verdict(True, True) if completion == "" else super().verify(instance, completion)


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (Repeats, {"attacks", "fuzzing"}),
        (Unclosed, {"fuzzing"}),
        (FirstAnswer, {"attacks"}),
        (Strict, {"enumeration"}),
        (Overrated, {"enumeration", "heuristic/proved"}),
        (Misstated, {"references"}),
        (Leaky, {"duplicates", "disjoint"}),
    ],
)
def test_planted_holes_are_found(kind, checks):
    assert checks <= failing(kind())


def test_slow_or_contradictory_verifiers_are_found(monkeypatch):
    monkeypatch.setattr(audit_checks, "GARBAGE", 8)
    probe = Probe(Knapsack(), LIMITS)
    ticks = iter(range(10**6))
    monkeypatch.setattr(audit_checks.time, "process_time", lambda: next(ticks) * 0.2)
    assert "takes 0.200 s" in audit_checks.fuzzed(probe).failures[0]
    assert "fewer than 500" in audit_checks.verified_per_second(probe).failures[0]
    assert "fewer than 200" in audit_checks.generated_per_second(probe).failures[0]
    monkeypatch.setattr(audit_checks, "garbage", lambda rng, count: [""])
    found = audit_checks.fuzzed(Probe(Contradictory(), LIMITS)).failures
    assert any("contradictory" in failure for failure in found)


def test_a_failure_is_listed_and_ends_with_status_1(monkeypatch, capsys):
    monkeypatch.setattr(Knapsack, "fault", lambda *_: "")  # then ids that are not there raise
    assert call("task=knapsack", "n=5", "proofs=0", "answers=2") == 1
    out = capsys.readouterr().out
    assert "FAILED knapsack tiny, attacks: knapsack-tiny-test-s0-0" in out
    assert "raises KeyError: -1" in out


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("task=tspp", "Did you mean task=tsp?"),
        ("level=huge", "level='huge' is unknown to task"),
        ("n=-1", "n=-1 must be a whole number of at least 1"),
        ("max_duplicates=2", "max_duplicates=2 must be a number"),
    ],
)
def test_mistakes_are_answered_in_one_line(capsys, argument, message):
    assert call(argument) == 2
    assert message in capsys.readouterr().err


def test_stored_records_are_not_audited(tmp_path, capsys):
    from distmatch.tasks.stored import StoredTask

    (tmp_path / "a.jsonl").write_text(f"{to_line(to_row(TSP(), TSP().instance('test', 0)))}\n")
    with pytest.raises(ValueError, match="audit the task that made them"):
        audit.audited(StoredTask(str(tmp_path / "a.jsonl")), "stored")


def test_texts_are_the_same_every_time_and_differ_from_the_gold():
    gold = "Answer: [[0, 2], [1, 3]]"
    assert body_of(gold) == [[0, 2], [1, 3]] and body_of("a b c") is None and body_of("Answer: 3") is None
    for make in (lambda r: list(mutations(gold, 4, r, 50)), lambda r: list(garbage(r, 20))):
        assert make(random.Random(3)) == make(random.Random(3))
    texts = attacks(gold, ["the prompt"], 4)
    assert gold not in texts.values() and len(texts) == len(set(texts.values()))
    assert texts["floats"] == "Answer: [[0.0, 2.0], [1.0, 3.0]]"
    assert texts["Arabic digits"] == "Answer: [[٠, ٢], [١, ٣]]"
    assert len(set(mutations(gold, 4, random.Random(0), 200))) > 80
