"""What every task YAML promises. A new file in configs/task is picked up by itself."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from distmatch.rewards import NPGated, NPPaper, score
from distmatch.settings.compose import Catalogue, compose
from distmatch.tasks.base import SPLITS
from distmatch.tasks.lab import Lab
from distmatch.tasks.np.integer_answers import IntegerAnswerTask

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "task").glob("*.yaml"))
# Suites at large sizes are made of the tasks that are here one by one: tests/unit/tasks/test_suites.py and
# test_curriculum.py. A stored task needs a file: test_stored.py.
ELSEWHERE = ("np_bench", "mm_np_bench", "curriculum", "stored")
NAMES = [path.stem for path in CONFIGS if path.stem not in ELSEWHERE]


def build(name):
    return instantiate(OmegaConf.load(ROOT / "configs" / "task" / f"{name}.yaml"))


TASKS = {name: build(name) for name in NAMES}


@pytest.fixture(params=NAMES)
def task(request):
    return TASKS[request.param]


def first_line(path):
    return path.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize(
    "path", [*CONFIGS, *sorted((ROOT / "configs" / "reward").glob("*.yaml"))], ids=lambda path: path.stem
)
def test_files_open_by_saying_what_they_are(path):
    assert first_line(path).startswith("# ")
    if path.stem != "stored":
        group, option = path.parent.name, path.stem
        instantiate(compose(Catalogue(ROOT / "configs", "train"), [f"{group}={option}"])[group])


# ---- the same key gives the same instance ----


def ids(task, order):
    return {index: [task.instance(split, index).id for split in SPLITS] for index in order}


@pytest.mark.parametrize("name", NAMES)
def test_same_key_same_instance_in_any_order(name):
    forwards = ids(build(name), range(20))
    assert forwards == ids(build(name), reversed(range(20)))


PROGRAM = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import test_tasks
print(json.dumps({name: test_tasks.everything(test_tasks.TASKS[name]) for name in test_tasks.NAMES}))
"""


def everything(task):
    """Addresses, prompts, references and demonstrations: all that must not depend on the process."""
    rows = []
    for split, index in itertools.product(SPLITS, range(6)):
        instance = task.instance(split, index)
        rows.append(
            [
                instance.id,
                json.dumps(instance.data),
                task.render(instance, "natural").text,
                task.render(instance, "compact").text,
                str(task.solve(instance).answer),
                task.demonstrate(instance, random.Random(0)),
            ]
        )
    return rows


