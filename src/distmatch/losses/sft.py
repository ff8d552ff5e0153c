"""Maximum likelihood on answers that are good enough: distillation, or rejection-sampling fine-tuning."""

from __future__ import annotations

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.aggregate import make_aggregation, over
from distmatch.losses.base import Loss
from distmatch.ops import where_mask


class SFTLoss(Loss):
    """Supervised fine-tuning on the rows whose reward is at least `min_reward`.

        L = aggregate_t( -1[r_i >= min_reward] log pi(o_t) )

    On stored trajectories (data=stored_rollouts) this is distillation, the baseline that DISA is compared
    with: rows below `min_reward` are never loaded, and L is the mean negative log-likelihood. Fixed point:
    the empirical distribution of the kept trajectories, with all its solutions, in the shares in which they
    are stored.

    On the policy's own samples (data=rollouts) it is one step of rejection-sampling fine-tuning, also called
    expert iteration (STaR, arXiv 2203.14465; RAFT, arXiv 2304.06767). The other rows then still count in the
    denominators, in which every mean of this package is taken over all live rows of all ranks: the gradient
    is that of REINFORCE with the reward 1[r >= min_reward]. It is the mean over the kept rows times their
    share, so a batch with few of them moves the policy little, and one with none not at all. Fixed point: any
    policy all of whose answers are kept. What is likely already is sampled, and raised, most often: which
    solutions survive is left to chance.

    Metrics: `kept_rows`, the share of rows that train.

    Args:
        min_reward: The least reward that is learnt from.
        aggregation: A name of `distmatch.losses.aggregate`. `token_mean` is the usual cross entropy;
            `seq_mean_token_sum` that of whole answers, whatever their length.
        constant_length: Only for `aggregation="constant"`.

    Raises:
        ValueError: An unknown name, or a constant length that is missing or not used.
    """

    def __init__(
        self, min_reward: float = 0.5, aggregation: str = "token_mean", constant_length: int | None = None
    ) -> None:
        super().__init__()
        self.min_reward = min_reward
        self._aggregate = make_aggregation(aggregation, constant_length)

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """See the class."""
        kept = batch.rewards >= self.min_reward  # (B,)
        loss = self._aggregate(-where_mask(policy.logprobs, batch.loss_mask & kept[:, None]), batch)
        rows = (kept & batch.loss_mask.any(dim=1)).sum()
        return LossOutput(loss, {"kept_rows": rows / over(batch.totals.rows)})
