"""StoredRolloutDataModule: training on trajectories that were sampled before, by whatever policy."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from distmatch.batch import Completions
from distmatch.data.rollouts import Query, RolloutDataModule
from distmatch.data.trajectories import Record, read_records
from distmatch.modules.language_model import LanguageModel
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Split, Task, derive_seed


@dataclass(frozen=True)
class Trajectory:
    """A stored answer, ready to be trained on.

    Attributes:
        query: What it answers.
        ids: Its tokens, EOS included if it ended by itself, (T,) int32.
        finished: Whether it did.
    """

    query: Query
    ids: Tensor
    finished: bool


class StoredRolloutDataModule(RolloutDataModule):
    """Like `RolloutDataModule`, but an iteration's completions come from files.

    Every trajectory is a group of one, so that those below `min_reward` need not be loaded. They are shuffled
    anew for every pass, in an order that follows from the run's seed and the number of the pass alone; the
    position is the counter of the base class, saved with the checkpoint. Rewards are computed again with this
    run's reward when a trajectory is trained on; held-out prompts are sampled as in every run.

    Trajectories of which only the text was kept are spelt by this run's tokenizer, plus EOS if they ended by
    themselves. This may be another spelling than the one that was sampled; it is checked that it reads back
    as the same text.

    Args:
        task: The task whose instances the trajectories answer.
        policy: Encodes prompts, and completions of which only the text was kept.
        path: The folder of a finished run or of proposals, or several.
        min_reward: Trajectories whose stored reward is lower are left out; None takes all.
        prompts_per_iteration: Trajectories per iteration over all ranks.
        group_size: 1.
        updates_per_rollout: Optimizer steps per iteration.
        max_prompt_tokens: Longer prompts are refused.
        max_tokens: Longer trajectories are refused; also the length limit of held-out completions.
        temperature: Of held-out samples, and of the policy that is fitted.
        eval_prompts: Held-out prompts of each evaluation.
        eval_samples: Completions per held-out prompt.
        eval_split: `val` or `test`.
        seed: The run's seed.

    Raises:
        ConfigError: Nothing is there to train on, or it belongs to another task, tokenizer or prompt style.
        ValueError: As in the base class, or groups of more than one.
    """

    offline: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        policy: LanguageModel,
        path: str | Sequence[str],
        prompts_per_iteration: int,
        min_reward: float | None = None,
        group_size: int = 1,
        updates_per_rollout: int = 1,
        max_prompt_tokens: int = 2048,
        max_tokens: int = 2048,
        temperature: float = 1.0,
        eval_prompts: int = 128,
        eval_samples: int = 16,
        eval_split: Split = "val",
        seed: int = 0,
    ) -> None:
        if group_size != 1:
            raise ValueError(f"data.group_size={group_size} must be 1: a stored trajectory is its own group")
        super().__init__(
            task,
            policy,
            prompts_per_iteration,
            group_size,
            updates_per_rollout,
            max_prompt_tokens,
            max_tokens,
            temperature,
            eval_prompts,
            eval_samples,
            eval_split,
            seed=seed,
        )
        folders = [Path(folder).expanduser() for folder in ([path] if isinstance(path, str) else path)]
        self._trajectories = self._load(folders, min_reward)
        self._order = cache(self._shuffled)

    # ---- loading -------------------------------------------------------------------------------------------

    def _load(self, folders: Sequence[Path], min_reward: float | None) -> list[Trajectory]:
        records = [record for folder in folders for record in read_records(folder)]
        if not records:
            raise ConfigError(f"data.path={', '.join(map(str, folders))}: there is no trajectory in it")
        kept = [r for r in records if min_reward is None or r.reward >= min_reward]
        if not kept:
            raise ConfigError(
                f"min_reward={min_reward}: none of the {len(records)} trajectories reaches it, the best has "
                f"{max(r.reward for r in records):.3g}; lower algo.min_reward (data.min_reward follows it)"
            )
        queries: dict[tuple[str, int], Query] = {}
        return [self._trajectory(record, queries) for record in kept]

    def _trajectory(self, record: Record, queries: dict[tuple[str, int], Query]) -> Trajectory:
        address = (record.split, record.index)
        if address not in queries:
            queries[address] = self._answered(record)
        ids = self._spelt(record) if record.ids is None else record.ids
        if self.policy.decode(ids) != record.text:
            raise ConfigError(
                f"{record.place} was written with another tokenizer: {record.text[:60]!r} reads back as "
                f"{self.policy.decode(ids)[:60]!r}; train a model with the tokenizer of the one that wrote it"
            )
        if not 1 <= len(ids) <= self.sampling.max_tokens:
            raise ConfigError(
                f"{record.place} has a completion of {len(ids)} tokens; data.max_tokens="
                f"{self.sampling.max_tokens} must be at least that, and a completion not empty"
            )
        return Trajectory(queries[address], torch.tensor(ids, dtype=torch.int32), record.finished)

    def _answered(self, record: Record) -> Query:
        """The prompt that a trajectory answers, if this run's task has it and spells it alike."""
        if record.split != "train":
            raise ConfigError(
                f"{record.place} answers a prompt of the split {record.split}; only those of train may train"
            )
        query = self._query(record.split, record.index, 0)
        if query.instance.id != record.instance:
            raise ConfigError(
                f"{record.place} answers {record.instance}, where this run's task has {query.instance.id}; "
                "choose the task, level and task.seed with which the trajectories were sampled"
            )
        if record.prompt_ids is not None and tuple(record.prompt_ids) != query.ids:
            raise ConfigError(
                f"{record.place} spells the prompt of {record.instance} in other token ids than this model: "
                "it was sampled with another tokenizer or prompt style; choose that model"
            )
        return query

    def _spelt(self, record: Record) -> list[int]:
        ids = list(self.policy.tokenizer(record.text, add_special_tokens=False)["input_ids"])
        return [*ids, self.policy.tokenizer.eos_token_id] if record.finished else ids

    # ---- what the rollout callback asks for ----------------------------------------------------------------

    def stored(self, queries: Sequence[Query]) -> Completions:
        """The trajectories behind some queries; their log-probabilities are not known and given as 0."""
        chosen = [self._at(query.group_id) for query in queries]
        lengths = torch.tensor([len(trajectory.ids) for trajectory in chosen])
        ids = torch.nn.utils.rnn.pad_sequence([t.ids for t in chosen], batch_first=True).long()
        mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
        finished = torch.tensor([trajectory.finished for trajectory in chosen])
        return Completions(ids, mask, torch.zeros(ids.shape), finished)

    def check_prompts(self, count: int = 64) -> None:
        """Training prompts were checked when they were loaded; held-out ones are here."""
        self.eval_queries()

    def fingerprint(self) -> str:
        """That of the task, and of the trajectories in their order."""
        digest = hashlib.sha256()
        for trajectory in self._trajectories:
            digest.update(trajectory.query.instance.id.encode())
            digest.update(trajectory.ids.numpy().tobytes() + bytes([trajectory.finished]))
        return f"{super().fingerprint()}:trajectories-{digest.hexdigest()[:12]}"

    # ---- the stream ----------------------------------------------------------------------------------------

    def _train_query(self, number: int) -> Query:
        return dataclasses.replace(self._at(number).query, group_id=number)

    def _at(self, number: int) -> Trajectory:
        """The trajectory at a position of the endless stream of passes over all of them."""
        turn, place = divmod(number, len(self._trajectories))
        return self._trajectories[self._order(turn)[place]]

    def _shuffled(self, turn: int) -> list[int]:
        generator = torch.Generator().manual_seed(derive_seed("stored", self.seed, turn))
        return torch.randperm(len(self._trajectories), generator=generator).tolist()