def test_another_process_with_another_hash_seed_agrees():
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    paths = json.dumps([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, paths],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {name: everything(TASKS[name]) for name in NAMES}


def test_splits_are_disjoint(task):
    seen = [{task.instance(split, index).fingerprint for index in range(300)} for split in SPLITS]
    if isinstance(task, Lab):  # measured on what it is trained on, see Lab.instance
        assert seen[0] == seen[1] == seen[2]
        return
    assert not any(a & b for a, b in itertools.combinations(seen, 2))


def test_other_seeds_give_other_streams(task):
    if not isinstance(task, IntegerAnswerTask):
        pytest.skip("seeds of a mixture are those of its members")
    other = type(task)(task.level, seed=task.seed + 1)
    here, there = ([stream.instance("train", i).data for i in range(5)] for stream in (task, other))
    assert here != there


# ---- solutions ----


def brute_force(task, instance):
    """Values of all feasible answers by enumeration, or None where the task offers no enumeration."""
    problem = task.problem(instance)
    if isinstance(problem, Lab):
        return [problem.value_of(instance, string) for string in problem.strings()]
    if isinstance(problem, IntegerAnswerTask):
        return [slow_value(instance, answer) for answer in problem.feasible_answers(instance)]
    return None


def slow_clique(data, answer):
    assert answer and len(answer) == len({*answer})
    assert all(str(a) in data for a in answer)
    assert all(a == b or b in data[str(a)] for a in answer for b in answer)
    return len(answer)


def slow_cycle(data, answer):
    assert len(answer) > 3 and answer[0] == answer[-1] and len({*answer}) == len(answer) - 1
    assert all(answer[i + 1] in data[str(answer[i])] for i in range(len(answer) - 1))
    return len({*answer})


def slow_cover(data, answer):
    assert len(answer) == len({*answer})
    assert sorted({*itertools.chain(*(data["S"][str(a)] for a in answer))}) == data["U"]
    return len(answer)


def slow_sum(data, answer):
    assert answer and len(answer) == len({*answer})
    assert data["target"] - sum(data["numbers"][str(a)] for a in answer) == 0
    return len(answer)


def assert_sides(answer, count):
    assert len(answer) == 2 and all(isinstance(side, list) for side in answer)
    assert sorted(answer[0] + answer[1]) == list(range(count))


def slow_cut(data, answer):
    assert_sides(answer, data["num_vertices"])
    ends = {edge: {int(end) for end in edge.split("-")} for edge in data["edges"]}
    return sum(data["edges"][edge] for edge in ends if len(ends[edge] & {*answer[0]}) == 1)


def slow_bisection(data, answer):
    assert_sides(answer, len(data))
    assert len(answer[0]) - len(answer[1]) in (-1, 0, 1)
    return sum(data[str(a)][str(b)] for a in answer[0] for b in answer[1])


def slow_schedule(data, answer):
    assert answer and all(isinstance(row, list) and len(row) == 3 for row in answer)
    assert len({row[0] for row in answer}) == len(answer)
    busy, attendees = set(), 0
    for name, room, start in answer:
        meeting = data["meetings"][str(name)]
        people, end = meeting["attendees"], start + meeting["duration"]
        assert data["rooms"][str(room)] >= len(people)
        for person in people:
            assert any(a <= start and end <= b for a, b in data["attendee_availability"][str(person)])
        used = [("room", room), *(("person", person) for person in people)]
        minutes = {*itertools.product(used, range(start, end))}
        assert not minutes & busy  # minute by minute: nothing is used twice
        busy |= minutes
        attendees += len(people)
    return attendees


def slow_edges(data, answer):
    """Edges that no chosen vertex touches, and those with both ends chosen."""
    assert len(answer) == len({*answer})
    assert all(str(a) in data for a in answer)
    edges = {frozenset((int(a), int(b))) for a in data for b in data[a]}
    return [edge for edge in edges if not edge & {*answer}], [edge for edge in edges if edge <= {*answer}]


def slow_independent_set(data, answer):
    _, inside = slow_edges(data, answer)
    assert answer and not inside
    return len(answer)


def slow_vertex_cover(data, answer):
    untouched, _ = slow_edges(data, answer)
    assert not untouched
    return len(answer)


def slow_dominating_set(data, answer):
    slow_edges(data, answer)
    assert {*answer}.union(*({int(b) for b in data[str(a)]} for a in answer)) == {*map(int, data)}
    return len(answer)


def slow_feedback_vertex_set(data, answer):
    untouched, _ = slow_edges(data, answer)
    trees = [{int(a)} for a in data]
    for a, b in untouched:  # a forest: every edge that is left joins two trees
        one, other = (next(tree for tree in trees if end in tree) for end in (a, b))
        assert one is not other
        trees = [tree for tree in trees if tree is not one and tree is not other] + [one | other]
    return len(answer)


SLOW_VALUES = {
    "maximum_clique": slow_clique,
    "hamiltonian_cycle": slow_cycle,
    "set_cover": slow_cover,
    "subset_sum": slow_sum,
    "maximum_cut": slow_cut,
    "minimum_bisection": slow_bisection,
    "meeting_scheduling": slow_schedule,
    "maximum_independent_set": slow_independent_set,
    "vertex_cover": slow_vertex_cover,
    "dominating_set": slow_dominating_set,
    "feedback_vertex_set": slow_feedback_vertex_set,
}


def slow_value(instance, answer):
    """Value by code of its own; raises AssertionError on an answer that is not valid."""
    data = instance.data
    if instance.task in SLOW_VALUES:
        return SLOW_VALUES[instance.task](data, answer)
    if instance.task == "tsp":
        assert answer[0] == answer[-1] and sorted(answer[1:]) == sorted(map(int, data))
        length = 0
        for position in range(1, len(answer)):
            length += data[str(answer[position - 1])][str(answer[position])]
        return length
    if instance.task == "knapsack":
        items = [data["items"][str(i)] for i in answer]
        assert answer and len(answer) == len({*answer})
        assert sum(item["weight"] for item in items) <= data["capacity"]
        return sum(item["value"] for item in items)
    assert instance.task == "graph_coloring" and len(answer) == len(data)
    assert all(answer[int(a)] != answer[b] for a in data for b in data[a]) and all(c > 0 for c in answer)
    return len({*answer})


def test_solutions_pass_their_own_verifier(task):
    for index in range(100):
        instance = task.instance("val", index)
        problem = task.problem(instance)
        for solution in (task.solve(instance), task.solve_exact(instance)):
            verdict = task.verify(instance, problem.format(solution.answer))
            assert verdict.feasible and verdict.formatted, verdict
            assert verdict.value == solution.value
            if isinstance(problem, IntegerAnswerTask):
                assert slow_value(instance, solution.answer) == solution.value


def test_exact_agrees_with_brute_force_and_is_never_beaten(task):
    for index in range(100):
        instance = task.instance("test", index)
        values = brute_force(task, instance)
        if values is None:
            pytest.skip("no enumeration")
        exact = task.solve_exact(instance)
        best = max(values) if task.problem(instance).sense == "max" else min(values)
        assert exact.proved
        assert exact.value == best
        assert task.solve(instance).value in values


def test_enumeration_has_no_duplicates_and_verifies(task):
    for index in range(8):
        instance = task.instance("train", index)
        problem = task.problem(instance)
        if not isinstance(problem, IntegerAnswerTask):
            pytest.skip("no enumeration of answers")
        answers = problem.feasible_answers(instance)
        verdicts = [task.verify(instance, problem.format(answer)) for answer in answers]
        assert all(verdict.feasible for verdict in verdicts)
        assert len({verdict.key for verdict in verdicts}) == len(verdicts) > 1


def test_demonstrations_are_readable_mostly_feasible_and_vary(task):
    rng = random.Random(0)
    verdicts = []
    for index in range(8):
        instance = task.instance("train", index)
        mine = [task.verify(instance, task.demonstrate(instance, rng)) for _ in range(50)]
        assert len({verdict.key for verdict in mine}) > 1
        verdicts += mine
    assert all(verdict.parsed and verdict.formatted for verdict in verdicts)
    assert 0.6 < sum(verdict.feasible for verdict in verdicts) / len(verdicts) <= 1  # mediocre on purpose


# ---- hostile text ----


@settings(max_examples=60, deadline=None)
@given(st.text(), st.integers(0, 7))
def test_garbage_never_raises(text, index):
    for task in TASKS.values():
        instance = task.instance("train", index)
        for completion in (text, f"Answer: {text}", f"Answer: [{text}]"):
            verdict = task.verify(instance, completion)
            assert (verdict.value is not None) == verdict.feasible == (verdict.key is not None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-2, 9), max_size=9), st.integers(0, 7))
