"""RolloutDataModule: which prompts come next, and the buffer of rollouts that Lightning trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from distmatch.batch import Completions, RolloutBatch
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Instance, Split, Task, derive_seed

STREAM = 10**9
"""Run seed s trains on instances s*STREAM, s*STREAM + 1, ...; evaluation is the same for all seeds."""
Exhaustion = Literal["train_partial", "keep_flat", "stop"]
"""What dynamic sampling does when its rounds are used up and groups with signal are missing."""


@dataclass(frozen=True)
class Query:
    """One prompt to sample a group for.

    Attributes:
        instance: The problem.
        ids: The rendered prompt as token ids.
        group_id: Its number in the run's stream of prompts; unique even when a problem comes twice.
    """

    instance: Instance
    ids: tuple[int, ...]
    group_id: int


class RolloutDataModule(LightningDataModule):
    """Common to all algorithms: hands out prompts by rank and serves the current iteration's mini-batches.

    Nothing here depends on epochs or loader state: the position is one counter of prompts, saved with the
    checkpoint.

    Args:
        task: Where instances come from.
        policy: Encodes prompts.
        prompts_per_iteration: N over all ranks.
        group_size: G, completions per prompt.
        updates_per_rollout: Optimizer steps per iteration; each sees N / updates_per_rollout whole groups.
        max_prompt_tokens: Longer prompts are refused.
        max_tokens: Length limit of a completion.
        temperature: Of training and evaluation samples alike.
        eval_prompts: Held-out prompts of each evaluation.
        eval_samples: Completions per held-out prompt.
        eval_split: `val` or `test`.
        mask_truncated: Leave completions that were cut at `max_tokens` out of the loss.
        max_sampling_rounds: Dynamic sampling: groups of equal rewards are set aside and further prompts are
            sampled, until N groups are together or so many rounds, of at most N prompts each, were made. 1 is
            off.
        on_exhaustion: What then fills up a batch that is not full: `train_partial` takes groups of equal
            rewards, outside the loss, `keep_flat` trains on them too, `stop` ends the run.
        seed: The run's seed.

    Attributes:
        offline: Whether training completions are stored and not sampled.

    Raises:
        ValueError: A prompt is over its budget, prompt and completion together are over the model's window,
            or dynamic sampling cannot work.
    """

    offline: ClassVar[bool] = False

    def __init__(
        self,
        task: Task,
        policy: LanguageModel,
        prompts_per_iteration: int,
        group_size: int,
        updates_per_rollout: int = 1,
        max_prompt_tokens: int = 2048,
        max_tokens: int = 2048,
        temperature: float = 1.0,
        eval_prompts: int = 128,
        eval_samples: int = 16,
        eval_split: Split = "val",
        mask_truncated: bool = False,
        max_sampling_rounds: int = 1,
        on_exhaustion: Exhaustion = "train_partial",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.task = task
        self.policy = policy
        self.prompts_per_iteration = prompts_per_iteration
        self.updates_per_rollout = updates_per_rollout
        self.max_prompt_tokens = max_prompt_tokens
        self.mask_truncated = mask_truncated
        self.max_sampling_rounds = max_sampling_rounds
        self.on_exhaustion: Exhaustion = on_exhaustion
        self.seed = seed
        self.sampling = SamplingParams(n=group_size, max_tokens=max_tokens, temperature=temperature)
        self.eval_sampling = SamplingParams(n=eval_samples, max_tokens=max_tokens, temperature=temperature)
        self._eval_address = (eval_split, eval_prompts)
        self._eval_queries: list[Query] = []
        self._prompts_seen = 0
        self._buffer = Buffer(updates_per_rollout)
        self._scored: list[Any] = []
        if max_prompt_tokens + max_tokens > policy.window:
            raise ValueError(
                f"data.max_prompt_tokens={max_prompt_tokens} plus data.max_tokens={max_tokens} exceed the "
                f"model's window of {policy.window} tokens; lower one of them"
            )
        if on_exhaustion not in get_args(Exhaustion):
            raise ValueError(
                f"data.on_exhaustion={on_exhaustion!r} must be one of: {', '.join(get_args(Exhaustion))}"
            )
        if max_sampling_rounds < 1 or (max_sampling_rounds > 1 and group_size == 1):
            raise ValueError(
                f"data.max_sampling_rounds={max_sampling_rounds} must be at least 1, and 1 for "
                f"data.group_size=1, in which no rewards can differ; data.group_size is {group_size}"
            )

    # ---- prompts -------------------------------------------------------------------------------------------

    def next_queries(self, rank: int, world: int) -> list[Query]:
        """This rank's share of the next N prompts, and move on.

        Every mini-batch takes an equal share of each rank, so the same groups meet in an update at any world
        size.
        """
        first = self._prompts_seen
        self._prompts_seen += self.prompts_per_iteration
        return [self._train_query(first + place) for place in self.places(rank, world)]

    def more_queries(self, count: int, rank: int, world: int) -> list[Query]:
        """This rank's share of the next `count` prompts of the stream, and move on; it may be empty."""
        first = self._prompts_seen
        self._prompts_seen += count
        return [self._train_query(number) for number in range(first + rank, first + count, world)]

    def places(self, rank: int, world: int) -> list[int]:
        """Which of an iteration's N groups a rank trains on, in the order of its mini-batches."""
        share = self.prompts_per_iteration // (self.updates_per_rollout * world)
        places = torch.arange(self.prompts_per_iteration).view(self.updates_per_rollout, world, share)
        return places[:, rank].reshape(-1).tolist()

    def stored(self, queries: Sequence[Query]) -> Completions:
        """The completions of some training queries, where they are not to be sampled (`offline`)."""
        raise NotImplementedError(f"{type(self).__name__} stores no completions")

    def eval_queries(self, rank: int = 0, world: int = 1) -> list[Query]:
        """This rank's share of the held-out prompts: always the same ones, for every run seed."""
        if not self._eval_queries:
            split, count = self._eval_address
            self._eval_queries = [self._query(split, i, i) for i in range(count)]
        return self._eval_queries[rank::world]

    def sample_seeds(self, queries: Sequence[Query], purpose: str, n: int) -> list[int]:
        """One seed a row, from the run's seed, the prompt's number and the sample's alone."""
        return [derive_seed(purpose, self.seed, q.group_id, k) for q in queries for k in range(n)]

    def check_prompts(self, count: int = 64) -> None:
        """Render the first training and the held-out prompts, and refuse any over budget."""
        for index in range(count):
            self._train_query(index)
        self.eval_queries()

    def _train_query(self, number: int) -> Query:
        return self._query("train", self.seed * STREAM + number, number)

    def _query(self, split: Split, index: int, group_id: int) -> Query:
        instance = self.task.instance(split, index)
        ids = self.policy.encode(self.task.render(instance, self.policy.style))
        if len(ids) > self.max_prompt_tokens:
            raise ValueError(
                f"the prompt of {instance.id} has {len(ids)} tokens, over data.max_prompt_tokens="
                f"{self.max_prompt_tokens}; raise it (data=chat has room for natural prompts) or choose an "
                "easier task.level"
            )
        return Query(instance, tuple(ids), group_id)

    # ---- what Lightning trains on --------------------------------------------------------------------------

    def fill(self, batch: RolloutBatch, iteration: int) -> None:
        """Replace the buffer by this iteration's rollouts, cut into mini-batches of whole groups."""
        self._buffer.fill(batch, iteration)

    def fill_validation(self, scored: list[Any]) -> None:
        """Replace the scored held-out groups that the validation loop will count."""
        self._scored[:] = scored

    def train_dataloader(self) -> DataLoader[RolloutBatch]:
        """Map-style, of known length: an iterable would be fetched before this iteration has sampled."""
        return DataLoader(self._buffer, batch_size=None, shuffle=False, num_workers=0)

    def val_dataloader(self) -> DataLoader[Any]:
        """One batch: all scored groups of this rank."""
        return DataLoader(_Scored(self._scored), batch_size=None, num_workers=0)

    def buffered_iteration(self) -> int:
        """The iteration that the buffer belongs to; -1 before the first."""
        return self._buffer.iteration

    # ---- resume --------------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """Identifies the stream of prompts: a resumed run must continue the same one."""
        count = len(self.task.categories())  # a mixture shows each member within its first few instances
        first = [self.task.instance("train", self.seed * STREAM + index) for index in range(count)]
        return f"{type(self.task).__name__}:{'+'.join(i.id for i in first)}:seed{self.seed}"

    def state_dict(self) -> dict[str, Any]:
        """Position in the stream of prompts, as plain JSON values."""
        return {"prompts_seen": self._prompts_seen, "fingerprint": self.fingerprint()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint stood.

        Raises:
            ConfigError: The checkpoint was made with another task, level or seed.
        """
        if state_dict["fingerprint"] != self.fingerprint():
            raise ConfigError(
                f"the checkpoint was trained on {state_dict['fingerprint']}, this run's task is "
                f"{self.fingerprint()}; resume with the task and seed that the run was started with"
            )
        self._prompts_seen = int(state_dict["prompts_seen"])


class Buffer(Dataset[RolloutBatch]):
    """The current iteration's mini-batches; its length is known before it is filled."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.iteration = -1
        self._parts: list[RolloutBatch] = []

    def fill(self, batch: RolloutBatch, iteration: int) -> None:
        """Cut `batch` into `updates` parts of consecutive whole groups."""
        groups = torch.arange(batch.groups, device=batch.completion_ids.device)
        self._parts = [batch.select_groups(part) for part in groups.view(self.updates, -1)]
        self.iteration = iteration

    def __len__(self) -> int:
        return self.updates

    def __getitem__(self, index: int) -> RolloutBatch:
        return self._parts[index]


class _Scored(Dataset[Any]):
    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> list[Any]:
        return self._groups
