"""Plain policy gradients: log-probability times advantage, without ratio, clip, reference or critic."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.advantages import leave_one_out
from distmatch.losses.aggregate import make_aggregation
from distmatch.losses.base import Loss, ZeroSignal, drops
from distmatch.losses.policy_gradient import signal_metrics
from distmatch.ops import group_centred, group_zscore, where_mask


class ScoreFunctionLoss(Loss):
    """L = aggregate_t( -A_i log pi(o_t) ), with A_i from `advantages` held constant.

    Assumes that rows were sampled from the current policy: there is no importance ratio, so after the first
    of several updates on the same rollouts (`data.updates_per_rollout` above 1) the gradient is biased.

    Args:
        aggregation: A name of `distmatch.losses.aggregate`.
        constant_length: Only for `aggregation="constant"`.
        zero_signal: `keep` or `drop` groups whose rewards are all equal.

    Raises:
        ValueError: An unknown name, or a constant length that is missing or not used.
    """

    def __init__(
        self,
        aggregation: str = "seq_mean_token_sum",
        constant_length: int | None = None,
        zero_signal: ZeroSignal = "keep",
    ) -> None:
        super().__init__()
        self.drops_zero_signal_groups = drops(zero_signal)
        self._aggregate = make_aggregation(aggregation, constant_length)

    @abstractmethod
    def advantages(self, batch: RolloutBatch) -> Tensor:
        """One a row, (B,), without gradient; zero on rows outside `loss_mask`."""

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """See the class."""
        advantages = self.advantages(batch)[:, None]  # (B, 1)
        loss = self._aggregate(-advantages * where_mask(policy.logprobs, batch.loss_mask), batch)
        return LossOutput(loss, signal_metrics(advantages, batch))


class ReinforceLoss(ScoreFunctionLoss):
    """REINFORCE. Williams, Machine Learning 8 (1992); for language models arXiv 2402.14740.

        L = -mean_i( (r_i - b) log pi(o_i) ),   log pi(o_i) summed over tokens

    The gradient is that of -E[r], unbiased for b = 0. Fixed point: all mass on best answers, one of them by
    chance. Without a baseline groups of equal rewards push too: up with positive rewards, whatever was
    sampled, which makes the steps noisy and adding a constant to all rewards matter.

    Assumes that rows were sampled from the current policy (see `ScoreFunctionLoss`).

    Metrics: `adv_abs_mean`, `frac_groups_no_signal`.

    Args:
        group_baseline: b is the mean reward of the group, the row itself included, which shrinks the expected
            gradient by (G - 1) / G and nothing else; False is b = 0. Takes groups of two or more.
        aggregation: A name of `distmatch.losses.aggregate`; all but `seq_mean_token_sum` and `constant` weigh
            answers by length.
        constant_length: Only for `aggregation="constant"`.
        zero_signal: `keep` or `drop` groups whose rewards are all equal.

    Raises:
        ValueError: An unknown name, or a constant length that is missing or not used.
    """

    def __init__(
        self,
        group_baseline: bool = False,
        aggregation: str = "seq_mean_token_sum",
        constant_length: int | None = None,
        zero_signal: ZeroSignal = "keep",
    ) -> None:
        super().__init__(aggregation, constant_length, zero_signal)
        self.group_baseline = group_baseline
        self.min_group_size = 2 if group_baseline else 1

    def advantages(self, batch: RolloutBatch) -> Tensor:
        """Rewards less b."""
        live = batch.loss_mask.any(dim=1)
        if self.group_baseline:
            return group_centred(batch.rewards, batch.group_size, live)
        return where_mask(batch.rewards, live)


class RLOOLoss(ScoreFunctionLoss):
    """RLOO, REINFORCE leave-one-out. arXiv 2402.14740.

        A_i = r_i - mean of r_j over j != i        inside the group
        L   = -mean_i( A_i log pi(o_i) ),          log pi(o_i) summed over tokens

    The gradient is that of -E[r], unbiased, with far less variance than REINFORCE. Fixed point: all mass on
    best answers, one of them by chance. The paper also subtracts a KL penalty from the rewards; here rewards
    are taken as they are.

    Assumes that rows were sampled from the current policy (see `ScoreFunctionLoss`).

    Metrics: `adv_abs_mean`, `frac_groups_no_signal`. Arguments and errors: see `ScoreFunctionLoss`.
    """

    min_group_size = 2

    def advantages(self, batch: RolloutBatch) -> Tensor:
        """Against the mean of the others."""
        return leave_one_out(batch.rewards, batch.group_size, batch.loss_mask.any(dim=1))


class GPGLoss(ScoreFunctionLoss):
    """GPG, group policy gradient. arXiv 2504.02546.

        A_i = alpha (r_i - mean) / F,   F = 1, or the group's std with `scale_rewards`
        L   = token_mean( -A_i log pi(o_t) )

    alpha makes up for groups without signal, which stay in the denominator: B / (B - M) with B rows, M of
    them in groups of equal rewards (paper); here groups over groups with signal, counted over all ranks. verl
    instead has B over the number of rewards other than 0, so that alpha grows where success is rare.

    Fixed point: GRPO's, all mass on best answers, one of them by chance. The paper also samples on until
    enough groups have signal; that is a matter of the sampling loop, not of this loss.

    Assumes that rows were sampled from the current policy (see `ScoreFunctionLoss`).

    Metrics: `adv_abs_mean` (alpha included), `frac_groups_no_signal`, `alpha`.

    Args:
        alpha_by: `signal` (paper), `nonzero_rewards` (verl; rewards are counted on each rank for itself, so
            several ranks give a slightly different update than one), or `one` for no correction.
        scale_rewards: F is the group's standard deviation; the paper's own runs have F = 1.
        aggregation: A name of `distmatch.losses.aggregate`.
        constant_length: Only for `aggregation="constant"`.

    Raises:
        ValueError: An unknown name, or a constant length that is missing or not used.
    """

    min_group_size = 2

    def __init__(
        self,
        alpha_by: str = "signal",
        scale_rewards: bool = False,
        aggregation: str = "token_mean",
        constant_length: int | None = None,
    ) -> None:
        super().__init__(aggregation, constant_length)
        if alpha_by not in ALPHAS:
            raise ValueError(f"alpha_by={alpha_by!r} is unknown; choose one of {', '.join(ALPHAS)}")
        self.scale_rewards = scale_rewards
        self._alpha = ALPHAS[alpha_by]

    def advantages(self, batch: RolloutBatch) -> Tensor:
        """With alpha."""
        normalize = group_zscore if self.scale_rewards else group_centred
        centred = normalize(batch.rewards, batch.group_size, batch.loss_mask.any(dim=1))
        return self._alpha(batch) * centred

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """See the class."""
        output = super().forward(batch, policy)
        return LossOutput(output.loss, {**output.metrics, "alpha": self._alpha(batch)})


def _by_signal(batch: RolloutBatch) -> float:
    signal = batch.totals.signal_groups
    return batch.totals.groups / signal if signal > 0 else 1.0


def _by_nonzero_rewards(batch: RolloutBatch) -> float:
    live = batch.loss_mask.any(dim=1)
    return float(live.sum()) / max(float((where_mask(batch.rewards, live) != 0).sum()), 1.0)


def _one(batch: RolloutBatch) -> float:
    return 1.0


ALPHAS = {"signal": _by_signal, "nonzero_rewards": _by_nonzero_rewards, "one": _one}
"""How `GPGLoss` makes up for groups without signal, by name."""
