"""BenchmarkMetrics: scopes, missing keys, intervals, and two ranks against one."""

from __future__ import annotations

import copy
import pickle
import statistics
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from distmatch.metrics.benchmark import BenchmarkMetrics, ladder
from distmatch.metrics.group_score import GroupScore
from distmatch.metrics.pass_at_k import best_at_k, pass_at_k
from tests.unit.metrics.scores import TASKS, make_score, make_scores


def compute(
    scores: list[GroupScore], n: int = 4, tasks: dict[str, str] = TASKS, resamples: int = 50
) -> dict[str, float]:
    metric = BenchmarkMetrics(tasks, num_samples=n, resamples=resamples)
    metric.update(*scores)
    return {name: float(value) for name, value in metric.compute().items()}


def plain(scores: list[GroupScore], n: int) -> dict[str, float]:
    """Every figure of one task, in plain Python."""
    successes = [s for score in scores for s in score.successes]
    qualities = [q for score in scores for q in score.qualities]
    keys = [[k for k in score.keys if k is not None] for score in scores]
    feasible = sum(successes)
    values = {
        "success_rate": feasible / len(successes),
        "quality_ratio": sum(qualities) / len(qualities),
        "quality_feasible": sum(qualities) / feasible,
        f"mean@{n}": statistics.mean(sum(score.successes) / n for score in scores),
        "distinct_solutions": statistics.mean(len(set(found)) for found in keys),
        "duplicates_rate": sum(len(found) - len(set(found)) for found in keys) / feasible,
    }
    for k in ladder(n):
        values[f"pass@{k}"] = statistics.mean(pass_at_k(n, sum(score.successes), k) for score in scores)
        values[f"best@{k}"] = statistics.mean(best_at_k(score.qualities, k) for score in scores)
    return values


def test_ladder() -> None:
    assert ladder(1) == [1] and ladder(8) == [1, 2, 4, 8] and ladder(12) == [1, 2, 4, 8, 12]


def test_tasks_categories_and_overall() -> None:
    scores = make_scores(20)
    found = compute(scores)
    tasks = {task: plain([s for s in scores if s.task == task], 4) for task in TASKS}
    for name in tasks["tsp"]:
        path = (tasks["tsp"][name] + tasks["cycle"][name]) / 2
        assert found[f"tsp/{name}"] == pytest.approx(tasks["tsp"][name], rel=1e-5)
        assert found[f"category_path/{name}"] == pytest.approx(path, rel=1e-5)
        assert found[f"category_subgraph/{name}"] == pytest.approx(tasks["clique"][name], rel=1e-5)
        assert found[name] == pytest.approx((path + tasks["clique"][name]) / 2, rel=1e-5)


def test_the_keys_of_a_single_task() -> None:
    found = compute([make_score(["a", "a", "b", None])], tasks={"tsp": "path"})
    names = {
        "success_rate", "quality_ratio", "quality_feasible", "pass@1", "pass@2", "pass@4",
        "best@1", "best@2", "best@4", "mean@4",
        "distinct_solutions", "effective_solutions", "duplicates_rate",
    }  # fmt: skip
    expected = names | {f"{n}_{end}" for n in names for end in ("low", "high")}
    assert set(found) == expected | {f"tsp/{n}" for n in names} | {f"category_path/{n}" for n in names}
    assert found["success_rate"] == found["tsp/success_rate"] == found["category_path/success_rate"] == 0.75


def test_fewer_answers_than_k_leave_the_key_out() -> None:
    found = compute([make_score(["a", "b", None, None]), make_score([None, None], task="clique")])
    assert "pass@2" in found and "pass@4" not in found and "mean@4" not in found and "best@4" not in found
    assert "tsp/pass@4" in found and "clique/pass@4" not in found and "pass@4_low" not in found


