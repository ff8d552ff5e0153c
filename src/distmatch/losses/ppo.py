"""PPO: a critic says what each token was expected to bring, and tokens that did better are reinforced."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.aggregate import make_aggregation, token_mean
from distmatch.losses.base import Loss
from distmatch.losses.gae import generalized_advantages
from distmatch.losses.kl import k1
from distmatch.losses.policy_gradient import clipped_surrogate, ratio_metrics
from distmatch.losses.projection import FixedProjection
from distmatch.ops import log_ratio, masked_mean, masked_sum, where_mask

_EVEN = ("token_mean", "seq_mean_token_sum", "constant")
"""Aggregations in which no token weighs more than another."""
_SMALLEST_VARIANCE = 1e-8  # as in verl's and TRL's whitening


class ValueHead(nn.Module):
    """The critic: LayerNorm, Linear, GELU, Linear on the hidden state before each token; 0 to begin with.

    Args:
        width: Of the head; other hidden sizes come in through `FixedProjection`.
        detach: Keep the head's gradient from the policy's weights.

    Raises:
        ValueError: `width` is below 1.
    """

    def __init__(self, width: int = 128, detach: bool = True) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width={width} of the critic must be at least 1")
        self.detach = detach
        self.projection = FixedProjection(width)
        last = nn.Linear(width, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), last)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., 1)."""
        seen = (hidden.detach() if self.detach else hidden).to(self.layers[1].weight.dtype)
        return self.layers(self.projection(seen))


