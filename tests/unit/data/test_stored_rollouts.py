"""Stored trajectories: read from runs and proposals, refused when they do not fit, streamed and resumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from distmatch.data.rollouts import STREAM
from distmatch.data.stored_rollouts import StoredRolloutDataModule
from distmatch.modules.language_model import LanguageModel
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Task
from distmatch.tasks.np.tsp import TSP

SEED = 3
WRONG = "Answer: [0, 0]"


def line(group: int, text: str, reward: float, *, truncated: bool = False, task: Task | None = None) -> dict:
    instance = (task or TSP()).instance("train", SEED * STREAM + group)
    return {
        "iteration": 0,
        "instance": instance.id,
        "group": group,
        "completion": text,
        "reward": reward,
        "truncated": truncated,
        "trained": False,
    }


def answer(group: int) -> str:
    task = TSP()
    instance = task.instance("train", SEED * STREAM + group)
    return task.format(task.reference(instance).answer)


def write_run(folder: Path, lines: list[dict], rank: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": SEED, "data": {"group_size": 4}}))
    name = f"rollouts-rank{rank}.jsonl" if rank else "rollouts.jsonl"
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in lines))
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Six prompts: a right answer, a wrong one and one that was cut off to each; the last two of rank 1."""
    lines = [
        record
        for group in range(6)
        for record in (
            line(group, answer(group), 1.1),
            line(group, WRONG, 0.1),
            line(group, "Answer: [0", 0.0, truncated=True),
        )
    ]
    write_run(tmp_path / "run", lines[12:], rank=1)
    return write_run(tmp_path / "run", lines[:12])


def write_proposals(folder: Path, policy: LanguageModel, **changes: object) -> Path:
    """Two shards of two prompts with a right answer and one that was cut, as stage=proposals writes them."""
    task = TSP()
    (folder / "shards").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    for number in range(2):
        instance = task.instance("train", 70 + number)
        ids = policy.tokenizer(task.format(task.reference(instance).answer), add_special_tokens=False)[
            "input_ids"
        ]
        right = {
            "ids": [*ids, policy.tokenizer.eos_token_id],
            "finished": True,
            "reward": 1.1,
            "length": len(ids) + 1,
        }
        cut = {"ids": ids[:3], "finished": False, "reward": 0.0, "length": 3}
        shard = {
            "index": number,
            "first": 0,
            "split": "train",
            "address": 70 + number,
            "instance": instance.id,
            "prompt_ids": policy.encode(task.render(instance, "compact")),
            "trajectories": [{**entry, "text": policy.decode(entry["ids"])} for entry in (right, cut)],
        } | changes
        (folder / "shards" / f"shard-0000{number}.jsonl").write_text(json.dumps(shard) + "\n")
    return folder


def data(policy: LanguageModel, path: object, task: Task | None = None, **settings: object):
    given = path if isinstance(path, list) else str(path)
    settings = {"prompts_per_iteration": 4, "max_prompt_tokens": 32, "max_tokens": 14} | settings
    return StoredRolloutDataModule(task or TSP(), policy, given, **settings)


def contents(
    made: StoredRolloutDataModule, iterations: int, rank: int = 0, world: int = 1
) -> list[tuple[str, str]]:
    """Instance and text of all that some iterations train on."""
    found = []
    for _ in range(iterations):
        queries = made.next_queries(rank, world)
        done = made.stored(queries)
        lengths = done.mask.sum(dim=1).tolist()
        texts = [made.policy.decode(ids[:n]) for ids, n in zip(done.ids.tolist(), lengths, strict=True)]
        found += [(q.instance.id, text) for q, text in zip(queries, texts, strict=True)]
    return found


def test_a_pass_holds_every_trajectory_once(small_policy: LanguageModel, run_folder: Path) -> None:
    made = data(small_policy, run_folder, prompts_per_iteration=6)
    first, second = contents(made, 3), contents(made, 3)
    stored = [
        (record["instance"], record["completion"])
        for file in ("rollouts.jsonl", "rollouts-rank1.jsonl")
        for record in map(json.loads, (run_folder / file).read_text().splitlines())
    ]
    assert Counter(first) == Counter(second) == Counter(stored)
    assert first != second != stored


