"""Why an engine's log-probabilities are not the trainer's: hypotheses, each tried on the same tokens.

A hypothesis predicts what the engine should have said if it held; the one whose prediction is close names the
cause.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from distmatch.batch import RolloutBatch
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.scoring import score
from distmatch.ops import masked_mean

DECIDED = 0.5
"""A hypothesis fits when it leaves less than this share of the gap."""

FEWEST_TOKENS = 24
"""On fewer, rounding errors may look like a hypothesis by chance; then only the limit decides."""

SENTENCES: Mapping[str, str] = {
    "adapter_missing": "It runs the base model without the LoRA adapter: the adapter was not pushed, or not "
    "merged into what was pushed",
    "old_weights": "It repeats what it said after the sync before although the policy has changed: the new "
    "weights did not arrive, so look at what `sync` does, and whether a tied lm_head was left out",
    "stale_cache": "It is right about prompts that it has never seen and wrong about those that it has: the "
    "prefix cache was not reset after the sync, so reset it every time",
    "temperature": "It computes at temperature {temperature:.2g} and the trainer at {trained:.2g}: sample "
    "at data.temperature, and report processed log-probabilities (logprobs_mode=processed_logprobs)",
    "shifted": "Tokens and log-probabilities are one place apart: look at how completions are cut out of "
    "what the engine returns",
    "truncated": "It says the same amount more about every token, as when it samples from a part of the "
    "vocabulary only: set top_p=1, top_k=-1, min_p=0 and no min_tokens, penalties or bad words",
    "unknown": "No known cause fits. At a first sync, the weights most probably never reached the engine, "
    "which still runs those that it was started with; if the difference is only arithmetic (a 16-bit or TF32 "
    "engine), say so with callbacks.canary.engine_dtype or callbacks.canary.bound",
}


@dataclass(frozen=True)
class Sequences:
    """Rows with the log-probabilities that both sides gave their tokens.

    Attributes:
        batch: B rows; the engine's are its `sampler_logprobs`.
        trainer: The policy's, (B, T).
    """

    batch: RolloutBatch
    trainer: Tensor

    def gap(self, predicted: Tensor | None = None) -> float:
        """Mean of |engine - predicted| over tokens in nats; `predicted` (B, T) is else the trainer's."""
        expected = self.trainer if predicted is None else predicted
        return mean_gap(self.batch.sampler_logprobs, expected, self.batch.completion_mask)


@dataclass(frozen=True)
class Explanation:
    """What is the matter.

    Attributes:
        cause: A name of `SENTENCES`.
        sentence: The same for the user.
        distances: The gap that each hypothesis leaves, in nats.
    """

    cause: str
    sentence: str
    distances: dict[str, float]


def suspect(policy: LanguageModel, seen: Sequences, temperature: float) -> str | None:
    """A hypothesis that beats the trainer's policy even though the gap may still pass for rounding errors."""
    gaps = {"truncated": _constant(seen)}
    if policy.adapted:
        gaps["adapter_missing"] = _without_adapter(policy, seen, temperature)
    if temperature != 1:
        gaps["temperature"] = seen.gap(score_rows(policy, seen.batch, 1.0))
    best = min(gaps, key=lambda name: gaps[name])
    enough = int(seen.batch.completion_mask.sum()) >= FEWEST_TOKENS
    return best if enough and gaps[best] < DECIDED * seen.gap() else None


def explain(
    policy: LanguageModel,
    worst: Sequences,
    fixed: Sequences,
    last: Sequences | None,
    fresh: Sequences,
    temperature: float,
    limit: float,
) -> Explanation:
    """Try every hypothesis.

    Args:
        policy: The trainer's.
        worst: The rows with the larger gap.
        fixed: Today's answers to the fixed prompts.
        last: Those after the sync before, if there was one.
        fresh: Answers to prompts that the engine has never seen.
        temperature: Of the run.
        limit: The gap that counts as agreement, in nats.
    """
    gap, fitted = worst.gap(), _fit_temperature(policy, worst, temperature)
    gaps = {
        "shifted": _shifted(policy, worst, temperature),
        "truncated": _constant(worst),
        "temperature": worst.gap(score_rows(policy, worst.batch, fitted)),
        "old_weights": math.inf if last is None else _repeats(fixed, last),
        "adapter_missing": _without_adapter(policy, worst, temperature) if policy.adapted else math.inf,
    }
    best = min(gaps, key=lambda name: gaps[name])
    cause = best if gaps[best] < DECIDED * gap else "unknown"
    if gaps["adapter_missing"] <= min(limit, DECIDED * gap):
        cause = "adapter_missing"  # the base repeats itself too, so this comes before old weights
    if fresh.gap() <= min(limit, DECIDED * gap):
        cause = "stale_cache"
    sentence = SENTENCES[cause].format(temperature=fitted, trained=temperature)
    return Explanation(cause, sentence, {"trainer": gap, "stale_cache": fresh.gap(), **gaps})


