"""The batch plan adds up, a log gets lines, a terminal one display, and the end compares and points on."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from distmatch.callbacks.progress import ProgressDisplay
from distmatch.callbacks.tables import (
    BatchPlan,
    batch_plan,
    before_after_table,
    by_task_table,
    change,
    count,
    duration,
    figure,
    largest,
    next_steps,
    plan_table,
)
from tests.unit.callbacks.staged import StagedData, StagedModule, StagedRollouts, staged_trainer

TRAIN = {
    "rollout/reward": 0.412,
    "rollout/success_rate": 0.81,
    "rollout/quality_ratio": 0.523,
    "rollout/distinct_solutions": 3.1,
    "rollout/length": 13.26,
    "train/entropy": 1.25,
    "time/tokens_per_second": 8123.4,
}
OVERALL = {"success_rate": 0.5, "quality_ratio": 0.4, "quality_feasible": 0.8, "best@2": 0.6, "best@4": 0.7}
START = {
    **{f"val/{k}": v for k, v in OVERALL.items()},
    "val/mean@4": 0.5,
    "val/distinct_solutions": 2.5,
    "val/tsp/success_rate": 0.4,
    "val/knapsack/success_rate": 0.6,
}
END = {k: v + 0.1 for k, v in START.items()} | {
    "val/best@4": 0.65,
    "val/success_rate_low": 0.55,
    "val/success_rate_high": 0.66,
    "val/category_np/success_rate": 0.6,
}


def printed(what: RenderableType, width: int = 80) -> str:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(what)
    return screen.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def words(text: str, line: str) -> list[str]:
    """The words of the line that starts with `line`."""
    found = [row.strip() for row in text.splitlines() if row.strip().startswith(line)]
    assert len(found) == 1, (line, text)
    return found[0].removeprefix(line).split()


def plan(**changes: int) -> BatchPlan:
    settings = {
        "prompts": 32,
        "group_size": 8,
        "updates": 4,
        "world": 2,
        "max_prompt_tokens": 96,
        "max_tokens": 14,
        "micro_batch_tokens": 1100,
        "iterations": 40,
        "eval_prompts": 256,
        "eval_samples": 16,
        "eval_every": 10,
    }
    return BatchPlan(**(settings | changes))


def test_the_batch_plan_adds_up() -> None:
    made = plan()
    assert made.rows == 256
    assert made.prompts_per_update == 4
    assert made.rows_per_chunk == 10
    assert made.chunks == math.ceil(4 * 8 / 10)
    assert made.most_tokens == 256 * 14
    assert plan(micro_batch_tokens=10).rows_per_chunk == 1


def test_the_batch_plan_is_taken_from_the_data_module(np_tiny: object) -> None:
    made = batch_plan(
        StagedData(np_tiny), micro_batch_tokens=1100, eval_prompts=5, iterations=3, eval_every=None, world=1
    )
    assert (made.prompts, made.group_size, made.updates, made.world) == (4, 4, 1, 1)
    assert (made.max_prompt_tokens, made.max_tokens, made.eval_prompts, made.eval_samples) == (96, 14, 5, 4)


def test_the_plan_is_printed_in_numbers_and_settings() -> None:
    text = printed(plan_table(plan()))
    assert words(text, "prompts  ")[0] == "32"
    assert words(text, "completions")[0] == "256"
    assert words(text, "sampled tokens")[:2] == ["3", "584"]
    assert words(text, "chunks per step")[0] == "4"
    assert words(text, "iterations")[:3] == ["40", "160", "optimizer"]
    assert words(text, "evaluation")[:3] == ["256", "×", "16"]
    assert "every 10 iterations" in text
    assert "each of 2 ranks" in text
    assert "data.updates_per_rollout" in text
    assert max(map(len, text.splitlines())) <= 80


def test_before_and_after() -> None:
    text = printed(before_after_table(START, END, entropy=(1.3, 1.1)))
    assert words(text, "success rate") == ["0.500", "0.600", "+0.100", "0.550", "to", "0.660"]
    assert words(text, "best of 4") == ["0.700", "0.650", "-0.050"]
    assert words(text, "distinct solutions of 4") == ["2.500", "2.600", "+0.100"]
    assert words(text, "entropy, nats a token")[:3] == ["1.300", "1.100", "-0.200"]
    assert "best of 2" not in text
    assert "entropy" not in printed(before_after_table(START, END))


def test_by_task_fits_and_leaves_out_what_is_no_task() -> None:
    text = printed(by_task_table(START, END))
    assert words(text, "tsp") == ["0.50", "+0.10", "-", "-", "-", "-"]
    assert "category" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert by_task_table({"val/success_rate": 0.1}, {"val/success_rate": 0.1}) is None


def test_figures_that_do_not_exist_are_not_shown() -> None:
    some = {k: v for k, v in END.items() if k not in ("val/quality_feasible", "val/best@4")}
    text = printed(before_after_table(START, some))
    assert words(text, "quality of feasible") == ["0.800", "-", "-"]
    assert words(text, "best of 2") == ["0.600", "0.700", "+0.100"]
    assert largest("best", {"best@2": 1.0}, {"best@4": 1.0}) is None


def test_numbers() -> None:
    assert [count(1234567.4), count(0)] == ["1 234 567", "0"]
    assert [figure(0.12345), figure(12.345), figure(math.nan)] == ["0.123", "12.35", "-"]
    assert [duration(59.6), duration(3661)] == ["0:01:00", "1:01:01"]
    assert [str(change(0.5, 0.49999)), str(change(math.nan, 1.0))] == ["+0.000", "-"]
    assert [change(0, d).style for d in (0.1, -0.1, 0.0)] == ["green", "red", "dim"]


def test_only_what_is_there_is_pointed_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "logs" / "my run"
    run.mkdir(parents=True)
    assert next_steps(run, 3) == []
    (run / "metrics.json").touch()
    (run / "checkpoints").mkdir()
    assert dict(next_steps(run, 3)) == {
        "final figures": "'logs/my run/metrics.json'",
        "train on": "python train.py resume='logs/my run' trainer.max_epochs=6",
    }


class Screen(io.StringIO):
    """A file that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def make_terminal(screen: io.StringIO) -> Console:
    return Console(file=screen, width=80, force_terminal=True, color_system=None, legacy_windows=False)


