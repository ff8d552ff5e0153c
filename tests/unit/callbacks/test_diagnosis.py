"""Each cause is found in a planted history, healthy figures find none, and a run prints each finding once."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from distmatch.callbacks.diagnosis import Diagnosis, diagnose
from tests.unit.callbacks.staged import StagedData, StagedModule, StagedRollouts, staged_trainer

HEALTHY = {
    "rollout/truncated": 0.02,
    "rollout/parsed": 0.98,
    "rollout/flat_groups": 0.1,
    "rollout/success_rate": 0.6,
    "rollout/reward": 0.5,
    "rollout/length": 14.0,
    "train/grad_norm": 0.3,
    "train/clip_fraction_low": 0.01,
    "train/clip_fraction_high": 0.02,
}
START = {
    "val/success_rate": 0.6,
    "val/best@1": 0.3,
    "val/best@16": 0.9,
    "val/distinct_solutions": 6.0,
}


def causes(*changes: dict[str, float], start: dict[str, float] = START, patience: int = 3) -> list[str]:
    return [finding.cause for finding in diagnose([HEALTHY | change for change in changes], start, patience)]


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("all_truncated", {"rollout/truncated": 1.0}),
        ("nothing_parsed", {"rollout/parsed": 0.0}),
        ("flat_groups", {"rollout/flat_groups": 1.0}),
        ("no_gradient", {"train/grad_norm": 0.0}),
        ("diverged", {"rollout/success_rate": 0.29}),
        ("clipped", {"train/clip_fraction_low": 0.4, "train/clip_fraction_high": 0.59}),
    ],
)
def test_a_cause_needs_patience(cause: str, change: dict[str, float]) -> None:
    assert causes({}, change, change, change) == [cause]
    assert causes({}, change, change) == []
    assert causes(change, {}, change) == []
    assert causes(change, change, change, {}) == []
    assert causes(change, patience=1) == [cause]


def test_healthy_and_missing_figures_say_nothing() -> None:
    assert causes({}, {}, {}) == []
    assert diagnose([{}, {}, {}], {}) == []
    assert diagnose([], START) == []
    nan = dict.fromkeys([*HEALTHY, *START], float("nan"))
    assert diagnose([nan, nan, nan], START) == []
    assert diagnose([HEALTHY | START] * 3, nan) == []


def test_a_loss_near_zero_with_a_gradient_is_healthy() -> None:
    """On-policy losses print 0.0 in every step (trl #3452): only the gradient says what is learnt."""
    assert causes(*[{"train/loss": 0.0, "train/grad_norm": 1e-9}] * 3) == []


def test_only_the_root_cause_is_named() -> None:
    everything = {"rollout/parsed": 0.0, "rollout/flat_groups": 1.0, "train/grad_norm": 0.0}
    assert causes(*[everything | {"rollout/truncated": 1.0}] * 3) == ["all_truncated"]
    assert causes(*[everything] * 3) == ["nothing_parsed"]
    assert causes(*[everything | {"rollout/parsed": 1.0}] * 3) == ["flat_groups"]


@pytest.mark.parametrize(("success", "word"), [(0.0, "easier"), (1.0, "harder"), (0.5, "group_size")])
def test_flat_groups_say_what_to_do(success: float, word: str) -> None:
    flat = HEALTHY | {"rollout/flat_groups": 1.0, "rollout/success_rate": success}
    (finding,) = diagnose([flat] * 3, {})
    assert word in finding.message
    assert "\n" not in finding.message


@pytest.mark.parametrize(
    ("now", "collapsed"),
    [
        ({"val/best@16": 0.85}, True),
        ({"val/distinct_solutions": 4.0}, True),
        ({"val/best@1": 0.1}, False),  # the largest k is looked at
        ({"val/best@16": 0.895}, False),  # noise
        ({"val/distinct_solutions": 5.95}, False),
        ({"val/best@16": 0.5, "val/success_rate": 0.6}, False),  # worse all over is no collapse
    ],
)
def test_collapse_is_more_success_with_fewer_solutions(now: dict[str, float], collapsed: bool) -> None:
    evaluation = START | {"val/success_rate": 0.8} | now
    assert causes({}, evaluation) == (["collapse"] if collapsed else [])


def test_collapse_names_its_numbers() -> None:
    now = START | {"val/success_rate": 0.8, "val/best@16": 0.7, "val/distinct_solutions": 3.0}
    (finding,) = diagnose([now], START)
    for number in ("0.600", "0.800", "best of 16", "0.900", "0.700", "6.00", "3.00"):
        assert number in finding.message


def test_a_run_prints_a_finding_when_it_appears_and_when_it_comes_back(
    np_tiny: object, tmp_path: Path
) -> None:
    flat = HEALTHY | START | {"rollout/flat_groups": 1.0}
    ill = HEALTHY | START | {"val/success_rate": 0.9, "val/distinct_solutions": 2.0}
    script = [flat] * 4 + [HEALTHY | START] + [flat] * 3 + [ill, ill]
    screen = io.StringIO()
    diagnosis = Diagnosis(patience=2, console=Console(file=screen, width=80))
    diagnosis.remember_start(START)
    trainer = staged_trainer(tmp_path, [StagedRollouts(np_tiny), diagnosis], len(script))
    trainer.fit(StagedModule(script), datamodule=StagedData(np_tiny))
    assert [f.cause for f in diagnosis.findings] == ["flat_groups", "flat_groups", "collapse"]
    starts = [line.partition(":")[0] for line in screen.getvalue().splitlines()]
    assert starts == ["iteration 2", "iteration 7", "iteration 9"]


def test_a_resumed_run_does_not_repeat_itself(np_tiny: object, tmp_path: Path) -> None:
    ill = HEALTHY | START | {"val/success_rate": 0.9, "val/distinct_solutions": 2.0}
    first = Diagnosis(patience=2, console=Console(file=io.StringIO()))
    first.remember_start(START)
    trainer = staged_trainer(tmp_path, [StagedRollouts(np_tiny), first], 1)
    trainer.fit(StagedModule([ill]), datamodule=StagedData(np_tiny))
    second = Diagnosis(patience=2, console=Console(file=io.StringIO()))
    second.load_state_dict(first.state_dict())
    without_evaluation = staged_trainer(tmp_path, [StagedRollouts(np_tiny), second], 1, every=5)
    without_evaluation.fit(StagedModule([ill]), datamodule=StagedData(np_tiny))
    assert second.findings == first.findings
    assert second.state_dict()["active"] == ["collapse"]


def test_patience_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="patience=0"):
        Diagnosis(patience=0)
