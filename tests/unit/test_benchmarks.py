"""The scripts in benchmarks/, on answers whose figures are known."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate

from benchmarks import answers, fronts, fronts_np, run_seeds
from benchmarks import reads_the_instance as reads
from benchmarks.estimates import estimate
from benchmarks.runs import read_run, read_runs
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler
from distmatch.settings.compose import Catalogue
from distmatch.study.comparison.evaluation import Record, write_records
from distmatch.study.comparison.existing import differing, settings
from distmatch.study.comparison.plan import make_plan
from distmatch.study.comparison.report import number
from distmatch.study.comparison.request import read_request
from distmatch.study.comparison.statistics import figure_names
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.graph_coloring import GraphColoring
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.maximum_clique import MaximumClique
from distmatch.tasks.np.tsp import TSP

TASKS = {task.name: task() for task in (TSP, Knapsack, GraphColoring, MaximumClique)}
ANYTHING = partial(answers.planted, samples=8, optimal=False)
OPTIMAL = partial(answers.planted, samples=8, optimal=True)


@pytest.fixture(scope="module")
def problems() -> dict[str, list[answers.Problem]]:
    return answers.held_out(Mixture(TASKS), 100)


def rows(problems, **models):
    return {(r.task, r.model): r for r in reads.compare(problems, models, "start", ["planted"])}


@pytest.mark.parametrize("task", TASKS)
def test_random_answers_have_n_zero_and_optimal_ones_one(problems, task):
    found = rows({task: problems[task]}, start=ANYTHING, end=OPTIMAL)
    start, end = found[task, "start"], found[task, "end"]
    assert start.success_rate == end.success_rate == 1
    assert start.n.value == pytest.approx(0, abs=0.05)
    assert start.n.low < start.n.value < start.n.high
    assert [end.n.value, end.n.low, end.n.high] == pytest.approx([1, 1, 1])
    assert end.gain.value == pytest.approx(1 - start.n.value) and end.gain.low > 0.9


def test_a_perfect_reader_falls_to_zero_under_swap(problems):
    found = rows({name: problems[name] for name in ("tsp", "knapsack")}, start=OPTIMAL)
    assert found["tsp", "start"].swap_success_rate == 1  # any tour is valid on any instance
    assert found["tsp", "start"].swap_n.value == pytest.approx(0, abs=0.1)
    knapsack = found["knapsack", "start"]
    assert knapsack.matched_n.value == pytest.approx(1)
    assert knapsack.swap_success_rate < 0.5
    assert knapsack.swap_n.value > 0.2  # filling a knapsack blindly beats small random selections
    assert knapsack.swap_matched_n.low < 0 < knapsack.swap_matched_n.high


def test_on_graphs_a_reader_loses_success_under_swap_and_size_is_quality(problems):
    for name in ("graph_coloring", "maximum_clique"):
        found = rows({name: problems[name]}, start=OPTIMAL)[name, "start"]
        assert found.swap_success_rate < 0.2
        assert found.swap_matched_n.instances == 0 and "–" in str(found.swap_matched_n)


def test_one_who_recites_keeps_everything_under_swap(problems):
    def recite(shown):
        return [["Answer: [0, 1, 2, 3, 4, 5, 0]"] * 4 for _ in shown]

    found = rows({"tsp": problems["tsp"]}, start=recite)["tsp", "start"]
    assert found.n == found.swap_n and found.n.value == pytest.approx(0, abs=0.15)


def test_infeasible_answers_lower_the_success_rate_and_leave_n(problems):
    def half(shown):
        return [[*texts, *["Answer: [0]"] * len(texts)] for texts in OPTIMAL(shown)]

    found = rows({"tsp": problems["tsp"]}, start=OPTIMAL, end=half)["tsp", "end"]
    assert found.success_rate == 0.5
    assert found.n.value == pytest.approx(1) and found.gain.value == 0


def test_only_instances_with_a_feasible_answer_of_both_count():
    baseline = np.array([0.5, 0.5, 0.5, 0.5])
    start, end = np.array([0.5, 0.6, np.nan, 1.0]), np.array([0.75, 0.85, 1.0, np.nan])
    assert estimate(baseline, end).value == pytest.approx((0.25 + 0.35 + 0.5) / 1.5)
    gain = estimate(baseline, end, start)
    assert gain.instances == 2 and gain.value == pytest.approx(0.5)
    assert gain.low == pytest.approx(0.5) and gain.high == pytest.approx(0.5)  # paired: always 0.25 better
    assert estimate(baseline, np.full(4, np.nan)).instances == 0


def test_the_interval_is_as_wide_as_it_should_be():
    rng, m = np.random.default_rng(3), 400
    found = estimate(np.full(m, 0.5), 0.7 + 0.1 * rng.standard_normal(m))
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.1 / 0.5 / m**0.5, rel=0.15)


def test_a_model_answers_with_the_same_random_numbers_whatever_it_is_shown_with(
    problems, small_policy: LanguageModel
):
    asked = answers.PolicyAnswers(small_policy, HFSampler(max_rows=8), SamplingParams(4, 6), seed=0)
    texts = asked(problems["tsp"][:5])
    assert [len(group) for group in texts] == [4] * 5
    assert texts[:3] == asked(problems["tsp"][:3])
    assert len({text for group in texts for text in group}) > 1


# ---- reading runs ------------------------------------------------------------------------------------------


def plant_run(folder: Path, algo: str, seed: int, end: float, lr: float = 1e-3) -> Path:
    where = folder / f"{algo}-{seed}"
    where.mkdir()
    config = f"seed: {seed}\nchoices: {{algo: {algo}}}\nmodel: {{weights: shipped}}\nmodule: {{lr: {lr}}}\n"
    (where / "config.yaml").write_text(config)
    figures = {"success_rate", "quality_ratio", "distinct_solutions", "effective_solutions"}
    figures |= {"best@8", "best@16", "quality_feasible"}
    metrics = {f"start/{f}": 0.25 for f in figures} | {f"val/{f}": end for f in figures}
    metrics |= {"val/best@16_low": 0.0, "run/wall_seconds": 90.0, "run/peak_memory_bytes": 2**30}
    (where / "metrics.json").write_text(json.dumps(metrics))
    return where


def test_what_is_not_comparable_is_said(tmp_path: Path, capsys):
    one, other = plant_run(tmp_path, "dmpo", 0, 0.5), plant_run(tmp_path, "grpo", 0, 0.5, lr=1e-4)
    runs = read_runs([one, other])
    assert "module.lr" in capsys.readouterr().err
    assert run_seeds.start_of(runs) == "shipped"
    with pytest.raises(SystemExit, match="more than one run"):
        read_runs([one, one])
    (one / "metrics.json").unlink()
    with pytest.raises(SystemExit, match=r"no metrics\.json"):
        read_runs([one])


def test_run_seeds_compares_and_then_asks_whether_the_runs_read(tmp_path: Path, monkeypatch):
    """What it takes is planned by compare.py, and the folders that it reads are those of that plan."""
    asked, read = [], []
    monkeypatch.setattr(run_seeds.compare, "main", lambda config, usage, argv: asked.extend(argv) or 0)
    monkeypatch.setattr(run_seeds.reads_the_instance, "main", read.extend)
    monkeypatch.setattr(run_seeds, "read_runs", lambda folders: [read_run(plant_run(tmp_path, "dmpo", 9, 1))])
    folder = tmp_path / "a folder"
    run_seeds.main([str(folder), "--algos", "dmpo,gspo", "--seeds", "3,4", "threads=1", "jobs=2"])
    configs = Path(run_seeds.CONFIG).parent
    plan = make_plan(read_request(Catalogue(configs, "compare"), asked), Catalogue(configs, "train"))
    assert plan.baseline == "gspo" and plan.request.jobs == 2 and plan.cells[0].cfg.threads == 1
    assert read[:5] == ["shipped", *(str(cell.run) for cell in plan.cells)]
    assert read[-1] == str(folder / "reads_the_instance.json")


def test_run_seeds_stops_where_a_cell_failed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(run_seeds.compare, "main", lambda config, usage, argv: 1)
    with pytest.raises(SystemExit) as stop:
        run_seeds.main([str(tmp_path)])
    assert stop.value.code == 1


def test_numbers_are_written_as_in_print():
    assert [number(x) for x in (-0.12345, -0.0001, float("nan"))] == ["−0.123", "0.000", "–"]


# ---- fronts ----------------------------------------------------------------------------------------------


def test_a_front_is_the_most_coverage_at_a_reward_or_above() -> None:
    rewards, coverage = np.array([0.85, 0.92, 0.4]), np.array([6.0, 4.0, 8.0])
    wanted = np.array([0.5, 0.8, 0.9, 0.95])
    assert fronts.front(rewards, coverage, wanted).tolist() == [6.0, 6.0, 4.0, 0.0]
    both = fronts.front(np.stack([rewards, 1 - rewards], 1), np.stack([coverage, coverage], 1), wanted)
    assert both.tolist() == [[6.0, 6.0, 4.0, 0.0], [8.0, 0.0, 0.0, 0.0]]


def test_gains_are_over_the_best_published_front_of_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "SEEDS", (1, 2))
    found = {name: {1: np.array([1.0, 2.0]), 2: np.array([3.0, 0.0])} for name in fronts.PUBLISHED}
    found["vargrad"] = {1: np.array([2.0, 1.0]), 2: np.array([1.0, 1.0])}
    found["new"] = {1: np.array([4.0, 2.0]), 2: np.array([3.0, 3.0])}
    gains = fronts.gains(found)
    assert gains["new"] == {1: 1.0, 2: 1.0}  # envelopes (2, 2) and (3, 1)
    assert gains["vargrad"] == {1: -0.5, 2: -1.0}


def test_the_tilted_reference_runs_from_the_reference_to_its_best_strings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fronts, "SEEDS", (1,))
    monkeypatch.setattr(fronts, "METHODS", {"vargrad": fronts.METHODS["vargrad"]})
    cells = fronts.cells_of("equal_modes", (), iterations=3)
    (path,) = fronts.tilted(cells).values()
    landscape = Landscape.of(instantiate(cells[0].task))
    reference = TabularPolicy.of(landscape, cells[0].knobs["reference_scale"], 1).logprobs().exp().detach()
    odds = reference[landscape.best] / reference[landscape.best].sum()
    assert path[0, 0] == pytest.approx(float(reference @ landscape.rewards))
    assert path[0, 1] == pytest.approx(float((1 - (1 - reference[landscape.best]) ** 64).sum()))
    assert path[-1] == pytest.approx([1.0, float((1 - (1 - odds) ** 64).sum())], abs=1e-3)
    assert (np.diff(path[:, 0]) > 0).all()


def test_the_interval_of_ten_seeds_is_students() -> None:
    # Student's own example, Biometrika 6 (1908): additional hours of sleep of ten patients.
    hours = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    assert len(hours) == len(fronts.SEEDS)
    assert fronts.interval(hours) == pytest.approx((1.58, 0.70, 2.46), abs=0.005)


def test_every_method_of_the_fronts_composes_at_every_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "SEEDS", (1,))
    cells = fronts.cells_of("equal_modes", (), iterations=3)
    assert len(cells) == sum(len(values) for *_, values in fronts.METHODS.values())
    assert {len(values) for *_, values in fronts.METHODS.values()} == {6}


def test_every_variant_of_the_fronts_on_np_tiny_composes() -> None:
    catalogue = Catalogue(fronts_np.CONFIG.parent, fronts_np.CONFIG.stem)
    asked = read_request(catalogue, fronts_np.request(Path("out"), ["eval_samples=4"]))
    plan = make_plan(asked, Catalogue(fronts_np.CONFIG.parent, "train"))
    points = sum(len(values) for *_, values in fronts_np.METHODS.values())
    assert len(plan.arms) == 1 + points and len(plan.cells) == len(fronts_np.SEEDS) * (1 + points)
    assert set(fronts_np.METHODS) == set(fronts.METHODS) and asked.eval_samples == 4
    first, *others = (settings(cell.cfg) for cell in plan.cells if cell.seed == fronts_np.SEEDS[0])
    found = {key for other in others for key in differing(first, other)}
    assert all(key.startswith(("algo.", "choices.algo")) for key in found)  # nothing else differs


def test_gains_on_np_tiny_are_paired_in_every_resample() -> None:
    quality = np.array([0.81, 0.72, 0.60])  # the sample and two resamples
    found = {}
    for method, (*_, values) in fronts_np.METHODS.items():
        for place, value in enumerate(values):
            distinct = np.array([8.0, 9.0, 10.0]) - place + (method == "levelled 1")
            found[f"{method} @ {value:.4g}"] = np.column_stack([quality, distinct, np.ones(3)])
    gained = fronts_np.gains(found, 1)
    assert gained["levelled 1"].value == pytest.approx(1.0)  # one more at every quality
    # Where no point reaches a quality, nobody gains: 7 of 15 qualities up to 0.72, none up to 0.60.
    assert gained["levelled 1"].low == pytest.approx(0.025 * 7 / 15)
    assert [gained[m].value for m in ("vargrad", "levelled 0.5")] == [0.0, 0.0]
    assert {gain.value for gain in fronts_np.gains(found, 2).values()} == {0.0}


def test_good_solutions_are_counted_by_their_quality(tmp_path: Path) -> None:
    qualities = [0.95, 0.95, 0.9, 0.5, 0.0] + [0.0] * 27
    keys = ["a", "a", "b", "c", None] + [None] * 27
    record = Record(
        "i",
        0,
        "tsp",
        "planning",
        0,
        [q > 0 for q in qualities],
        qualities,
        keys,
        qualities,
        [1] * 32,
        [False] * 32,
    )
    write_records(tmp_path / "evaluation.jsonl", [record])
    numerators, denominators = fronts_np._good(tmp_path / "evaluation.jsonl")
    column = figure_names(32).index("distinct@32")
    assert (numerators / denominators)[0, column] == 2
