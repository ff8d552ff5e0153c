"""How much better an answer was than the others of its group: pure functions of rewards, shared by losses.

Each takes rewards (B,), prompt-major, the group size G and the rows that train, (B,) bool or None for all,
and gives one figure a row, (B,), in the dtype of the rewards. Dead rows get zero and do not enter the figures
of others; groups of equal rewards get exactly zero, unless a function says otherwise. The two that most
losses use, `group_zscore` and `group_centred`, are in `distmatch.ops`.

Worked example: rewards 1, 0.5, 0, 0 of one group

    group_centred          0.625   0.125  -0.375  -0.375
    leave_one_out          0.833   0.167  -0.5    -0.5
    best_minus_second      0.5     0       0       0
    analytic_pass_at_k     1       1      -1      -1       threshold 0.5, k=1
    analytic_pass_at_k     0.447   0.447  -0.447  -0.447   threshold 0.5, k=2
"""

from __future__ import annotations

import torch
from torch import Tensor

from distmatch.ops import group_centred, where_mask


def leave_one_out(rewards: Tensor, group_size: int, live: Tensor | None = None) -> Tensor:
    """Reward minus the mean reward of the group's other live rows: n / (n - 1) times `group_centred`.

    The baseline does not depend on the row itself, so the gradient stays unbiased. RLOO, arXiv 2402.14740.
    """
    alive = _alive(rewards, group_size, live)
    count = alive.sum(dim=1, keepdim=True)
    centred = group_centred(rewards, group_size, live).view(-1, group_size)
    return (centred * count / (count - 1).clamp(min=1)).reshape(-1)


def best_minus_second(rewards: Tensor, group_size: int, live: Tensor | None = None) -> Tensor:
    """Highest minus second highest reward on the best row, zero on the others. arXiv 2503.19595.

    That is max_j r_j - max_{j != i} r_j, the leave-one-out advantage of the group's maximum. If several rows
    share the maximum, removing one changes nothing: all get zero, as do groups with one live row.
    """
    alive = _alive(rewards, group_size, live)
    if group_size < 2:
        return torch.zeros_like(rewards)
    grouped = rewards.view(-1, group_size).masked_fill(~alive, -torch.inf)
    top = grouped.topk(2, dim=1).values
    best = alive & (grouped == top[:, :1]) & (alive.sum(dim=1, keepdim=True) > 1)
    return where_mask((top[:, :1] - top[:, 1:]).expand_as(grouped), best).reshape(-1)


def analytic_pass_at_k(
    rewards: Tensor, group_size: int, live: Tensor | None = None, *, k: int, threshold: float
) -> Tensor:
    """Advantage for pass@k, averaged over all sets of k of the group's n live rows. arXiv 2508.10751.

    With F failures, and C(a, b) = 0 where a < b:

        R     = 1 - C(F, k) / C(n, k)                              mean of pass@k over the sets
        sigma = sqrt(R (1 - R))                                    its standard deviation
        A     = (1 - R) / sigma                                    of a success: all its sets pass
        A     = (1 - R - C(F - 1, k - 1) / C(n - 1, k - 1)) / sigma      of a failure

    k = 1 is the z-score with the deviation of the whole group (ddof 0). Zero where sigma is zero: every set
    passes (F < k), none does (F = n), and so whenever n <= k.

    Args:
        rewards: (B,), prompt-major.
        group_size: G.
        live: Rows that train, (B,) bool; all of them when None.
        k: Size of the sets, at least 1.
        threshold: A reward of at least this much is a success, any other a failure.
    """
    alive = _alive(rewards, group_size, live)
    failed = alive & (rewards < threshold).view_as(alive)
    n = alive.sum(dim=1, keepdim=True).to(rewards.dtype)
    failures = failed.sum(dim=1, keepdim=True).to(rewards.dtype)
    none_passes = _subset_share(failures, n, k)  # 1 - R
    sigma = (none_passes * (1 - none_passes)).sqrt()
    others_fail = _subset_share(failures - 1, n - 1, k - 1)  # only read where there is a failure
    raw = torch.where(failed, none_passes - others_fail, none_passes) / sigma.masked_fill(sigma == 0, 1.0)
    return where_mask(raw, alive & (sigma > 0)).reshape(-1)


def _subset_share(part: Tensor, whole: Tensor, k: int) -> Tensor:
    """C(part, k) / C(whole, k) as a product of k fractions, for whole numbers; 0 where 0 <= part < k."""
    share = torch.ones_like(whole)
    for i in range(k):
        share = share * (part - i) / (whole - i).clamp(min=1)
    return share


def _alive(rewards: Tensor, group_size: int, live: Tensor | None) -> Tensor:
    kept = torch.ones_like(rewards, dtype=torch.bool) if live is None else live
    return kept.view(-1, group_size)
