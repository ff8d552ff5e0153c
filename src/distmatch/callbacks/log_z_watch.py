"""LogZWatch: does a frozen log Z agree with what the policy's own answers say?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rich
import torch
from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.text import Text
from torch import Tensor

from distmatch.batch import RolloutBatch
from distmatch.losses.anchor import RegressorLogZ
from distmatch.ops import sequence_logprob, where_mask
from distmatch.settings.manifest import numbers

SURE = 4.0
"""Standard errors from which a distance is no chance."""
LEAST = 0.7
"""Nats (a factor of two in Z) below which a distance is harmless, however sure."""
TO_FIND = 2.0
"""Nats that the watch should find; it says so if it could not have."""
TINY = 1e-30
"""Means below this count as this: their logarithm stays finite."""
LARGEST = 300.0
"""Exponents above this count as this: sums of squares stay finite."""


@dataclass(frozen=True)
class Tally:
    """Sums over the prompts of some iterations; see `LogZWatch` for x.

    Attributes:
        prompts: n.
        total: Sum over prompts of the mean of x over the prompt's answers.
        squares: Sum over prompts of that mean squared.
        answers: G, answers a prompt.
    """

    prompts: float
    total: float
    squares: float
    answers: float

    @classmethod
    def over(cls, parts: Sequence[Tally]) -> Tally:
        """All iterations together."""
        prompts = sum(p.prompts for p in parts)
        answers = sum(p.prompts * p.answers for p in parts) / prompts
        return cls(prompts, sum(p.total for p in parts), sum(p.squares for p in parts), answers)

    @property
    def mean(self) -> float:
        """M, the mean of x."""
        return self.total / self.prompts

    def error(self, expected: Mapping[str, float]) -> float:
        """Standard error of M - R: the larger of the predicted and the measured one of M, and that of R."""
        predicted = expected["between"] / self.prompts + expected["within"] / (self.prompts * self.answers)
        spread = max(0.0, self.squares / self.prompts - self.mean**2) / max(1.0, self.prompts - 1)
        return math.sqrt(max(predicted, spread) + expected["ratio_error"] ** 2)


class LogZWatch(Callback):
    """Compares the anchor of a `RegressorLogZ` with rollouts; does nothing for other losses.

    Let g(q) be the anchor of prompt q, and for an answer o, drawn from the policy pi as it is now,

        x = exp(beta * r(o) - log(pi(o) / pi_ref(o)) - g(q))

    with log-probabilities summed over tokens. Its mean over answers is the sum over o of pi_ref(o) exp(beta *
    r(o)) / exp(g(q)) = Z(q) / exp(g(q)), with Z the partition function of token sums, whatever pi is (as far
    as pi writes what pi_ref writes). The mean over prompts is

        R = E_q[Z(q) / exp(g(q))].

    This one number is estimated twice without bias: by stage `log_z` from the proposals and its held-out
    prompts (`ratio` in the manifest), and here by M, the mean of x over rollouts. Nothing is assumed about
    g: not that it is right, nor that it is fitted to this Z. So the comparison holds for all partition
    functions, those of token means included, where Z / exp(g) is far from 1 in both.

    If all labels, and with them g, were s nats too high, because of rewards or log-probabilities that are not
    this run's, then the proposals' own Z is so too, R stays, and M is exp(-s) times R. If g alone was shifted
    after it was judged, the same follows. log R - log M is therefore an estimate of s, and is logged as
    `log_z/anchor_minus_onpolicy`.

    A finding needs |M - R| above `SURE` standard errors, and |log M - log R| above `LEAST` nats. The error
    of M is the larger of what was measured over prompts, and what the proposals predict for the reference:
    the rare answers with most of Z may all be missing in a small sample, whose spread then looks small.
    Findings are made in the first `iterations` only: later pi is far from pi_ref, and x has a heavy tail.

    `log_z/residual` is b = E_pi[delta], the mean of the balance residual g + gap - beta * r, with the gap as
    the loss takes it. For token sums it is KL(pi||target) + E_q[g - log Z]: at the start, where pi is pi_ref,
    the first term is log Z - beta E r, and it falls as the policy learns. A b below zero therefore proves an
    anchor that is too low; one that stays high with a good policy suggests one that is too high.

    Assumes that prompts come from the distribution of the proposals' prompts, and that groups are not chosen
    by their rewards.

    Args:
        iterations: In which findings are made; also the window of the logged estimate.
        console: Where to print; the process-wide one by default.

    Attributes:
        finding: What was said, or an empty text.
    """

    def __init__(self, iterations: int = 5, console: Console | None = None) -> None:
        if iterations < 1:
            raise ValueError(f"iterations={iterations} must be at least 1")
        self._iterations = iterations
        self._console = console or rich.get_console()
        self._recent: deque[Tally] = deque(maxlen=iterations)
        self.finding = ""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at this iteration's rollouts, before any update with them."""
        heads = (m for m in pl_module.loss.modules() if isinstance(m, RegressorLogZ) and m.anchor is not None)
        head = next(heads, None)
        if head is None:
            return
        batches = buffered(trainer)
        if not all(bool(torch.isfinite(batch.sampler_logprobs).all()) for batch in batches):
            return  # stored trajectories, whose sampling probabilities nobody knows
        parts = [row_figures(head, batch) for batch in batches]
        x, residual = (torch.cat(column) for column in zip(*parts, strict=True))
        sums = [x.shape[0], x.mean(dim=1).sum(), x.mean(dim=1).square().sum(), residual.mean(dim=1).sum()]
        mine = torch.tensor([float(value) for value in sums], device=pl_module.device)
        prompts, total, squares, residuals = trainer.strategy.reduce(mine, reduce_op="sum").tolist()
        self._recent.append(Tally(prompts, total, squares, float(x.shape[1])))
        expected, seen = numbers(head.anchor.manifest["watch"]), Tally.over(list(self._recent))
        error = seen.error(expected)
        figures = {
            "residual": residuals / prompts,
            "anchor_minus_onpolicy": shift(seen, expected),
            "anchor_minus_onpolicy_error": error / max(expected["ratio"], TINY),
        }
        for name, value in figures.items():
            pl_module.log(f"log_z/{name}", value, on_step=False, on_epoch=True, batch_size=1)
        if trainer.current_epoch < self._iterations and not self.finding:
            last = trainer.current_epoch + 1 == self._iterations
            self.finding = judge(seen, expected, str(head.anchor.folder), last=last)
            if self.finding and trainer.is_global_zero:
                line = Text.assemble(
                    (f"iteration {trainer.current_epoch + 1}: ", "bold yellow"), self.finding
                )
                self._console.print(line, soft_wrap=True)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs in order to say the same, as plain JSON values."""
        rows = [[t.prompts, t.total, t.squares, t.answers] for t in self._recent]
        return {"recent": rows, "finding": self.finding}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint stood."""
        self._recent.extend(Tally(*row) for row in state_dict["recent"])
        self.finding = str(state_dict["finding"])


