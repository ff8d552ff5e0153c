"""RolloutDataModule: which prompts come next, and the buffer of rollouts that Lightning trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from distmatch.batch import RolloutBatch
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Instance, Split, Task, derive_seed

STREAM = 10**9
"""Run seed s trains on instances s*STREAM, s*STREAM + 1, ...; evaluation is the same for all seeds."""


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
        seed: The run's seed.

    Raises:
        ValueError: A prompt is over its budget, or prompt and completion together over the model's window.
    """

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
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.task = task
        self.policy = policy
        self.prompts_per_iteration = prompts_per_iteration
        self.updates_per_rollout = updates_per_rollout
        self.max_prompt_tokens = max_prompt_tokens
        self.mask_truncated = mask_truncated
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

    # ---- prompts -------------------------------------------------------------------------------------------

    def next_queries(self, rank: int, world: int) -> list[Query]:
        """This rank's share of the next N prompts, and move on.

        Every mini-batch takes an equal share of each rank, so the same groups meet in an update at any world
        size.
        """
        first = self._prompts_seen
        self._prompts_seen += self.prompts_per_iteration
        share = self.prompts_per_iteration // (self.updates_per_rollout * world)
        places = torch.arange(self.prompts_per_iteration).view(self.updates_per_rollout, world, share)
        mine = places[:, rank].reshape(-1).tolist()
        return [self._query("train", self.seed * STREAM + first + i, first + i) for i in mine]

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
            self._query("train", self.seed * STREAM + index, index)
        self.eval_queries()

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