def test_no_feasible_answer_leaves_conditional_keys_out() -> None:
    none = compute([make_score([None] * 4)])
    assert (
        "quality_feasible" not in none
        and "duplicates_rate" not in none
        and "quality_feasible_low" not in none
    )
    assert none["success_rate"] == 0 and none["distinct_solutions"] == 0 and none["effective_solutions"] == 0
    some = compute([make_score([None] * 4), make_score(["a"] * 4, [0.5] * 4, task="clique")])
    assert (
        some["quality_feasible"] == 0.5 and some["success_rate"] == 0.5 and "tsp/quality_feasible" not in some
    )


def test_nothing_seen_gives_nothing() -> None:
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert BenchmarkMetrics(TASKS, 4).compute() == {}


def test_order_and_batching_change_nothing() -> None:
    scores = make_scores(15)
    assert compute(scores) == compute(scores[::-1])
    metric = BenchmarkMetrics(TASKS, 4, resamples=50)
    for score in scores:
        metric.update(score)
    assert {name: float(value) for name, value in metric.compute().items()} == compute(scores)


def test_reset_forgets() -> None:
    metric = BenchmarkMetrics(TASKS, 4, resamples=0)
    metric.update(*make_scores(6))
    metric.reset()
    metric.update(make_score(["a"] * 4))
    assert metric.compute()["success_rate"] == 1


def test_survives_copies() -> None:
    metric = BenchmarkMetrics(TASKS, 4, resamples=0)
    metric.update(*make_scores(6))
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert twin.compute() == metric.compute()


def test_intervals_hold_the_value_and_have_the_right_width() -> None:
    """One answer a prompt, 200 prompts of a rate of 0.3: the standard error is 0.0324."""
    scores = [make_score(["a" if i % 10 < 3 else None]) for i in range(200)]
    found = compute(scores, n=1, resamples=2000)
    low, high = found["success_rate_low"], found["success_rate_high"]
    assert low < found["success_rate"] < high
    assert high - low == pytest.approx(2 * 1.96 * 0.0324, rel=0.1)


def test_intervals_resample_inside_tasks() -> None:
    """Tasks that differ, but whose prompts do not, leave nothing to chance."""
    found = compute([make_score(["a"] * 4)] * 5 + [make_score([None] * 4, task="clique")] * 5)
    assert found["success_rate_low"] == found["success_rate"] == found["success_rate_high"] == 0.5


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (GroupScore("sat", "logic", [True], [1.0], ["a"]), "'sat'"),
        (GroupScore("tsp", "logic", [True], [1.0], ["a"]), "'logic'"),
        (make_score(["a"] * 5), "more than num_samples=4"),
    ],
)
def test_unannounced_prompts_are_refused(score: GroupScore, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BenchmarkMetrics(TASKS, 4).update(score)


def test_bad_settings_are_refused() -> None:
    for tasks, n in (({}, 4), (TASKS, 0)):
        with pytest.raises(ValueError, match="needs tasks and num_samples"):
            BenchmarkMetrics(tasks, n)


SPLITS = {"uneven": 5, "one rank empty": 0}


def _rank(rank: int, folder: str) -> dict[str, dict[str, torch.Tensor]]:
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=timedelta(seconds=90)
    )
    scores, results = make_scores(11), {}
    for name, cut in SPLITS.items():
        metric = BenchmarkMetrics(TASKS, 4, resamples=50)
        for score in scores[:cut] if rank == 0 else scores[cut:]:
            metric.update(score)
        results[name] = metric.compute()
    dist.destroy_process_group()
    return results


def _other_rank(_: int, folder: str) -> None:
    torch.save(_rank(1, folder), f"{folder}/1.pt")


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
def test_two_ranks_are_one(tmp_path: Path) -> None:
    """This process is one of the two, which spares it a second slow import."""
    other = mp.spawn(_other_rank, args=(str(tmp_path),), nprocs=1, join=False)
    here = _rank(0, str(tmp_path))
    other.join()
    whole = compute(make_scores(11))
    for results in (here, torch.load(tmp_path / "1.pt")):
        for found in results.values():
            assert {name: float(value) for name, value in found.items()} == whole