# ---- hypotheses --------------------------------------------------------------------------------------------


def _without_adapter(policy: LanguageModel, seen: Sequences, temperature: float) -> float:
    with policy.model.disable_adapter():
        return seen.gap(score_rows(policy, seen.batch, temperature))


def _repeats(now: Sequences, last: Sequences) -> float:
    """How far the engine is from what it said before; infinite if it chose other tokens.

    Seeds are fixed, so an engine with old weights draws its old answers. Rows are compared up to the first
    token that differs: a tie may fall otherwise in another batch.
    """
    length = min(now.batch.completion_ids.shape[1], last.batch.completion_ids.shape[1])
    new, old = now.batch, last.batch
    both = new.completion_mask[:, :length] & old.completion_mask[:, :length]
    equal = (new.completion_ids[:, :length] == old.completion_ids[:, :length]) & both
    same = equal.long().cumprod(dim=1).bool()
    if 2 * int(same.sum()) < int(both.sum()):
        return math.inf
    return mean_gap(new.sampler_logprobs[:, :length], old.sampler_logprobs[:, :length], same)


def _constant(seen: Sequences) -> float:
    """What is left when one positive constant is taken off every log-probability of the engine."""
    mask = seen.batch.completion_mask
    shift = (seen.batch.sampler_logprobs - seen.trainer)[mask].median()
    return seen.gap(seen.trainer + shift) if shift > 0 else math.inf


def _shifted(policy: LanguageModel, seen: Sequences, temperature: float) -> float:
    """Log-probabilities one place too early or too late, or completions with a foreign first token."""
    engine, mask = seen.batch.sampler_logprobs, seen.batch.completion_mask
    if engine.shape[1] < 2:
        return math.inf
    both = mask[:, 1:] & mask[:, :-1]
    without_first = dataclasses.replace(
        seen.batch,
        completion_ids=seen.batch.completion_ids.roll(-1, dims=1),
        completion_mask=torch.nn.functional.pad(mask[:, 1:], (0, 1)),
    )
    rescored = score_rows(policy, without_first, temperature)[:, :-1]
    return min(
        mean_gap(engine[:, 1:], seen.trainer[:, :-1], both),
        mean_gap(engine[:, :-1], seen.trainer[:, 1:], both),
        mean_gap(engine[:, :-1], rescored, both),
        mean_gap(engine[:, 1:], rescored, both),
    )


def _fit_temperature(policy: LanguageModel, seen: Sequences, trained: float) -> float:
    """The temperature at which the policy's scores come nearest to the engine's."""
    gaps: dict[float, float] = {}
    centre, step = trained, 2.0
    for spread in (3, 1, 1, 1, 1, 1, 1, 1):  # 1.0 too: raw log-probabilities ignore the temperature
        for tried in [1.0, *(centre * step**k for k in range(-spread, spread + 1))]:
            gaps.setdefault(tried, seen.gap(score_rows(policy, seen.batch, tried)))
        centre, step = min(gaps, key=lambda t: gaps[t]), step**0.5
    return centre


@torch.no_grad()
def score_rows(policy: LanguageModel, batch: RolloutBatch, temperature: float) -> Tensor:
    """The policy's log-probabilities (B, T), one row at a time: long rows must fit beside a training step."""
    return score(policy, batch, temperature, batch.rows, {}).logprobs


def mean_gap(one: Tensor, other: Tensor, mask: Tensor) -> float:
    """Mean of |one - other| over True places; infinite if that is no number."""
    found = float(masked_mean((one - other).abs(), mask))
    return math.inf if math.isnan(found) else found
