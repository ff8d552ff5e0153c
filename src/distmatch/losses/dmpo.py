"""DMPO: match the policy's distribution over a group of answers to a target made of their rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.aggregate import over
from distmatch.losses.base import Loss, ZeroSignal, drops
from distmatch.ops import (
    flat_groups,
    group_log_softmax,
    group_zscore,
    masked_mean,
    masked_sum,
    sequence_logprob,
    where_mask,
)

_SMALLEST_NORM = 1e-12
_Choice = TypeVar("_Choice")

Divergence = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From log p, log q and the live rows, each (N, G), to one figure a group, (N,); p and q as in the paper."""


def mse(log_p: Tensor, log_q: Tensor, live: Tensor) -> Tensor:
    """(1/G) sum (p - q)^2 (eq. 7): bounded, and so is its gradient (2/G)(q - p) in q (eq. 8)."""
    return masked_mean((log_p.exp() - log_q.exp()).square(), live, dim=1)


def js(log_p: Tensor, log_q: Tensor, live: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats (the paper's table 5); between 0 and log 2."""
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return 0.5 * masked_sum(log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m), live, dim=1)


def forward_kl(log_p: Tensor, log_q: Tensor, live: Tensor) -> Tensor:
    """KL(p||q) in nats: covers all of p; its gradient -p/q in q is unbounded, though q - p in phi."""
    return masked_sum(log_p.exp() * (log_p - log_q), live, dim=1)


def log_mse(log_p: Tensor, log_q: Tensor, live: Tensor) -> Tensor:
    """(1/G) sum (e - mean e)^2 with e = log q - log p: both normalisers cancel, phi - r/temperature is left.

    Ours, not the paper's. It acts on answers of tiny probability too, where mse is blind. Without a reference
    policy a group of invalid answers is pulled towards equal probability of garbage; watch `success_rate`.
    """
    gap = where_mask(log_q - log_p, live)
    centred = gap - masked_mean(gap, live, dim=1)[:, None]
    return masked_mean(centred.square(), live, dim=1)


DIVERGENCES: Mapping[str, Divergence] = {"mse": mse, "js": js, "forward_kl": forward_kl, "log_mse": log_mse}


def _reward(rewards: Tensor, group_size: int, live: Tensor) -> Tensor:
    return rewards


TARGET_SOURCES: Mapping[str, Callable[[Tensor, int, Tensor], Tensor]] = {
    "reward": _reward,
    "advantage": group_zscore,
}


class DMPOLoss(Loss):
    """DMPO, distribution matching policy optimization. arXiv 2605.19461, eq. 5 to 9.

    For each group of answers o_1..o_G to one prompt, with rewards r:

        p   = softmax_i(r_i / temperature)                     the target, a constant
        phi = (1/|o_i|) sum_t log pi(o_it)                     of the current policy, with gradient
        q   = softmax_i(phi_i)                                 no scale, no importance ratio
        L   = L_base + weight * mean over groups of D(p, q)    D = (1/G) sum_i (p_i - q_i)^2

    Fixed point of the matching term: pi(o_i) to the power 1/|o_i| proportional to exp(r_i / temperature)
    inside every group; only for answers of equal length is that a tempered reward distribution. D is blind to
    a constant added to all phi of a group, so a perfect match says nothing on how much mass the group has.
    With L_base there is a trade-off: weight 0 is the base alone.

    Assumes whole groups, as batches have. The paper's values are the defaults. The authors' code differs:
    z-scored target (`target_source="advantage"`), flat groups dropped (`zero_signal="drop"`), dual clip 3.0
    in the base.

    Rows outside `loss_mask` altogether (truncated ones, if they are excluded) have no phi; they leave p, q
    and G of their group. A group left with one row matches trivially, one with none is not counted.

    With q almost uniform, as per-token means of one group differ little, D is about 0.11 for G=8 and a single
    best answer, and its pull is a quarter or less of GRPO's: `grad_norm_ratio` shows it.

    Metrics: those of the base and `dm_loss`, `base_loss`, `target_entropy` (nats), `target_effective_size`
    (exp of it), `target_max` (largest p), each a mean over groups; `dm_gap_max` (largest |q - p|);
    `frac_groups_no_signal`; and when there is a base and a gradient, `grad_norm_ratio`: norm of weight * dD /
    dlogprobs over that of dL_base / dlogprobs.

    Args:
        base: Any other loss, usually `GRPOLoss`; None for the matching term alone.
        weight: Of the matching term (the paper's lambda).
        temperature: Of the target (the paper's alpha): small means greedy.
        target_source: `reward` takes rewards as they are (paper), `advantage` their group z-scores (authors'
            code).
        divergence: `mse` (paper), `js` (its ablation), `forward_kl`, or `log_mse` (ours).
        length_normalize: phi is the mean over tokens (paper); False takes sums, an answer's true
            log-probability.
        zero_signal: `keep` (paper) pulls flat groups towards uniform; `drop` (authors' code) leaves them out
            of D and of the groups that D is averaged over. If the base drops them, this must too.

    Raises:
        ValueError: A value out of range, an unknown name, or a base that drops groups which this term keeps.
    """

    def __init__(
        self,
        base: Loss | None = None,
        weight: float = 2.0,
        temperature: float = 1 / 15,
        target_source: str = "reward",
        divergence: str = "mse",
        length_normalize: bool = True,
        zero_signal: ZeroSignal = "keep",
    ) -> None:
        super().__init__()
        if temperature <= 0 or weight < 0:
            raise ValueError(
                f"temperature={temperature} must be above 0 and weight={weight} must not be negative"
            )
        self.base = base
        self.weight, self.temperature, self.length_normalize = weight, temperature, length_normalize
        self._scores = _choose(TARGET_SOURCES, target_source, "target_source")
        self._divergence = _choose(DIVERGENCES, divergence, "divergence")
        self._drops = drops(zero_signal)
        self.drops_zero_signal_groups = self._drops
        self.min_group_size = 2
        if base is not None:
            self._adopt(base)

    def _adopt(self, base: Loss) -> None:
        """Be to the module what the base is."""
        if base.drops_zero_signal_groups and not self._drops:
            raise ValueError(
                "the base drops groups of equal rewards from the batch, so this term cannot keep them: set "
                "zero_signal=drop here too, or zero_signal=keep in the base"
            )
        self.requires = base.requires
        self.drops_zero_signal_groups = base.drops_zero_signal_groups
        self.min_group_size = max(2, base.min_group_size)
        # Past nn.Module's registration: it belongs to the base, and must not appear twice in checkpoints.
        object.__setattr__(self, "value_head", base.value_head)

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """Those of the base: the matching term learns nothing of its own."""
        return [] if self.base is None else self.base.param_groups(lr)

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """The base's loss plus the weighted matching term."""
        matching, metrics = self._match(batch, policy.logprobs)
        if self.base is None:
            return LossOutput(self.weight * matching, metrics)
        base = self.base(batch, policy)
        metrics = {**base.metrics, **metrics, "base_loss": base.loss.detach()}
        if torch.is_grad_enabled() and policy.logprobs.requires_grad:
            metrics["grad_norm_ratio"] = _grad_norm_ratio(self.weight * matching, base.loss, policy.logprobs)
        return LossOutput(base.loss + self.weight * matching, metrics)

    def _match(self, batch: RolloutBatch, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """D averaged over groups, and its metrics."""
        shape = (batch.groups, batch.group_size)
        rows = batch.loss_mask.any(dim=1)
        live = rows.view(shape)  # (N, G)
        phi = sequence_logprob(logprobs, batch.loss_mask, length_normalize=self.length_normalize)
        scores = self._scores(batch.rewards, batch.group_size, rows).to(phi.dtype) / self.temperature
        log_p = group_log_softmax(scores.view(shape), live)
        log_q = group_log_softmax(phi.view(shape), live)
        flat = flat_groups(batch.rewards, batch.group_size, rows)
        counted = live.any(dim=1) & ~(flat & self._drops)
        total = batch.totals.signal_groups if self._drops else batch.totals.groups
        matching = masked_sum(self._divergence(log_p, log_q, live), counted) / over(total)
        shares = _target_metrics(log_p, log_q.detach(), live, over(batch.totals.groups))
        shares["frac_groups_no_signal"] = (flat & live.any(dim=1)).sum() / over(batch.totals.groups)
        return matching, {"dm_loss": matching.detach(), **shares}


def _target_metrics(log_p: Tensor, log_q: Tensor, live: Tensor, groups: float) -> dict[str, Tensor]:
    p, q, any_live = where_mask(log_p.exp(), live), where_mask(log_q.exp(), live), live.any(dim=1)
    entropy = -masked_sum(p * log_p, live, dim=1)
    return {
        "target_entropy": masked_sum(entropy, any_live) / groups,
        "target_effective_size": masked_sum(entropy.exp(), any_live) / groups,
        "target_max": p.max(dim=1).values.sum() / groups,
        "dm_gap_max": (q - p).abs().max(),
    }


def _grad_norm_ratio(matching: Tensor, base: Tensor, logprobs: Tensor) -> Tensor:
    """Ratio of gradient norms in the log-probabilities (B, T), where both terms meet; nothing below runs.

    Finite by construction: a base without any gradient counts as one of norm 1e-12.
    """
    norms = []
    for term in (matching, base):
        grad = None
        if term.requires_grad:
            (grad,) = torch.autograd.grad(term, logprobs, retain_graph=True, allow_unused=True)
        norms.append(torch.zeros_like(term) if grad is None else grad.norm())
    return (norms[0] / norms[1].clamp(min=_SMALLEST_NORM)).detach()


def _choose(choices: Mapping[str, _Choice], name: str, setting: str) -> _Choice:
    if name not in choices:
        raise ValueError(f"{setting}={name!r} is unknown; choose one of {', '.join(choices)}")
    return choices[name]
