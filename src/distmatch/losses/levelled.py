"""Levelled balance: a balance loss that stops the reference from choosing between good answers."""

from __future__ import annotations

from torch import Tensor

from distmatch.batch import RolloutBatch
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.log_z import LogZ
from distmatch.ops import LOG_RATIO_LIMIT, sequence_logprob


class LevelledBalanceLoss(BalanceLoss):
    """Squared balance residual against a reference that is levelled where answers are good. Ours.

    With the reward r, gated to [0, 1] as g, and s(o) = -log pi_ref(o|x), the surprisal of an answer:

        delta = log Z(x) + log pi(o|x) - (1 - level * g(o)) log pi_ref(o|x) - beta * r(o)
        L     = coefficient * mean over rows of omega * delta^2

    Derivation: it is the balance loss for the reward r + (level / beta) g s, a bonus for surprise that only
    good answers earn. So its fixed point maximises E[beta r + level g s] - KL(pi||pi_ref), and is

        pi(o|x) proportional to pi_ref(o|x)^(1 - level g(o)) * exp(beta r(o))

    Why: the plain fixed point keeps the reference's odds between equally good answers for ever; what the
    reference finds a thousand times less likely stays so, is never sampled, and is lost. At level 1 the best
    answers are equally likely, whatever the reference; at level 0 this is `BalanceLoss`. Worthless answers
    (g = 0) keep the reference's full weight against them, unlike with a uniform reference or an entropy
    bonus, which pull towards rare garbage as much as towards rare answers.

    Where it fails: a verifier that accepts a wrong answer now pays for rare wrong answers; surprisal adds up
    over tokens, so among equally good answers long ones gain most with token sums; a large level with a large
    beta runs away from the reference before the rare answers were ever sampled, and keeps what it saw. In the
    lab with 8 best of 1,024 strings it comes within 0.05 nats of its fixed point at level 0.5 and beta 3, and
    stays far from it at beta 6, as VarGrad does not. On `np_tiny` it keeps more answers than the plain loss
    at the same quality, but not more of the good ones. Measured in docs/fronts.md.

    Assumes what `BalanceLoss` does, and rewards in [0, 1] (outside, g stays at 0 or 1).

    Args:
        log_z: A head of `distmatch.losses.log_z`.
        level: Share of the reference's preference that an answer of reward 1 is freed from, in [0, 1].
        beta: Inverse temperature on the reward.
        length_normalize: Means over tokens, or sums; of surprisal too.
        importance_weight: See `BalanceLoss`.
        clip_low: Only for `clipped`.
        clip_high: Only for `clipped`.
        coefficient: Of the whole loss.

    Raises:
        ValueError: A value out of range or an unknown name.
    """

    def __init__(
        self,
        log_z: LogZ,
        level: float = 1.0,
        beta: float = 15.0,
        length_normalize: bool = False,
        importance_weight: str = "none",
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        coefficient: float = 1.0,
    ) -> None:
        super().__init__(
            log_z, beta, length_normalize, "raw", importance_weight, clip_low, clip_high, coefficient
        )
        if not 0 <= level <= 1:
            raise ValueError(f"level={level} must be in [0, 1]")
        self.level = level
        if level > 0:
            self.target_beta = None

    def _reference_gap(self, batch: RolloutBatch, logprobs: Tensor) -> Tensor:
        """The gap log pi - (1 - level g) log pi_ref of each row, (B,)."""
        gap = super()._reference_gap(batch, logprobs)
        tokens = batch.ref_logprobs.clamp(min=-LOG_RATIO_LIMIT)
        reference = sequence_logprob(tokens, batch.loss_mask, length_normalize=self.length_normalize)
        return gap + self.level * batch.rewards.clamp(0, 1).to(gap.dtype) * reference.to(gap.dtype)
