"""Dynamic sampling with planned rewards: which groups train, who samples what, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from distmatch.batch import Completions, Totals
from distmatch.callbacks.collection import Collection, collect
from distmatch.callbacks.scored import Rollouts, to_batch
from distmatch.data.rollouts import Query, RolloutDataModule
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.tiny import load_tiny
from distmatch.rewards import Outcome
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Verdict
from distmatch.tasks.lab import Lab
from tests.conftest import SMALL

G = 3
Plan = Callable[[int], Sequence[float]]


def make_data(policy: LanguageModel, **settings: object) -> RolloutDataModule:
    settings = {
        "prompts_per_iteration": 4,
        "group_size": G,
        "max_prompt_tokens": 8,
        "max_tokens": 9,
    } | settings
    return RolloutDataModule(Lab(prompts=2), policy, **settings)


def drawn(queries: Sequence[Query], plan: Plan) -> tuple[Completions, Rollouts]:
    """Completions whose every token is the group's number, as long as that says, with the planned rewards."""
    numbers = [q.group_id for q in queries for _ in range(G)]
    lengths = torch.tensor([1 + number % 5 for number in numbers])
    mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    ids = torch.tensor(numbers)[:, None] * mask
    rewards = [reward for q in queries for reward in plan(q.group_id)]
    outcomes = [Outcome(Verdict(True, True, r, str(r)), True, r, r, 1.0) for r in rewards]
    finished = torch.tensor([[True, True, False][i % G] for i in range(len(numbers))])
    texts = [f"{number}.{i % G}" for i, number in enumerate(numbers)]
    truncated = (~finished).tolist()
    rollouts = Rollouts(0, queries, texts, outcomes, lengths.tolist(), truncated, G)
    return Completions(ids, mask, -ids.float(), finished), rollouts


def every(third: int) -> Plan:
    """Signal in every `third` group only."""
    return lambda number: [0.0, 1.0, 0.5] if number % third == 0 else [0.5] * G


def numbers(rollouts: Rollouts) -> list[int]:
    return [query.group_id for query in rollouts.queries]


def run(data: RolloutDataModule, plan: Plan) -> tuple[Collection, list[list[int]]]:
    """What is collected, and the prompts of every round."""
    rounds: list[list[int]] = []

    def draw(queries: Sequence[Query]) -> tuple[Completions, Rollouts]:
        rounds.append([query.group_id for query in queries])
        return drawn(queries, plan)

    return collect(data, draw, 0, 1), rounds


def test_one_round_takes_what_comes(small_policy: LanguageModel) -> None:
    data = make_data(small_policy)
    found, rounds = run(data, every(100))
    assert rounds == [[0, 1, 2, 3]]
    assert found.batch is found.sampled
    assert found.sampled.trains() == [True] * 4
    assert found.figures == {}


def test_it_samples_on_until_the_batch_is_full(small_policy: LanguageModel) -> None:
    """2 of 4 groups are kept; the 2 that are missing call for 4 prompts, of which 2 are kept."""
    data = make_data(small_policy, max_sampling_rounds=9)
    found, rounds = run(data, every(2))
    assert rounds == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert numbers(found.batch) == [0, 2, 4, 6]
    assert found.figures == {"keep_rate": 0.5, "rounds": 2}
    assert numbers(found.sampled) == list(range(8))
    assert found.sampled.trains() == [True, False] * 4
    assert data.state_dict()["prompts_seen"] == 8


def test_later_rounds_are_no_larger_than_needed(small_policy: LanguageModel) -> None:
    data = make_data(small_policy, prompts_per_iteration=6, max_sampling_rounds=9)
    found, rounds = run(data, lambda n: [0.0, 1.0, 1.0] if n != 3 and n != 6 else [1.0] * G)
    assert [len(part) for part in rounds] == [6, 2]  # 1 missing at 5 of 6 kept
    assert numbers(found.batch) == [0, 1, 2, 4, 5, 7]


def test_surplus_groups_are_set_aside(small_policy: LanguageModel) -> None:
    """The first round keeps one group of four, so the second is a whole one, and more of it has signal."""
    data = make_data(small_policy, max_sampling_rounds=2)
    found, _ = run(data, lambda n: [0.0, 1.0, 1.0] if n == 0 or n >= 4 else [1.0] * G)
    assert numbers(found.batch) == [0, 4, 5, 6]
    assert found.sampled.trains() == [n in (0, 4, 5, 6) for n in range(8)]
    assert found.figures["keep_rate"] == 5 / 8


def test_groups_keep_their_rows(small_policy: LanguageModel) -> None:
    data = make_data(small_policy, max_sampling_rounds=3)
    found, _ = run(data, every(2))
    batch = to_batch(found.batch.queries, found.completions, found.batch, data, torch.device("cpu"))
    for i, number in enumerate((0, 2, 4, 6)):
        rows = slice(G * i, G * i + G)
        length = 1 + number % 5
        assert batch.group_ids[rows].tolist() == [number] * G
        assert batch.completion_mask[rows].sum(dim=1).tolist() == [length] * G
        assert (batch.completion_ids[rows, :length] == number).all()
        assert (batch.sampler_logprobs[rows, :length] == -number).all()
        assert found.batch.texts[rows] == [f"{number}.{k}" for k in range(G)]
        assert batch.rewards[rows].tolist() == [0.0, 1.0, 0.5]
        assert batch.truncated[rows].tolist() == [False, False, True]


