"""The bench for losses: what it says in words, and a whole pass on a short lab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distmatch.check import contract, judge
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.study.loss_cost import loss_cost

ROOT = Path(__file__).parents[2]


def row(**changes: float) -> dict[str, float]:
    start = {"reward": 0.2, "modes": 2.0, "entropy": 0.1, "kl_target_policy": 1.0, "best_strings": 8.0}
    return start | changes


@pytest.mark.parametrize(
    ("end", "stated", "words", "right"),
    [
        (row(reward=0.99, modes=1.0), None, "collapses: keeps 1.0 of 8", True),
        (row(reward=0.99, modes=6.2), None, "learns, and keeps 6.2 of 8", True),
        (row(reward=0.4, modes=0.5, entropy=4.4), None, "learns, and keeps 0.5 of 8", True),  # not there yet
        (row(reward=0.2), None, "does not learn here", True),
        (row(reward=0.75, kl_target_policy=0.01), 6.0, "reaches its stated target", True),
        (row(reward=0.75, kl_target_policy=0.2), 6.0, "misses its stated target", False),
        (row(reward=1.0, modes=1.0, best_strings=1.0), None, "learns, and keeps 1.0 of 1", True),
    ],
)
def test_says_in_words_what_happened(
    end: dict[str, float], stated: float | None, words: str, right: bool
) -> None:
    says, is_right = judge([end], [row()], stated)
    assert words in says and is_right is right


def test_the_worst_seed_decides_whether_a_target_is_reached() -> None:
    ends = [row(kl_target_policy=0.01), row(kl_target_policy=0.4)]
    assert not judge(ends, [row(), row()], 6.0)[1]


def test_a_call_of_a_loss_costs_little_beside_an_update() -> None:
    cost = loss_cost(GRPOLoss(), rows=16, tokens=64, rounds=1)
    assert 0 < cost.loss < cost.update
    assert cost.share == cost.loss / cost.update


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["algo=grpo", "iterations=3"], 0, "verdict"),
        (["algo=vargrad", "algo.beta=6", "iterations=3"], 1, "misses its stated target"),
        (["algo=gorp"], 2, "Did you mean algo=grpo?"),
        (["algo=grpo", "task=tsp"], 2, "task=tsp cannot be enumerated"),
        (["algo=grpo", "task.length=30"], 2, "lower one of them"),
        (["algo=pass_at_k", "group_size=2"], 2, "group_size=2 must be at least 3"),
        (
            ["algo=custom", "algo._target_=pathlib.PurePath"],
            2,
            "must be a subclass of distmatch",
        ),
        (["algo=disa", "iterations=3"], 0, "log Z     exact"),
        pytest.param(
            ["algo=grpo", "iterations=3", "group_size=7", "cost=true"],
            0,
            "ms a call at 126 x 512 tokens",
            marks=pytest.mark.slow,
        ),
        (
            ["algo=custom", f"algo._target_={GRPOLoss.__module__}.GRPOLoss", "iterations=3", "contract=true"],
            0,
            "contract  NOT RUN",
        ),
        ([], 2, "algo must be given: add algo=<name>"),
        (["--help"], 0, "python -m distmatch.check algo=dmpo"),
    ],
)
def test_the_command(arguments: list[str], status: int, says: str) -> None:
    short = ["cost=false", "contract=false", "jobs=1", "seeds=[0]", "groups=2"]
    done = subprocess.run(
        [sys.executable, "-m", "distmatch.check", *short, *arguments],  # the later of two counts
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stdout + done.stderr


def test_the_contract_is_that_of_the_algorithm_named_and_of_no_longer_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert contract("pass_at_k")
    says = capsys.readouterr().out
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/contracts/test_losses.py", "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    own = sum("[pass_at_k]" in line or "[pass_at_k-" in line for line in listed.splitlines())
    assert says.startswith(f"contract  {own} passed")
