"""How per-token losses become one number: named aggregations, so that nobody has to guess what is averaged.

Each takes per-token values (B, T) and the batch, and divides by `batch.totals` only. These count all ranks
and are divided by their number, so the mean over ranks of what each rank returns is the figure of the whole
batch, however it was split.

Worked example: one group, rows of 2 and 6 tokens with losses 1 1 and 3 3 3 3 3 3:

    token_mean              (2 + 18) / 8            = 2.5
    group_mean_token_mean   the same inside each group, then the mean over groups: 2.5
    seq_mean_token_mean     (1 + 3) / 2             = 2
    seq_mean_token_sum      (2 + 18) / 2            = 10
    constant, length 10     (2 + 18) / (2 * 10)     = 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from distmatch.batch import RolloutBatch
from distmatch.ops import masked_mean, masked_sum

Aggregation = Callable[[Tensor, RolloutBatch], Tensor]


def over(total: float) -> float:
    """`total` as a divisor: 1 where nothing was counted, so an empty sum stays zero and keeps its graph."""
    return total if total > 0 else 1.0


def token_mean(values: Tensor, batch: RolloutBatch) -> Tensor:
    """Mean over all tokens of all rows: long answers weigh more (verl's default, DAPO)."""
    return masked_sum(values, batch.loss_mask) / over(batch.totals.tokens)


def group_mean_token_mean(values: Tensor, batch: RolloutBatch) -> Tensor:
    """Mean over all tokens of a prompt's answers, then over prompts: every prompt weighs the same."""
    size = (batch.groups, -1)
    means = masked_mean(values.reshape(size), batch.loss_mask.reshape(size), dim=1)
    return means.sum() / over(batch.totals.groups)


def seq_mean_token_mean(values: Tensor, batch: RolloutBatch) -> Tensor:
    """Mean over the tokens of a row, then over rows: every answer weighs the same (GRPO as published)."""
    return masked_mean(values, batch.loss_mask, dim=1).sum() / over(batch.totals.rows)


def seq_mean_token_sum(values: Tensor, batch: RolloutBatch) -> Tensor:
    """Sum over the tokens of a row, then the mean over rows."""
    return masked_sum(values, batch.loss_mask) / over(batch.totals.rows)


def constant(values: Tensor, batch: RolloutBatch, *, length: int) -> Tensor:
    """Sum over tokens, divided by rows times a constant: no weight depends on lengths (Dr. GRPO)."""
    return seq_mean_token_sum(values, batch) / length


AGGREGATIONS: Mapping[str, Aggregation] = {
    "token_mean": token_mean,
    "group_mean_token_mean": group_mean_token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
}


def make_aggregation(name: str, constant_length: int | None = None) -> Aggregation:
    """The aggregation called `name`.

    Args:
        name: A key of `AGGREGATIONS`, or `constant`.
        constant_length: Tokens that `constant` divides by, e.g. the completion length limit; None for all
            others.

    Raises:
        ValueError: Unknown name, or a constant length that is missing or not used.
    """
    if (name == "constant") != (constant_length is not None):
        raise ValueError(
            f"aggregation={name!r} with constant_length={constant_length}: 'constant' needs a "
            "constant_length (e.g. the completion length limit), and nothing else takes one"
        )
    if constant_length is not None:
        if constant_length < 1:
            raise ValueError(f"constant_length={constant_length} must be at least 1")
        return partial(constant, length=constant_length)
    if name not in AGGREGATIONS:
        raise ValueError(
            f"aggregation={name!r} is unknown; choose one of {', '.join([*AGGREGATIONS, 'constant'])}"
        )
    return AGGREGATIONS[name]