def judge(seen: Tally, expected: Mapping[str, float], folder: str, *, last: bool) -> str:
    """What there is to say, or an empty text.

    Args:
        seen: Of the rollouts so far.
        expected: `watch` of the regressor's manifest.
        folder: The regressor's, to be named.
        last: Whether no more rollouts will be judged.
    """
    error, ratio = seen.error(expected), max(expected["ratio"], TINY)
    nats = shift(seen, expected)
    if abs(seen.mean - ratio) > SURE * error and abs(nats) > LEAST:
        side = "above" if nats > 0 else "below"
        return (
            f"log Z is about {abs(nats):.1f} nats {side} what {seen.prompts:.0f} prompts of this run say "
            f"(relative error {error / ratio:.2f}). Its labels are shifted, or were made for other prompts: "
            "compare reward, beta, temperature and reference of the proposals with this run's, delete "
            f"{folder} and its proposals, and start again. Token sums forgive this on-policy; clipped "
            "weights, several updates a rollout and token means do not."
        )
    # Where the tilt is so strong that sums overflow, error and ratio are no numbers: that counts too.
    if last and not SURE * error <= ratio * -math.expm1(-TO_FIND) < math.inf:
        return (
            f"whether log Z is right could not be judged from {seen.prompts:.0f} prompts: the relative error "
            f"is {error / ratio:.1f}, too large to see a shift of {TO_FIND:g} nats. Look at log_z/residual, "
            f"and at the verdict in {folder}."
        )
    return ""


def shift(seen: Tally, expected: Mapping[str, float]) -> float:
    """How far the anchor lies above what the rollouts say: log R - log M in nats."""
    return math.log(max(expected["ratio"], TINY)) - math.log(max(seen.mean, TINY))


def row_figures(head: RegressorLogZ, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    """The x of `LogZWatch` and the balance residual of each answer, both (N, G) float64."""
    manifest = head.anchor.manifest
    logprobs = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
    ratio = where_mask(logprobs.double() - batch.ref_logprobs.double(), batch.completion_mask)  # (B, T)
    g = head.values(batch).double().repeat_interleave(batch.group_size)  # (B,)
    tilt = manifest["beta"] * batch.rewards.double()
    gap = sequence_logprob(ratio, batch.completion_mask, length_normalize=manifest["length_normalize"])
    shape = (batch.groups, batch.group_size)
    return (tilt - ratio.sum(dim=1) - g).clamp(max=LARGEST).exp().view(shape), (g + gap - tilt).view(shape)


def buffered(trainer: Trainer) -> list[RolloutBatch]:
    """This iteration's mini-batches on this rank."""
    buffer = trainer.datamodule.train_dataloader().dataset
    return [buffer[place] for place in range(len(buffer))]
