"""Pass@k training, in both published forms: advantages that ask for one good answer among several."""

from __future__ import annotations

from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.advantages import analytic_pass_at_k, best_minus_second
from distmatch.losses.aggregate import over
from distmatch.losses.base import ZeroSignal
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.ops import group_zscore


class SparseAdvantageLoss(GRPOLoss):
    """`GRPOLoss` for advantages that are zero in many groups with unequal rewards: reports how many.

    Metrics: those of `GRPOLoss` and `frac_groups_no_push`, the share of groups in which every advantage is 0.
    """

    def surrogate(
        self, ratio: Tensor, advantages: Tensor, batch: RolloutBatch, policy: PolicyOutput
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `GRPOLoss`."""
        objective, metrics = super().surrogate(ratio, advantages, batch, policy)
        shape = (batch.groups, batch.group_size)
        idle = (advantages.view(shape) == 0).all(dim=1) & batch.loss_mask.any(dim=1).view(shape).any(dim=1)
        return objective, {**metrics, "frac_groups_no_push": idle.sum() / over(batch.totals.groups)}


class PassAtKLoss(SparseAdvantageLoss):
    """Pass@k training with analytic advantages. arXiv 2508.10751, "GRPO Pass@K (Seed)" in the DMPO paper.

    GRPO's clipped surrogate (see `GRPOLoss`) with the advantage that a row has on average over every set of k
    of its group's n rows, where a set scores 1 if any of its rows succeeds. With F failures:

        R = 1 - C(F, k) / C(n, k),   sigma = sqrt(R (1 - R))
        A = (1 - R) / sigma                                       for a success
        A = (1 - R - C(F - 1, k - 1) / C(n - 1, k - 1)) / sigma   for a failure
        A = 0                                                     if sigma is 0, that is F < k or F = n

    Fixed point: a policy under which k samples almost surely hold a success; there is no push at all once
    fewer than k of n rows fail. So a mode that succeeds most of the time is not driven to 1, but nothing asks
    for different successes either. k = 1 is GRPO with the deviation of the whole group.

    Assumes that rows were sampled from pi_old, and that success is yes or no: graded rewards are cut at
    `threshold`, and what lies above or below it makes no difference.

    Metrics: those of `SparseAdvantageLoss`; `frac_groups_no_signal` is still about equal rewards.

    Args:
        k: Size of the sets; less than the group size, at which every advantage is 0.
        threshold: A reward of at least this much is a success. Not from the paper, whose rewards are binary.
        clip_low, clip_high: Limits of the ratio, see `GRPOLoss`.
        aggregation: A name of `distmatch.losses.aggregate`.
        constant_length: Only for `aggregation="constant"`.
        kl_coef: Weight of the KL term, see `GRPOLoss`.
        zero_signal: `keep` or `drop` groups whose rewards are all equal.

    Raises:
        ValueError: A value out of range or an unknown name; in `forward`, a group size of k or less.
    """

    def __init__(
        self,
        k: int,
        threshold: float,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregation: str = "token_mean",
        constant_length: int | None = None,
        kl_coef: float = 0.0,
        zero_signal: ZeroSignal = "keep",
    ) -> None:
        super().__init__(
            clip_low=clip_low,
            clip_high=clip_high,
            aggregation=aggregation,
            constant_length=constant_length,
            kl_coef=kl_coef,
            zero_signal=zero_signal,
        )
        if k < 1:
            raise ValueError(f"k={k} must be at least 1")
        self.k, self.threshold = k, threshold
        self.min_group_size = k + 1

    def advantages(self, batch: RolloutBatch) -> Tensor:
        """See the class."""
        live = batch.loss_mask.any(dim=1)
        return analytic_pass_at_k(batch.rewards, batch.group_size, live, k=self.k, threshold=self.threshold)


class BestOfGroupLoss(SparseAdvantageLoss):
    """Max-of-group training. arXiv 2503.19595, "GRPO Pass@K (Meta)" in the DMPO paper.

    GRPO's clipped surrogate (see `GRPOLoss`) with

        A_i = max_j r_j - max_{j != i} r_j     the best row: highest minus second highest reward; others: 0

    and, with `scale_rewards`, divided by the group's standard deviation. Without it the expected gradient is
    in proportion to that of -E[max of G rewards], for answers of equal length: k is the group size.

    Fixed point: a policy under which the best of G samples is a best answer. Two rows that share the maximum
    get nothing, so with binary rewards only a group with exactly one success pushes.

    Assumes that rows were sampled from pi_old.

    Metrics: those of `SparseAdvantageLoss`; `frac_groups_no_signal` is still about equal rewards.

    Args:
        scale_rewards: Divide by the group's standard deviation (ddof 1); verl's default, not the paper's.
        clip_low, clip_high: Limits of the ratio, see `GRPOLoss`.
        aggregation: A name of `distmatch.losses.aggregate`.
        constant_length: Only for `aggregation="constant"`.
        kl_coef: Weight of the KL term, see `GRPOLoss`.
        zero_signal: `keep` or `drop` groups whose rewards are all equal.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    def __init__(
        self,
        scale_rewards: bool = False,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregation: str = "token_mean",
        constant_length: int | None = None,
        kl_coef: float = 0.0,
        zero_signal: ZeroSignal = "keep",
    ) -> None:
        super().__init__(
            clip_low=clip_low,
            clip_high=clip_high,
            aggregation=aggregation,
            constant_length=constant_length,
            scale_rewards=scale_rewards,
            kl_coef=kl_coef,
            zero_signal=zero_signal,
        )

    def advantages(self, batch: RolloutBatch) -> Tensor:
        """See the class."""
        live = batch.loss_mask.any(dim=1)
        # Both the maximum and the second scale with rewards, so z-scores first is the same as dividing last.
        rewards = group_zscore(batch.rewards, batch.group_size, live) if self.scale_rewards else batch.rewards
        return best_minus_second(rewards, batch.group_size, live)
