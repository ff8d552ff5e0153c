"""Whether the sampling engine runs the trainer's policy, read off the log-probabilities of the same tokens.

After a sync the engine answers a few fixed prompts with fixed seeds; the trainer scores what it answered, and
some rows of the iteration's rollouts, at the sampling temperature. The gap is the mean of |engine - trainer|
over tokens in nats. With one policy on both sides only arithmetic is left in it: the noise floor, measured at
the first check, which must itself lie below a bound that the number formats give.
"""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from distmatch.batch import RolloutBatch
from distmatch.callbacks.sync_causes import (
    Explanation,
    Sequences,
    explain,
    mean_gap,
    score_rows,
    suspect,
)
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import Sampler, SamplingParams
from distmatch.sampling.failure import SamplerFailure
from distmatch.sampling.hf import left_pad
from distmatch.tasks.base import derive_seed

EXACT = 1e-4
"""Float32 on both sides: a gap below this many nats is never suspected, however low the floor was."""
EXACT_BOUND = 1e-3
"""Float32 on both sides: the largest floor that is believed."""
HALF_ROUNDING = 0.04
"""Stands for the rounding error of a policy held in 16 bits, which cannot be measured without a second copy
of it; a 135M model in bfloat16 was measured at 0.03 to 0.04 nats against float32."""
MARGIN = 3.0
"""Limits are this many times what was measured."""


class SyncError(SamplerFailure):
    """The sampling engine does not run the trainer's policy; nothing was trained on its samples.

    Attributes:
        cause: A name of `sync_causes.SENTENCES`.
        distances: Gap in nats under each explanation that was tried.
    """

    def __init__(self, what: str, cause: str, distances: dict[str, float]) -> None:
        super().__init__(what)
        self.cause = cause
        self.distances = distances


@dataclass(frozen=True)
class Report:
    """What one check saw.

    Attributes:
        fixed: Answers to the fixed prompts.
        rollouts: Some rows of this iteration's rollouts, or None.
        limit: The largest gap that is accepted, in nats.
        rounding: Gap between this policy and itself in 16 bits, on these tokens.
        suspect: An explanation that fits decidedly better than the trainer's policy, or None.
    """

    fixed: Sequences
    rollouts: Sequences | None
    limit: float
    rounding: float
    suspect: str | None = None

    @property
    def gap(self) -> float:
        """The larger of both sets' gaps."""
        return max(seen.gap() for seen in self.sets)

    @property
    def sets(self) -> list[Sequences]:
        """What was compared."""
        return [self.fixed] if self.rollouts is None else [self.fixed, self.rollouts]

    @property
    def passed(self) -> bool:
        """Whether the engine may be believed; a gap that is no number fails."""
        return self.gap <= self.limit and self.suspect is None