def test_random_lists_are_judged_as_by_slow_code(numbers, index):
    for task in TASKS.values():
        instance = task.instance("train", index)
        if not isinstance(task.problem(instance), IntegerAnswerTask):
            continue
        verdict = task.verify(instance, f"Answer: {numbers}")
        try:
            value = slow_value(instance, numbers)
        except (AssertionError, KeyError, IndexError):
            assert not verdict.feasible
        else:
            assert verdict.value == value


def attacks(task, instance):
    gold = task.problem(instance).format(task.solve_exact(instance).answer)
    listed = gold.replace("Answer:", "").strip(" []").replace(",", " ").split()
    count = len(instance.data.get("items", instance.data))
    texts = {
        "empty": "",
        "marker": "Answer:",
        "empty list": "Answer: []",
        "tags": "<think></think>a",
        "natural prompt": task.render(instance, "natural").text,
        "compact prompt": task.render(instance, "compact").text,
        "all ids": f"Answer: {list(range(count))}",
        "a duplicate": f"Answer: [{', '.join([*listed, listed[0]])}]",
        "several lists": f"{gold} or [{', '.join(listed)}]",
        "several lines": f"{gold}\n[{', '.join(listed)}]\n[0]",
        "all lists": "Answer: " + " ".join(f"[{i}]" for i in range(count)),
        "floats": f"Answer: [{', '.join(word + '.0' for word in listed)}]",
        "strings": f"Answer: {listed}",
        "signs": f"Answer: [{', '.join('+' + word for word in listed)}]",
        "non-ASCII": gold.translate({ord("0") + i: ord("٠") + i for i in range(10)} | {ord("a"): "а"}) + "٠",
        "nested": f"Answer: [[{', '.join(listed)}]]",
        "expression": f"{gold} * 1",
        "code": "Answer: __import__('os').system('true')",
        "negative": "Answer: [-1, -1, -1, -1, -1]",
        "after the answer": f"{gold}\nAnswer: I do not know",
        "cut": gold.removesuffix("]") if gold.endswith("]") else gold[:-2],
        "long": "Answer: [" + "0, " * 300_000,
        "digits": "Answer: [" + "9" * 5000 + "]",
    }
    if instance.task in ("vertex_cover", "dominating_set", "feedback_vertex_set"):
        del texts["all ids"]  # a valid answer to a covering problem, if a poor one
    # Where answers are nested lists, "nested" spells the right answer and is no attack.
    return {name: text for name, text in texts.items() if text != gold}


def test_attacks_never_score(task):
    for index in range(12):
        instance = task.instance("test", index)
        for name, completion in attacks(task, instance).items():
            outcome = score(task, instance, completion, NPPaper())
            assert not outcome.success, (name, completion[:80], outcome)
            assert outcome.quality == 0
            assert outcome.reward <= 0.1
            assert score(task, instance, completion, NPGated()).reward == 0


def test_prompts_show_every_number(task):
    for index in range(8):
        instance = task.instance("train", index)
        natural, compact = (task.render(instance, style) for style in ("natural", "compact"))
        assert (natural.style, compact.style) == ("natural", "compact")
        if isinstance(task.problem(instance), IntegerAnswerTask):
            assert json.dumps(instance.data) in natural.text
            assert natural.text.endswith("Answer: YOUR ANSWER")
        assert "\n" not in compact.text and len(compact.text) < 400
        with pytest.raises(ValueError, match="style"):
            task.render(instance, "loud")