def test_bad_trajectories_are_not_loaded(small_policy: LanguageModel, run_folder: Path) -> None:
    made = data(small_policy, run_folder, min_reward=1.0, prompts_per_iteration=6)
    expected = [(line(group, "", 0)["instance"], answer(group)) for group in range(6)]
    assert sorted(contents(made, 1)) == sorted(expected)


def test_texts_are_spelt_with_eos_unless_they_were_cut(small_policy: LanguageModel, run_folder: Path) -> None:
    made = data(small_policy, run_folder, prompts_per_iteration=18)
    queries = made.next_queries(0, 1)
    done = made.stored(queries)
    last = done.ids.gather(1, done.mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
    eos = small_policy.tokenizer.eos_token_id
    assert torch.equal(last == eos, done.finished)
    assert int(done.finished.sum()) == 12
    assert queries[0].ids == tuple(small_policy.encode(TSP().render(queries[0].instance, "compact")))
    assert len({q.group_id for q in queries}) == 18


@pytest.mark.parametrize("updates", [1, 2])
def test_ranks_share_an_iteration(small_policy: LanguageModel, run_folder: Path, updates: int) -> None:
    settings = {"prompts_per_iteration": 4, "updates_per_rollout": updates}
    whole = contents(data(small_policy, run_folder, **settings), 5)
    halves = [contents(data(small_policy, run_folder, **settings), 5, rank, 2) for rank in range(2)]
    size = 4 // updates
    for start in range(0, 20, size):
        parts = [half[start // 2 : (start + size) // 2] for half in halves]
        assert parts[0] + parts[1] == whole[start : start + size]


def test_the_stream_goes_on_after_a_resume(small_policy: LanguageModel, run_folder: Path) -> None:
    whole = contents(data(small_policy, run_folder), 8)
    first, second = data(small_policy, run_folder), data(small_policy, run_folder)
    assert contents(first, 3) == whole[:12]
    second.load_state_dict(first.state_dict())
    assert contents(second, 5) == whole[12:]
    assert contents(data(small_policy, run_folder, seed=1), 8) != whole


def test_other_trajectories_cannot_take_over_a_checkpoint(small_policy, run_folder: Path) -> None:
    checkpoint = data(small_policy, run_folder).state_dict()
    with pytest.raises(ConfigError, match=r"trained on TSP:.*:trajectories-"):
        data(small_policy, run_folder, min_reward=1.0).load_state_dict(checkpoint)


def test_proposals_keep_their_tokens(small_policy: LanguageModel, tmp_path: Path) -> None:
    folder = write_proposals(tmp_path / "proposals", small_policy)
    made = data(small_policy, folder, prompts_per_iteration=4)
    queries = made.next_queries(0, 1)
    done = made.stored(queries)
    assert sorted(done.mask.sum(dim=1).tolist()) == [3, 3, 11, 11]
    assert {q.instance.index for q in queries} == {70, 71}
    assert torch.equal(done.finished, done.mask.sum(dim=1) == 11)
    assert len(contents(data(small_policy, folder, min_reward=1.0, prompts_per_iteration=2), 1)) == 2


def test_several_folders_are_one_store(small_policy: LanguageModel, run_folder: Path, tmp_path: Path) -> None:
    proposals = write_proposals(tmp_path / "proposals", small_policy)
    made = data(small_policy, [str(run_folder), str(proposals)], prompts_per_iteration=22)
    assert len(set(contents(made, 1))) == 22


def test_what_a_killed_run_left_half_is_passed_over(small_policy: LanguageModel, run_folder: Path) -> None:
    file = run_folder / "rollouts.jsonl"
    file.write_text(file.read_text() + '{"iteration": 1, "inst')
    assert len(contents(data(small_policy, run_folder, prompts_per_iteration=18), 1)) == 18


# ---- refusals ----------------------------------------------------------------------------------------------


def broken(run: Path, proposals: Path) -> dict[str, tuple[Callable[[], object], str]]:
    """Ways to break a run's folder, and what is said."""
    file = run / "rollouts.jsonl"
    records = [json.loads(text) for text in file.read_text().splitlines()]
    odd = line(0, "Answer:  [ 0,1 ]", 1.1)
    return {
        "empty": (lambda: file.write_text(""), "there is no trajectory in it"),
        "gone": (file.unlink, "holds no trajectories: neither rollouts.jsonl of a run nor manifest.json"),
        "no config": ((run / "config.yaml").unlink, "has no config.yaml"),
        "json": (lambda: file.write_text(file.read_text() + "{]\n"), "rollouts.jsonl, line 13, is damaged"),
        "field": (lambda: write_run(run, [{"group": 1}]), r"line 1, is no trajectory: KeyError 'instance'"),
        "unreadable": (
            lambda: write_run(run, [odd]),
            "with another tokenizer: 'Answer:  .* reads back as 'Answer: ",
        ),
        "words": (lambda: write_run(run, [line(0, "Heureka", 1.1)]), "with another tokenizer: 'Heureka'"),
        "elsewhere": (
            lambda: write_run(run, [records[0] | {"group": 1}]),
            "line 1, answers tsp-tiny-train-.* where this run's task has tsp-tiny-train-",
        ),
        "long": (
            lambda: write_run(run, [line(0, "Answer: " + "[" * 20, 1.1)]),
            "has a completion of 22 tokens; data.max_tokens=14",
        ),
    }


NAMES = ["empty", "gone", "no config", "json", "field", "unreadable", "words", "elsewhere", "long"]


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_trained_on_is_refused(
    small_policy, run_folder: Path, tmp_path: Path, name: str
) -> None:
    (run_folder / "rollouts-rank1.jsonl").unlink()
    spoil, words = broken(run_folder, tmp_path)[name]
    spoil()
    with pytest.raises(ConfigError, match=words):
        data(small_policy, run_folder)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"min_reward": 1.2},
            "none of the 18 trajectories reaches it, the best has 1.1; lower algo.min_reward",
        ),
        ({"group_size": 4}, "data.group_size=4 must be 1"),
        ({"max_tokens": 10}, "has a completion of 11 tokens; data.max_tokens=10"),
        ({"max_prompt_tokens": 16}, "over data.max_prompt_tokens=16"),
        ({"task": TSP(seed=1)}, "choose the task, level and task.seed"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    small_policy, run_folder: Path, settings: dict, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        data(small_policy, run_folder, **settings)


def test_a_missing_folder_and_a_run_on_stored_trajectories_are_refused(
    small_policy, run_folder: Path
) -> None:
    with pytest.raises(ConfigError, match=r"data\.path=/nowhere: there is no such folder"):
        data(small_policy, "/nowhere")
    (run_folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "data": {"path": "logs/source"}}))
    with pytest.raises(ConfigError, match="give their source: logs/source"):
        data(small_policy, run_folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_ids": [1, 2]}, "spells the prompt of tsp-tiny-train.* another tokenizer or prompt style"),
        ({"split": "test"}, "answers a prompt of the split test"),
        (
            {"instance": "tsp-small-train-s0-70-0"},
            "answers tsp-small-train-s0-70-0, where this run's task has",
        ),
        (
            {"trajectories": [{"ids": [5], "text": "?", "finished": True, "reward": 1}]},
            "with another tokenizer",
        ),
        ({"trajectories": 3}, "is no trajectory: TypeError"),
    ],
)
def test_proposals_of_another_model_or_task_are_refused(
    small_policy, tmp_path, changes: dict, words: str
) -> None:
    folder = write_proposals(tmp_path / "proposals", small_policy, **changes)
    with pytest.raises(ConfigError, match=words):
        data(small_policy, folder)