class SyncCheck:
    """Compares engine and trainer after every sync, and remembers what is normal.

    Args:
        prompts: Fixed prompts; longer than the engine's cache block where the run's own are.
        params: Samples a prompt, their length, and the run's temperature.
        seed: Fixes the samples.
        rows: Rows of the rollouts to look at.
        bound: Accept gaps up to this many nats; None derives a limit from floor and number formats.
        engine_dtype: In which number format the engine computes, by name; `auto` is the policy's, but
            bfloat16 for a float32 policy on a GPU, as `sampler=vllm` has it.
        precision: Makes the context in which the trainer scores, as autocast under bf16-mixed.

    Attributes:
        floor: The gap of the first check in nats, None before it.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        seed: int = 0,
        rows: int = 4,
        bound: float | None = None,
        engine_dtype: str = "auto",
        precision: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        self.prompts = [list(prompt) for prompt in prompts]
        self.params = params
        self.floor: float | None = None
        self.rounding = 0.0
        self._rows = rows
        self._bound = bound
        self._engine_dtype = engine_dtype
        self._precision = precision
        self._last: Sequences | None = None
        self._seeds = [
            derive_seed("canary", seed, i, k) for i in range(len(self.prompts)) for k in range(params.n)
        ]

    def __call__(
        self, policy: LanguageModel, sampler: Sampler, rollouts: RolloutBatch | None = None
    ) -> Report:
        """Look, look closer where something is odd, and remember; for one process.

        Raises:
            SyncError: The engine runs something else than the policy.
        """
        report = self.look(policy, sampler, rollouts)
        if not report.passed:
            report = self.look_again(policy, report)
        if not report.passed:
            raise failure(report, self.explain(policy, sampler, report))
        self.remember(report)
        return report

    def look(self, policy: LanguageModel, sampler: Sampler, rollouts: RolloutBatch | None = None) -> Report:
        """One comparison. Every rank runs the same number of forward passes here, as in all that follows."""
        fixed = self.compare(policy, self.sample(policy, sampler, self.prompts))
        some = None if rollouts is None else self.compare(policy, pick(rollouts, self._rows, self.params))
        report = Report(fixed, some, 0.0, self.rounding)
        if self.floor is None:
            report = dataclasses.replace(report, rounding=self._measure_rounding(policy, report))
            with self._precision():
                found = suspect(policy, fixed, self.params.temperature)
            report = dataclasses.replace(report, suspect=found if report.gap > EXACT else None)
        return dataclasses.replace(report, limit=self._limit(policy, report.rounding))

    def look_again(self, policy: LanguageModel, report: Report) -> Report:
        """The same report with a limit for the policy of today: rounding errors grow with its entropy."""
        rounding = self._measure_rounding(policy, report)
        limit = max(report.limit, self._limit(policy, rounding))
        return dataclasses.replace(report, rounding=rounding, limit=limit)

    def remember(self, report: Report) -> None:
        """Take a report that passed as normal."""
        if self.floor is None:
            self.floor, self.rounding = report.gap, report.rounding
        self._last = report.fixed

    def explain(self, policy: LanguageModel, sampler: Sampler, report: Report) -> Explanation:
        """Which of the known causes fits a report that did not pass."""
        unseen = [_unseen(prompt, self.prompts) for prompt in self.prompts]
        fresh = self.compare(policy, self.sample(policy, sampler, unseen))
        worst = max(report.sets, key=Sequences.gap)
        told = (self.params.temperature, report.limit)
        with self._precision():
            return explain(policy, worst, report.fixed, self._last, fresh, *told)

    # ---- pieces --------------------------------------------------------------------------------------------

    def sample(
        self, policy: LanguageModel, sampler: Sampler, prompts: Sequence[Sequence[int]]
    ) -> RolloutBatch:
        """What the engine answers with the fixed seeds."""
        out = sampler.sample(prompts, self.params, self._seeds)
        ids, mask = left_pad([p for p in prompts for _ in range(self.params.n)], policy.device)
        drawn = (out.ids, out.mask, out.logprobs, ~out.finished)
        return as_rows(ids, mask, *(x.to(policy.device) for x in drawn))

    def compare(self, policy: LanguageModel, batch: RolloutBatch) -> Sequences:
        """The trainer's scores beside the engine's, a row at a time."""
        with self._precision():
            return Sequences(batch, score_rows(policy, batch, self.params.temperature))

    def _measure_rounding(self, policy: LanguageModel, report: Report) -> float:
        if _dtype(policy) != torch.float32:
            return HALF_ROUNDING
        gaps = []
        for seen in report.sets:
            exact = score_rows(policy, seen.batch, self.params.temperature)
            with torch.autocast(policy.device.type, torch.bfloat16):
                rounded = score_rows(policy, seen.batch, self.params.temperature)
            gaps.append(mean_gap(exact, rounded, seen.batch.completion_mask))
        return max(gaps)

    def _limit(self, policy: LanguageModel, rounding: float) -> float:
        if self._bound is not None:
            return self._bound
        exact = self._float32_engine(policy) and self._float32_trainer(policy)
        least, most = (EXACT, EXACT_BOUND) if exact else (rounding, MARGIN * rounding)
        return most if self.floor is None else min(most, max(least, MARGIN * self.floor))

    def _float32_trainer(self, policy: LanguageModel) -> bool:
        with self._precision():
            return _dtype(policy) == torch.float32 and not torch.is_autocast_enabled(policy.device.type)

    def _float32_engine(self, policy: LanguageModel) -> bool:
        if self._engine_dtype == "auto":
            return _dtype(policy) == torch.float32 and policy.device.type != "cuda"
        return self._engine_dtype == "float32"


def failure(report: Report, explanation: Explanation, more: str = "") -> SyncError:
    """The error that a report and its explanation make; `more` continues the text."""
    return SyncError(
        f"the sampling engine does not run the trainer's policy: log-probabilities of the same tokens differ "
        f"by {report.gap:.2g} nats on average (limit {report.limit:.2g}). {explanation.sentence}{more}",
        explanation.cause,
        explanation.distances,
    )


def fixed_prompts(prompts: Sequence[Sequence[int]], count: int, length: int) -> list[list[int]]:
    """`count` prompts of `length` tokens, each a real prompt with the ends of others in front of it.

    Args:
        prompts: At least one real prompt as token ids.
        count: How many.
        length: Tokens of each; a longer prompt loses its beginning.
    """
    made = []
    for place in range(count):
        others = itertools.islice(itertools.cycle(prompts), place, None)
        ids = list(next(others))
        while len(ids) < length:
            ids = [*next(others), *ids]
        made.append(ids[-length:])
    return made


def as_rows(
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    ids: Tensor,
    mask: Tensor,
    logprobs: Tensor,
    truncated: Tensor,
) -> RolloutBatch:
    """Rows on their own, each a group of one without a reward."""
    rows = torch.arange(len(ids), device=ids.device)
    return RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=ids,
        completion_mask=mask,
        loss_mask=mask,
        rewards=torch.zeros(len(ids), device=ids.device),
        group_size=1,
        group_ids=rows,
        truncated=truncated,
        sampler_logprobs=logprobs,
    )


def pick(batch: RolloutBatch, count: int, params: SamplingParams) -> RolloutBatch:
    """Rows spread evenly over a batch, as far as the fixed prompts' answers reach."""
    rows = torch.linspace(0, batch.rows - 1, min(count, batch.rows)).round().long().to(batch.rewards.device)
    prompts = (batch.prompt_ids[rows], batch.prompt_mask[rows])
    drawn = (batch.completion_ids, batch.completion_mask, batch.sampler_logprobs)
    return as_rows(*prompts, *(x[rows, : params.max_tokens] for x in drawn), batch.truncated[rows])


def _dtype(policy: LanguageModel) -> torch.dtype:
    return next(policy.parameters()).dtype


def _unseen(prompt: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[int]:
    """The prompt with another beginning, which no cache can know; its tokens are those of the prompts."""
    tokens = sorted({token for other in prompts for token in other})
    head = [secrets.choice(tokens) for _ in prompt[:4]]  # a server may remember what earlier runs asked
    return [*head, *prompt[4:]]
