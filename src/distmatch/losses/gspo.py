"""GSPO: importance ratios of whole answers instead of tokens."""

from __future__ import annotations

from torch import Tensor

from distmatch.batch import RolloutBatch
from distmatch.losses.base import ZeroSignal
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.ops import masked_mean

_LARGEST_LOG_RATIO = 10.0  # as in verl


class GSPOLoss(GRPOLoss):
    """GSPO, group sequence policy optimization. arXiv 2507.18071, eq. 5 to 7 and 13 to 14.

    With A_i the group z-score of GRPO:

        s_i   = (pi(o_i) / pi_old(o_i)) ^ (1/|o_i|) = exp(mean_t log rho_t)
        s_i,t = sg(s_i) * pi(o_t) / sg(pi(o_t))            same value, gradient through token t
        L     = aggregate_t( -min(s_i,t A_i, clip(s_i,t, 1 - clip_low, 1 + clip_high) A_i) )

    where sg stops the gradient. With `seq_mean_token_mean` that is the paper's loss, one ratio an answer, and
    its gradient; the token form (its eq. 13) gives the other aggregations a meaning. An answer is clipped as
    a whole or not at all, and the limits are small because s_i is a mean. Log-ratios above 10 are cut, as in
    verl.

    Fixed point: GRPO's, all mass on best answers, one of them by chance. On rollouts of the current policy
    (`data.updates_per_rollout=1`) s_i is 1, nothing is clipped, and the gradient is that of GRPO with
    `seq_mean_token_mean`; the paper makes 4 updates a rollout.

    Assumes that rows were sampled from pi_old.

    Metrics: those of `GRPOLoss`; clip fractions and `ratio_*` are of s_i, `approx_kl` of tokens.

    Args:
        clip_low: How far below 1 the ratio of a bad answer may fall before it is left alone.
        clip_high: How far above 1 that of a good answer may rise.
        aggregation: A name of `distmatch.losses.aggregate`; the paper has `seq_mean_token_mean`.
        constant_length: Only for `aggregation="constant"`.
        scale_rewards: Divide advantages by the group's standard deviation.
        kl_coef: Weight of the KL term, see `GRPOLoss`; the paper has none.
        zero_signal: `keep` or `drop` groups whose rewards are all equal.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    def __init__(
        self,
        clip_low: float = 3e-4,
        clip_high: float = 4e-4,
        aggregation: str = "seq_mean_token_mean",
        constant_length: int | None = None,
        scale_rewards: bool = True,
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

    def ratio(self, gap: Tensor, batch: RolloutBatch) -> Tensor:
        """s_i,t of the class, (B, T); on masked tokens too, where nobody looks."""
        mean = masked_mean(gap.detach(), batch.loss_mask, dim=1)[:, None]  # (B, 1)
        return (mean + gap - gap.detach()).clamp(max=_LARGEST_LOG_RATIO).exp()
