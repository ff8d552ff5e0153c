"""Dynamic sampling: prompts are sampled until enough groups have signal, or the rounds are used up.

A group whose rewards are all equal tells a policy gradient nothing. DAPO (arXiv 2503.14476, section 3.2) sets
such groups aside and samples further prompts. Here every rank samples its share of a round; then all ranks
tell each other which groups have signal, choose the same N groups in the order of the stream of prompts, and
hand over those that another rank trains on. So each rank calls the same collectives, whatever it has found
itself, and the groups of an update do not depend on the number of ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import torch
import torch.distributed

from distmatch.batch import Completions
from distmatch.callbacks.scored import Rollouts
from distmatch.data.rollouts import Query, RolloutDataModule
from distmatch.ops import flat_groups
from distmatch.sampling.hf import join_completions
from distmatch.settings.errors import ConfigError

Group = tuple[Completions, Rollouts]
"""The G completions of one prompt, on the CPU, and what they are worth."""
Draw = Callable[[Sequence[Query]], tuple[Completions, Rollouts]]
"""Samples and scores G completions of each of some prompts."""
T = TypeVar("T")


@dataclass(frozen=True)
class Collection:
    """What one iteration trains on, and what was sampled for it, on this rank.

    Attributes:
        completions: Of the batch.
        batch: The same, scored: N / ranks groups.
        sampled: All groups that this rank sampled, in that order.
        figures: Over all ranks, under the names of `rollout/*`.
    """

    completions: Completions
    batch: Rollouts
    sampled: Rollouts
    figures: Mapping[str, float] = field(default_factory=dict)


def collect(data: RolloutDataModule, draw: Draw, rank: int, world: int) -> Collection:
    """One iteration's groups: from one round, or with `data.max_sampling_rounds` above 1 as many as it takes.

    Raises:
        ConfigError: Too few groups have signal and `data.on_exhaustion` is `stop`; on all ranks alike.
    """
    queries = data.next_queries(rank, world)
    if data.max_sampling_rounds == 1:
        completions, rollouts = draw(queries)
        return Collection(completions, rollouts, rollouts)
    own: dict[int, Group] = {}
    signal: dict[int, bool] = {}  # of the groups of all ranks, by their number in the stream
    rounds = 0
    while True:
        drawn = split(*draw(queries)) if queries else {}
        own |= drawn
        flags = {number: has_signal(rollouts, data) for number, (_, rollouts) in drawn.items()}
        for found in gather(flags, world):
            signal |= found
        rounds += 1
        missing = data.prompts_per_iteration - sum(signal.values())
        if missing <= 0 or rounds == data.max_sampling_rounds:
            break
        queries = data.more_queries(prompts_wanted(missing, signal, data), rank, world)
    trains = choose(signal, data, rounds)
    batch = join(hand_over(own, list(trains), data, rank, world), trains)
    figures = {"keep_rate": sum(signal.values()) / len(signal), "rounds": float(rounds)}
    return Collection(*batch, join(list(own.values()), trains)[1], figures)


def has_signal(rollouts: Rollouts, data: RolloutDataModule) -> bool:
    """Whether the rewards of a group differ, among the rows that can train."""
    live = ~torch.tensor(rollouts.truncated) if data.mask_truncated else None
    return not bool(flat_groups(rollouts.rewards(), rollouts.group_size, live).all())


def prompts_wanted(missing: int, signal: Mapping[int, bool], data: RolloutDataModule) -> int:
    """Prompts of the next round: what the share of groups kept so far calls for, at most N."""
    kept = sum(signal.values())
    wanted = -(-missing * len(signal) // kept) if kept else data.prompts_per_iteration
    return min(wanted, data.prompts_per_iteration)


def choose(signal: Mapping[int, bool], data: RolloutDataModule, rounds: int) -> dict[int, bool]:
    """The N groups of the batch by number, in the order of the stream, and whether each of them trains.

    The first groups with signal; where they are too few, the first without fill up, each in its place in the
    stream: so they are spread over the mini-batches and seldom make up a whole optimizer step.

    Raises:
        ConfigError: They are too few and `data.on_exhaustion` is `stop`.
    """
    count = data.prompts_per_iteration
    kept = [number for number in sorted(signal) if signal[number]]
    flat = [number for number in sorted(signal) if not signal[number]]
    if len(kept) < count and data.on_exhaustion == "stop":
        raise ConfigError(
            f"data.on_exhaustion=stop: only {len(kept)} of the {len(signal)} prompts sampled in {rounds} "
            f"rounds have answers with different rewards, and an iteration trains on {count}; raise "
            "data.max_sampling_rounds or data.group_size, choose a task.level that the model solves "
            "sometimes, or do with fewer by data.on_exhaustion=train_partial. Iterations before this one are "
            "saved"
        )
    chosen = sorted([*kept, *flat[: max(0, count - len(kept))]][:count])
    return {number: signal[number] or data.on_exhaustion == "keep_flat" for number in chosen}


def hand_over(
    own: Mapping[int, Group], chosen: Sequence[int], data: RolloutDataModule, rank: int, world: int
) -> list[Group]:
    """The groups that this rank trains on, some of which another rank may have sampled."""
    mine = [chosen[place] for place in data.places(rank, world)]
    elsewhere = {chosen[place] for r in range(world) if r != rank for place in data.places(r, world)}
    held = dict(own)
    for groups in gather({n: group for n, group in own.items() if n in elsewhere}, world):
        held |= groups
    return [held[number] for number in mine]


def split(completions: Completions, rollouts: Rollouts) -> dict[int, Group]:
    """Groups one by one, under their numbers in the stream."""
    tensors = {f.name: getattr(completions, f.name).cpu() for f in dataclasses.fields(completions)}
    return {
        query.group_id: (
            Completions(**{name: tensor[rows].clone() for name, tensor in tensors.items()}),
            dataclasses.replace(
                rollouts,
                queries=[query],
                texts=rollouts.texts[rows],
                outcomes=rollouts.outcomes[rows],
                lengths=rollouts.lengths[rows],
                truncated=rollouts.truncated[rows],
            ),
        )
        for query, rows in rollouts.groups()
    }


def join(groups: Sequence[Group], trains: Mapping[int, bool]) -> tuple[Completions, Rollouts]:
    """The opposite of `split`; groups that are not in `trains` do not train."""
    completions, rollouts = zip(*groups, strict=True)
    queries = [query for part in rollouts for query in part.queries]
    joined = dataclasses.replace(
        rollouts[0],
        queries=queries,
        texts=list(chain.from_iterable(part.texts for part in rollouts)),
        outcomes=list(chain.from_iterable(part.outcomes for part in rollouts)),
        lengths=list(chain.from_iterable(part.lengths for part in rollouts)),
        truncated=list(chain.from_iterable(part.truncated for part in rollouts)),
        trained=[trains.get(query.group_id, False) for query in queries],
    )
    return join_completions(completions), joined


def gather(own: T, world: int) -> list[T]:
    """What every rank holds, in the order of ranks; a collective where there is more than one."""
    if world == 1:
        return [own]
    found: list[T | None] = [None] * world
    torch.distributed.all_gather_object(found, own)
    return found  # type: ignore[return-value]