@pytest.mark.parametrize(("policy_on", "trains"), [("train_partial", 2), ("keep_flat", 4)])
def test_a_batch_that_is_not_full_is_filled_up(small_policy, policy_on: str, trains: int) -> None:
    """Signal in 0 and 3 of 8; 1 and 2 fill up, in their places in the stream, in or out of denominators."""
    data = make_data(small_policy, max_sampling_rounds=2, on_exhaustion=policy_on)
    found, rounds = run(data, lambda n: [0.0, 1.0, 1.0] if n in (0, 3) else [1.0] * G)
    assert [len(part) for part in rounds] == [4, 4]
    assert numbers(found.batch) == [0, 1, 2, 3]
    batch = to_batch(found.batch.queries, found.completions, found.batch, data, torch.device("cpu"))
    assert batch.totals == Totals.of(batch.loss_mask, G, batch.rewards)
    assert (batch.totals.groups, batch.totals.rows) == (trains, trains * G)
    live = (
        batch.completion_mask
        if trains == 4
        else batch.completion_mask & ~torch.isin(batch.group_ids, torch.tensor([1, 2]))[:, None]
    )
    assert torch.equal(batch.loss_mask, live)
    assert sum(found.sampled.trains()) == trains


@pytest.mark.parametrize("policy_on", ["train_partial", "keep_flat"])
def test_a_task_where_every_group_is_flat(small_policy: LanguageModel, policy_on: str) -> None:
    data = make_data(small_policy, max_sampling_rounds=3, on_exhaustion=policy_on)
    found, rounds = run(data, lambda n: [1.0] * G)
    assert [len(part) for part in rounds] == [4, 4, 4]
    assert found.figures == {"keep_rate": 0.0, "rounds": 3}
    assert found.batch.trains() == [policy_on == "keep_flat"] * 4


def test_stopping_says_what_to_change(small_policy: LanguageModel) -> None:
    data = make_data(small_policy, max_sampling_rounds=2, on_exhaustion="stop")
    with pytest.raises(
        ConfigError, match=r"only 2 of the 8 prompts sampled in 2 rounds .* trains on 4; raise"
    ):
        run(data, lambda n: [0.0, 1.0, 1.0] if n in (0, 3) else [1.0] * G)
    full, _ = run(make_data(small_policy, max_sampling_rounds=2, on_exhaustion="stop"), every(2))
    assert len(numbers(full.batch)) == 4


def test_truncated_rows_make_no_signal_where_they_do_not_train(small_policy: LanguageModel) -> None:
    plan = lambda n: [0.5, 0.5, 0.0]  # noqa: E731  # the third row of a group is truncated
    for masked, keep_rate in ((False, 1.0), (True, 0.0)):
        data = make_data(small_policy, max_sampling_rounds=2, mask_truncated=masked)
        assert run(data, plan)[0].figures["keep_rate"] == keep_rate


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_sampling_rounds": 0}, "data.max_sampling_rounds=0 must be at least 1"),
        ({"max_sampling_rounds": 2, "group_size": 1}, "no rewards can differ; data.group_size is 1"),
        (
            {"on_exhaustion": "train"},
            "data.on_exhaustion='train' must be one of: train_partial, keep_flat, stop",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(small_policy, settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_data(small_policy, **settings)


# ---- two ranks ---------------------------------------------------------------------------------------------

SETTINGS = {"prompts_per_iteration": 8, "updates_per_rollout": 2, "max_sampling_rounds": 3}
PLANS = {"mixed": every(3), "one rank has all the signal": every(2), "flat": every(10**9), "full": every(1)}


def _batches(
    rank: int, world: int
) -> dict[str, tuple[list[int], list[bool], torch.Tensor, dict[str, float], int]]:
    policy, found = load_tiny("random", **SMALL), {}
    for name, plan in PLANS.items():
        data = make_data(policy, **SETTINGS)
        own = collect(data, lambda queries, plan=plan: drawn(queries, plan), rank, world)
        batch = to_batch(own.batch.queries, own.completions, own.batch, data, torch.device("cpu"))
        sums = torch.where(batch.loss_mask, batch.completion_ids, 0).sum(dim=1)
        seen = data.state_dict()["prompts_seen"]
        found[name] = (numbers(own.batch), own.batch.trains(), sums, dict(own.figures), seen)
    return found


def _rank(rank: int, folder: str) -> object:
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=timedelta(seconds=90)
    )
    found = _batches(rank, 2)
    dist.destroy_process_group()
    return found


def _other_rank(_: int, folder: str) -> None:
    torch.save(_rank(1, folder), f"{folder}/1.pt")


def test_two_ranks_collect_what_one_does(tmp_path: Path) -> None:
    """Every mini-batch holds the groups that it holds on one rank, whoever sampled them."""
    other = mp.spawn(_other_rank, args=(str(tmp_path),), nprocs=1, join=False)
    halves = [_rank(0, str(tmp_path))]
    other.join()
    halves.append(torch.load(tmp_path / "1.pt"))
    for name, (groups, trains, sums, figures, seen) in _batches(0, 1).items():
        for update in range(2):
            parts = [half[name] for half in halves]
            share = slice(2 * update, 2 * update + 2)
            whole = slice(4 * update, 4 * update + 4)
            assert [n for part in parts for n in part[0][share]] == groups[whole]
            assert [t for part in parts for t in part[1][share]] == trains[whole]
            together = torch.cat([part[2].view(-1, G)[share] for part in parts])
            assert torch.equal(together, sums.view(-1, G)[whole])
        for half in halves:
            assert half[name][3:] == (figures, seen)