def run_staged(console: Console, np_tiny: object, folder: Path, **settings: float) -> ProgressDisplay:
    display = ProgressDisplay(micro_batch_tokens=1100, eval_prompts=4, console=console, **settings)
    module, data = StagedModule([TRAIN | END]), StagedData(np_tiny)
    trainer = staged_trainer(folder, [StagedRollouts(np_tiny), display], iterations=3, every=2)
    trainer.validate(module, datamodule=data, verbose=False)
    display.remember_start(START)
    trainer.fit(module, datamodule=data)
    display.show_end(START, END, folder)
    return display


def test_a_log_gets_plain_lines(np_tiny: object, tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    screen = io.StringIO()
    run_staged(Console(file=screen, width=80), np_tiny, tmp_path)
    text = screen.getvalue()
    assert "\x1b" not in text
    assert text.count("batch plan") == 1
    assert "answering 4 held-out prompts, 4 times each" in text
    lines = [line for line in text.splitlines() if line.startswith("[")]
    assert [line[:5] for line in lines] == ["[1/3]", "[2/3]", "[3/3]"]
    for part in (
        "reward 0.412",
        "success 0.810",
        "distinct 3.10",
        "entropy 1.250",
        "length 13.3",
        "tokens/s 8 123",
    ):
        assert part in lines[0]
    held_out = [line for line in text.splitlines() if line.startswith("  held-out")]
    assert len(held_out) == 1  # the evaluation of iteration 2; the one before training has its own table
    assert "success 0.600 (before 0.500)" in held_out[0]
    assert "best of 4 0.650 (before 0.700)" in held_out[0]
    assert "held-out prompts, before and after" in text
    assert f"tensorboard --logdir {tmp_path}" in text


def test_lines_can_be_rare(np_tiny: object, tmp_path: Path) -> None:
    screen = io.StringIO()
    run_staged(Console(file=screen, width=80), np_tiny, tmp_path, plain_every_seconds=1000)
    starts = [line[:5] for line in screen.getvalue().splitlines() if line.startswith("[")]
    assert starts == ["[1/3]", "[2/3]", "[3/3]"]  # the first, one with an evaluation, and the last
    assert "entropy, nats a token" in screen.getvalue()


def test_a_terminal_gets_one_display(np_tiny: object, tmp_path: Path) -> None:
    screen = Screen()
    display = run_staged(make_terminal(screen), np_tiny, tmp_path)
    text = screen.getvalue()
    assert "[1/3]" not in text
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is given back
    console = Console(file=io.StringIO(), width=80)
    console.print(display)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert words(shown, "rollouts × 4") == ["0.412", "0.810", "0.523", "3.10", "1.250", "13.3", "8", "123"]
    assert words(shown, "held-out × 4") == ["0.600", "0.500", "2.60"]
    assert words(shown, "before  ") == ["0.500", "0.400", "2.50"]
    assert "iteration 3 of 3" in shown


def test_forced_colours_do_not_make_a_log_a_terminal(np_tiny: object, tmp_path: Path) -> None:
    screen = io.StringIO()
    run_staged(make_terminal(screen), np_tiny, tmp_path)
    assert "[1/3]" in screen.getvalue()
    assert "\x1b[?25l" not in screen.getvalue()


@pytest.mark.parametrize(
    ("phase", "shown"),
    [("sync", "sample"), ("verify", "verify"), ("annotate", "update"), ("update", "update")],
)
def test_phases(phase: str, shown: str, np_tiny: object) -> None:
    display = ProgressDisplay(1100, 4)
    display._rollout = StagedRollouts(np_tiny)
    display._rollout.phase = phase
    display._iterations = 1
    text = printed(display)
    assert {name for name in ("sample", "verify", "update", "validate") if f"· {name}" not in text} == {shown}
    display._validating = True
    assert "· validate" not in printed(display)
    display._validating, display._iteration = False, 1
    assert all(f"· {name}" in printed(display) for name in ("sample", "verify", "update", "validate"))


def test_the_display_is_gone_when_a_run_fails(np_tiny: object, tmp_path: Path) -> None:
    screen = Screen()

    class Broken(StagedModule):
        def training_step(self, *args: object) -> None:
            raise RuntimeError("broken")

    trainer = staged_trainer(
        tmp_path, [StagedRollouts(np_tiny), ProgressDisplay(1100, 4, console=make_terminal(screen))], 2
    )
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(Broken([TRAIN]), datamodule=StagedData(np_tiny))
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")


def test_a_resumed_display_keeps_the_start() -> None:
    first, second = ProgressDisplay(1100, 4), ProgressDisplay(1100, 4)
    first.remember_start(START)
    first._entropy = [1.0, 0.5]
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
