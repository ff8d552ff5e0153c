"""Generalised advantage estimation, arXiv 1506.02438: a pure function, all rows at once.

Worked example: one row, tokens o_1 o_2 and a masked third, reward 1 on o_2, values 0.5 0.2, gamma 1:

    delta_2 = 1 - 0.2           =  0.8     after the last live token everything is worth 0
    delta_1 = 0.2 - 0.5         = -0.3
    A_2     = delta_2           =  0.8
    A_1     = delta_1 + A_2     =  0.5     lambda 1: reward minus value
    A_1     = delta_1 + A_2 / 2 =  0.1     lambda 0.5
"""

from __future__ import annotations

from torch import Tensor, nn

from distmatch.ops import where_mask


def generalized_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """A_t = sum over l of (gamma * gae_lambda)^l delta_t+l (eq. 16), (B, T); zero where masked.

    t counts the live tokens of a row, wherever they lie; after the last one the value is 0.

    Args:
        rewards: Of each token, (B, T).
        values: Of the state before each token, (B, T).
        mask: Live tokens, (B, T) bool.
        gamma: Discount a token.
        gae_lambda: How fast the weight of later surprises falls.
    """
    kept, live = where_mask(values, mask), mask.to(values.dtype)
    following = _backward_sums(_shifted(kept, 1), 1 - _shifted(live, 1))  # the value of the next live token
    deltas = where_mask(rewards + gamma * following - kept, mask)
    return where_mask(_backward_sums(deltas, 1 - live + gamma * gae_lambda * live), mask)


def _backward_sums(terms: Tensor, carry: Tensor) -> Tensor:
    """x_t = terms_t + carry_t * x_t+1 from the last column to the first, (B, T), in log2(T) steps.

    After k steps x_t holds its first 2^k terms, and carry_t the factor of what comes behind them.
    """
    step = 1
    while step < terms.shape[1]:
        terms = terms + carry * _shifted(terms, step)
        carry = carry * _shifted(carry, step)
        step *= 2
    return terms


def _shifted(values: Tensor, steps: int) -> Tensor:
    """Columns moved to the left by `steps`, zeros behind them."""
    return nn.functional.pad(values[:, steps:], (0, steps))