class PPOLoss(Loss):
    """PPO, arXiv 1707.06347, with generalised advantage estimation, arXiv 1506.02438, as in RLHF.

    V_t is the critic's value of the prompt and the tokens before o_t, V_old at sampling time. The answer's
    reward comes with its last live token, after which everything is worth 0. Per token:

        delta_t = r_t + gamma V_old_t+1 - V_old_t           r_t = reward on the last token, minus kl_coef * k1
        A_t     = sum_l (gamma gae_lambda)^l delta_t+l      a constant
        R_t     = A_t + V_old_t                             what the critic learns
        L       = aggregate_t( -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t) )
                  + value_coef * aggregate_t( max((V - R)^2, (V_clip - R)^2) / 2 )

    with rho_t = pi(o_t) / pi_old(o_t), k1 = log pi_old(o_t) - log pi_ref(o_t) and V_clip the value kept
    within `value_clip` of V_old. With gamma = gae_lambda = 1 (verl's defaults) A_t is the answer's reward
    minus V_old_t.

    Fixed point: without KL any policy that puts all mass on best answers, one of them by chance, as for
    `GRPOLoss`. With kl_coef > 0, gamma = 1 and equal weights for all tokens (no mean inside a row or group),
    pi(o) proportional to pi_ref(o) exp(reward / kl_coef), whatever the critic with gae_lambda = 1, else with
    one that fits.

    Assumes that rows were sampled from pi_old. Needs no groups: an answer is compared with the critic, so
    groups of equal rewards train too. A truncated answer ends where it was cut; nothing is added for what
    might have come. Tokens outside `loss_mask` are stepped over: no reward, no delta, no discount.

    The critic is a small head on the policy's hidden states, not a second model as in TRL and verl. By
    default it only reads them. With `detach_critic=False` its gradient reaches the policy's weights, so that
    value_coef becomes a trade-off between two aims of one model.

    `whiten` takes mean and deviation over the live tokens that this rank has in this update. TRL takes this
    rank's whole rollout, verl that of all ranks: the same on one rank with one update a rollout, and only
    there. Without it the update does not depend on the number of ranks.

    Metrics (over tokens): `clip_fraction_low`, `clip_fraction_high`, `dual_clip_fraction`, `ratio_mean`,
    `ratio_max`, `approx_kl`; `adv_mean`, `adv_std`, `adv_abs_mean` before whitening; `value_loss`,
    `value_mean`, `return_mean`, `value_clip_fraction` (values whose gradient is cut); `explained_variance`,
    1 - Var(R - V_old) / Var(R): 1 for a perfect critic, 0 for a constant one and where all R are equal
    (variance below 1e-8). It and `adv_std` are means of the ranks' own figures. With a KL term `kl`, the mean
    of k1.

    Args:
        gae_lambda: 1 takes what an answer really brought, 0 trusts the critic for all but one step.
        gamma: Discount a token.
        whiten: Scale advantages to mean 0 and deviation 1 (TRL, verl).
        clip_low, clip_high: Limits of the ratio.
        dual_clip: Bounds the loss of bad tokens at this ratio, e.g. 3.0 as in verl; None leaves it unbounded.
        value_clip: How far a value may move from V_old before its gradient is cut, if the move brings it
            nearer to R; None: as far as it likes. In units of reward.
        value_coef: Weight of the critic's loss. With a detached critic under Adam it hardly matters.
        aggregation: A name of `distmatch.losses.aggregate`, for both terms.
        constant_length: Only for `aggregation="constant"`.
        kl_coef: Weight of the KL penalty, inside the reward; 0 computes no reference at all.
        critic_width: See `ValueHead`.
        critic_lr: The critic's own learning rate; None for the policy's.
        detach_critic: See above.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    def __init__(
        self,
        gae_lambda: float = 1.0,
        gamma: float = 1.0,
        whiten: bool = False,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = None,
        value_clip: float | None = 0.2,
        value_coef: float = 1.0,
        aggregation: str = "token_mean",
        constant_length: int | None = None,
        kl_coef: float = 0.0,
        critic_width: int = 128,
        critic_lr: float | None = 1e-3,
        detach_critic: bool = True,
    ) -> None:
        super().__init__()
        if not 0 <= clip_low < 1 or clip_high < 0:
            raise ValueError(f"clip_low={clip_low} must be in [0, 1) and clip_high={clip_high} at least 0")
        if dual_clip is not None and dual_clip <= 1 + clip_high:
            raise ValueError(f"dual_clip={dual_clip} must be above 1 + clip_high = {1 + clip_high}")
        if not 0 <= gae_lambda <= 1 or not 0 < gamma <= 1:
            raise ValueError(f"gae_lambda={gae_lambda} must be in [0, 1] and gamma={gamma} in (0, 1]")
        _check_positive(value_clip=value_clip, critic_lr=critic_lr, value_coef=value_coef)
        if kl_coef < 0:
            raise ValueError(
                f"kl_coef={kl_coef} must not be negative: that would reward leaving the reference"
            )
        self.gae_lambda, self.gamma, self.whiten = gae_lambda, gamma, whiten
        self.clip_low, self.clip_high, self.dual_clip = clip_low, clip_high, dual_clip
        self.value_clip, self.value_coef, self.critic_lr = value_clip, value_coef, critic_lr
        self.kl_coef = kl_coef
        tilts = kl_coef > 0 and gamma == 1 and aggregation in _EVEN
        self.target_beta = 1 / kl_coef if tilts else None
        reference = {"ref_logprobs"} if kl_coef > 0 else set()
        self.requires = frozenset({"old_logprobs", "old_values", "values"} | reference)
        self.value_head = ValueHead(critic_width, detach_critic)
        self._aggregate = make_aggregation(aggregation, constant_length)

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """The critic at its own rate, or at the policy's."""
        return super().param_groups(lr if self.critic_lr is None else self.critic_lr)

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """The clipped surrogate plus the critic's loss."""
        mask, dtype = batch.loss_mask, policy.logprobs.dtype
        old_values, values = (where_mask(v, mask).to(dtype) for v in (batch.old_values, policy.values))
        rewards = self._token_rewards(batch).to(dtype)
        advantages = generalized_advantages(rewards, old_values, mask, self.gamma, self.gae_lambda)
        returns = advantages + old_values  # (B, T)
        pushes = whitened(advantages, mask) if self.whiten else advantages
        gap = log_ratio(policy.logprobs, batch.old_logprobs, mask)
        limits = (self.clip_low, self.clip_high, self.dual_clip)
        surrogate = clipped_surrogate(gap.exp(), pushes, *limits)
        value_losses, cut = self._value_losses(values, old_values, returns)
        value_loss = self._aggregate(value_losses, batch)
        metrics = {
            **ratio_metrics(gap.detach(), gap.detach().exp(), pushes, batch, limits),
            **_critic_metrics(advantages, returns, batch),
            "value_loss": value_loss.detach(),
            "value_mean": token_mean(values.detach(), batch),
            "value_clip_fraction": token_mean(cut.to(dtype), batch),
        }
        if self.kl_coef > 0:
            metrics["kl"] = token_mean(k1(batch.old_logprobs, batch.ref_logprobs, mask), batch)
        return LossOutput(self._aggregate(-surrogate, batch) + self.value_coef * value_loss, metrics)

    def _token_rewards(self, batch: RolloutBatch) -> Tensor:
        """(B, T): the answer's reward on its last live token, and the KL penalty on each."""
        left = batch.loss_mask.flip(1).cumsum(dim=1).flip(1)  # live tokens from here on
        rewards = where_mask(batch.rewards[:, None], batch.loss_mask & (left == 1))
        if self.kl_coef == 0:
            return rewards
        return rewards - self.kl_coef * k1(batch.old_logprobs, batch.ref_logprobs, batch.loss_mask)

    def _value_losses(self, values: Tensor, old_values: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
        """Half the squared error of each value, at worst after clipping, and where that cuts the gradient."""
        free = (values - returns).square()
        if self.value_clip is None:
            return free / 2, torch.zeros_like(values, dtype=torch.bool)
        near = old_values + (values - old_values).clamp(-self.value_clip, self.value_clip)
        clipped = (near - returns).square()
        return torch.maximum(free, clipped) / 2, (clipped > free).detach()


# ---- advantages and figures about them ---------------------------------------------------------------------


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    """Live tokens at mean 0 and standard deviation 1 (ddof 1), (B, T); masked and equal ones at zero."""
    centred = where_mask(values - masked_mean(values, mask), mask)
    return centred / (_variance(values, mask) + _SMALLEST_VARIANCE).sqrt()


def _variance(values: Tensor, mask: Tensor) -> Tensor:
    """Of the live entries, ddof 1; zero for none and for one."""
    centred = values - masked_mean(values, mask)
    return masked_sum(centred.square(), mask) / (mask.sum() - 1).clamp(min=1)


def _critic_metrics(advantages: Tensor, returns: Tensor, batch: RolloutBatch) -> dict[str, Tensor]:
    """How large advantages are, and how much of the returns the critic foresaw."""
    unforeseen, spread = (_variance(values, batch.loss_mask) for values in (advantages, returns))
    share = 1 - unforeseen / spread.clamp(min=_SMALLEST_VARIANCE)
    return {
        "adv_mean": token_mean(advantages, batch),
        "adv_std": unforeseen.sqrt(),
        "adv_abs_mean": token_mean(advantages.abs(), batch),
        "return_mean": token_mean(returns, batch),
        "explained_variance": where_mask(share, spread > _SMALLEST_VARIANCE),
    }


def _check_positive(**settings: float | None) -> None:
    for name, value in settings.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name}={value} must be above 0")
