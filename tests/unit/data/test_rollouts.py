"""The stream of prompts: split by rank, resumed by a counter, refused when it does not fit."""

from __future__ import annotations

import pytest

from distmatch.data.demonstrations import Demonstrations
from distmatch.data.rollouts import RolloutDataModule
from distmatch.modules.language_model import LanguageModel
from distmatch.tasks.lab import Lab
from distmatch.tasks.np.tsp import TSP
from tests.builders import make_batch


def data(policy: LanguageModel, task=None, **settings) -> RolloutDataModule:
    settings = {
        "prompts_per_iteration": 12,
        "group_size": 4,
        "max_prompt_tokens": 32,
        "max_tokens": 9,
    } | settings
    return RolloutDataModule(task or TSP(), policy, **settings)


@pytest.mark.parametrize("updates", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_every_update_sees_the_same_prompts_at_any_world_size(small_policy, updates, world) -> None:
    whole = [q.group_id for q in data(small_policy, updates_per_rollout=updates).next_queries(0, 1)]
    shares = [
        data(small_policy, updates_per_rollout=updates).next_queries(rank, world) for rank in range(world)
    ]
    size = 12 // updates
    for update in range(updates):
        part = size // world
        seen = [q.group_id for share in shares for q in share[update * part : (update + 1) * part]]
        assert seen == whole[update * size : (update + 1) * size]


def test_the_stream_goes_on_after_a_resume_and_never_repeats(small_policy) -> None:
    first = data(small_policy)
    seen = [q.instance.id for _ in range(3) for q in first.next_queries(0, 1)]
    assert len(set(seen)) == 36
    resumed = data(small_policy)
    resumed.load_state_dict(first.state_dict())
    assert [q.group_id for q in resumed.next_queries(0, 1)] == list(range(36, 48))


def test_other_seeds_train_on_other_prompts_and_are_measured_on_the_same(small_policy) -> None:
    one, two = data(small_policy, seed=1, eval_prompts=8), data(small_policy, seed=2, eval_prompts=8)
    assert {q.instance.id for q in one.next_queries(0, 1)}.isdisjoint(
        q.instance.id for q in two.next_queries(0, 1)
    )
    assert one.eval_queries() == two.eval_queries()
    assert one.sample_seeds(one.eval_queries(), "eval", 2) != two.sample_seeds(two.eval_queries(), "eval", 2)


def test_held_out_prompts_are_split_by_rank_without_loss(small_policy) -> None:
    parts = [data(small_policy, eval_prompts=7).eval_queries(rank, 3) for rank in range(3)]
    assert sorted(q.group_id for part in parts for q in part) == list(range(7))


def test_seeds_of_rows_do_not_depend_on_rank_or_order(small_policy) -> None:
    made = data(small_policy)
    queries = made.next_queries(0, 1)
    forwards = made.sample_seeds(queries, "train", 4)
    backwards = made.sample_seeds(queries[::-1], "train", 4)
    assert forwards[:4] == backwards[-4:]
    assert len(set(forwards)) == 48
    assert made.sample_seeds(queries, "eval", 4) != forwards


def test_the_same_problem_twice_keeps_two_groups(small_policy) -> None:
    queries = data(small_policy, Lab(prompts=2)).next_queries(0, 1)
    assert len({q.instance.id for q in queries}) == 2
    assert len({q.group_id for q in queries}) == 12


def test_another_task_cannot_take_over_a_checkpoint(small_policy) -> None:
    with pytest.raises(ValueError, match=r"trained on TSP:tsp-tiny-train.*this run's task is Lab:lab"):
        data(small_policy, Lab()).load_state_dict(data(small_policy).state_dict())
    with pytest.raises(ValueError, match="resume with the task and seed"):
        data(small_policy, seed=1).load_state_dict(data(small_policy).state_dict())


def test_prompts_over_budget_are_refused_before_sampling(small_policy) -> None:
    with pytest.raises(ValueError, match=r"has 17 tokens, over data.max_prompt_tokens=16"):
        data(small_policy, max_prompt_tokens=16).check_prompts()
    data(small_policy, max_prompt_tokens=17).check_prompts()


def test_the_window_holds_prompt_and_completion(small_policy) -> None:
    with pytest.raises(ValueError, match="exceed the model's window of 128 tokens"):
        data(small_policy, max_prompt_tokens=100, max_tokens=29)


def test_mini_batches_are_whole_groups(small_policy) -> None:
    made = data(small_policy, updates_per_rollout=3)
    made.fill(make_batch(groups=12, group_size=4), iteration=5)
    parts = list(made.train_dataloader())
    assert [part.group_ids.unique().tolist() for part in parts] == [
        [100 + u * 4 + g for g in range(4)] for u in range(3)
    ]
    assert made.buffered_iteration() == 5


def test_demonstrations_are_the_same_in_any_order_and_end_with_eos(small_policy) -> None:
    made = Demonstrations(TSP(), small_policy, batch_size=4, steps=3, seed=0)
    again = Demonstrations(TSP(), small_policy, batch_size=4, steps=3, seed=0)
    late, early = made[2], made[0]
    assert (again[0].ids == early.ids).all()
    assert (again[2].ids == late.ids).all()
    assert len(made) == 3
    with pytest.raises(IndexError):
        made[3]
    for ids, target in zip(early.ids, early.target, strict=True):
        assert ids[target][-1] == small_policy.tokenizer.eos_token_id
        assert small_policy.decode(ids[target].tolist()).startswith("Answer: [0")
