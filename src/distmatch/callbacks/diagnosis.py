"""Diagnosis: one line that names the cause when nothing is learning, or when the policy collapses."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import rich
from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.text import Text

from distmatch.callbacks.tables import largest

Metrics = Mapping[str, float]

ALL = 0.999
"""A share from which one says "all": means over ranks are not exact."""
MOSTLY_CLIPPED = 0.95
RISE = 0.01
"""Changes of held-out rates below this are noise."""
LOSS_OF_SOLUTIONS = 0.02
"""Relative fall of the number of distinct solutions that counts."""


@dataclass(frozen=True)
class Finding:
    """Something that a user should know.

    Attributes:
        cause: `all_truncated`, `nothing_parsed`, `flat_groups`, `no_gradient`, `clipped`, `diverged` or
            `collapse`.
        message: One line: what is seen, why it matters, what to do.
    """

    cause: str
    message: str


class Diagnosis(Callback):
    """Prints each finding when it appears, and again only after it had vanished; rank 0 only.

    Args:
        patience: Iterations in a row that must look bad; a single one may be chance.
        console: Where to print; the process-wide one by default.

    Attributes:
        findings: Everything printed so far, in order.
    """

    def __init__(self, patience: int = 3, console: Console | None = None) -> None:
        if patience < 1:
            raise ValueError(f"patience={patience} must be at least 1")
        self._patience = patience
        self._console = console or rich.get_console()
        self._history: deque[dict[str, float]] = deque(maxlen=patience)
        self._start: dict[str, float] = {}
        self._active: set[str] = set()
        self.findings: list[Finding] = []

    def remember_start(self, metrics: Metrics) -> None:
        """Keep the held-out figures from before training (`val/<name>`): a collapse is a fall below them."""
        self._start = dict(metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at this iteration's figures."""
        # The last evaluation stays in sight, so that a collapse goes on until another evaluation denies it.
        last = self._history[-1] if self._history else {}
        held_out = {k: v for k, v in last.items() if k.startswith("val/")}
        now = {k: float(v) for k, v in trainer.callback_metrics.items()}
        self._history.append(held_out | now)
        found = diagnose(list(self._history), self._start, self._patience)
        new = [finding for finding in found if finding.cause not in self._active]
        self._active = {finding.cause for finding in found}
        self.findings += new
        if trainer.is_global_zero:
            for finding in new:
                line = Text.assemble(
                    (f"iteration {trainer.current_epoch + 1}: ", "bold yellow"), finding.message
                )
                self._console.print(line, soft_wrap=True)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs in order to say the same, as plain JSON values."""
        return {
            "history": [dict(m) for m in self._history],
            "start": dict(self._start),
            "active": sorted(self._active),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint stood."""
        self._history.extend(dict(m) for m in state_dict["history"])
        self._start, self._active = dict(state_dict["start"]), set(state_dict["active"])
        self.findings = [Finding(**finding) for finding in state_dict["findings"]]


def diagnose(history: Sequence[Metrics], start: Metrics, patience: int = 3) -> list[Finding]:
    """What the figures of the iterations so far say, at most one finding a cause.

    Args:
        history: Figures of each iteration, oldest first, under the names that are logged (`rollout/...`,
            `train/...`, and `val/...` where there was an evaluation). Missing figures say nothing.
        start: Held-out figures from before training, `val/...`.
        patience: Iterations in a row that must look bad.

    Returns:
        The causes, without those that another explains: completions that were all cut have no answer, hence
        equal rewards, hence perhaps no gradient.
    """
    recent = history[-patience:]
    chain = (_all_truncated, _nothing_parsed, _flat_groups, _no_gradient)
    learning = next((found for check in chain if (found := check(recent, patience))), None)
    found = [
        learning,
        _clipped(recent, patience),
        _diverged(recent, start, patience),
        _collapse(history, start),
    ]
    return [finding for finding in found if finding]


# ---- nothing is learning -----------------------------------------------------------------------------------


def _always(recent: Sequence[Metrics], patience: int, name: str, holds: Callable[[float], bool]) -> bool:
    """Whether a figure exists and is bad in each of the last `patience` iterations."""
    return len(recent) >= patience and all(holds(m.get(name, math.nan)) for m in recent)


def _all_truncated(recent: Sequence[Metrics], patience: int) -> Finding | None:
    if not _always(recent, patience, "rollout/truncated", lambda share: share >= ALL):
        return None
    length = f" ({recent[-1]['rollout/length']:.0f} tokens)" if "rollout/length" in recent[-1] else ""
    return Finding(
        "all_truncated",
        f"every completion was cut at the length limit{length} in the last {patience} iterations, so no "
        "answer was finished; raise data.max_tokens, or check that the model's end-of-sequence token is set.",
    )


def _nothing_parsed(recent: Sequence[Metrics], patience: int) -> Finding | None:
    if not _always(recent, patience, "rollout/parsed", lambda share: share <= 1 - ALL):
        return None
    return Finding(
        "nothing_parsed",
        f"no completion of the last {patience} iterations held an answer that can be read; look at the field "
        "`reason` in rollouts.jsonl, then start from a model that knows the answer format (model=tiny, or an "
        "instruct model).",
    )


def _flat_groups(recent: Sequence[Metrics], patience: int) -> Finding | None:
    if not _always(recent, patience, "rollout/flat_groups", lambda share: share >= ALL):
        return None
    success = recent[-1].get("rollout/success_rate", math.nan)
    reward = recent[-1].get("rollout/reward", math.nan)
    if success <= 1 - ALL:
        remedy = (
            "the task is too hard for this model: choose an easier task.level or a larger data.group_size"
        )
    elif success >= ALL:
        remedy = (
            "the reward sees no difference: choose a harder task.level or a graded reward (reward=np_paper)"
        )
    else:
        remedy = "choose a larger data.group_size or a graded reward (reward=np_paper)"
    return Finding(
        "flat_groups",
        f"in the last {patience} iterations all completions of every prompt got equal rewards "
        f"(mean {reward:.2f}), which say nothing about what to prefer; {remedy}.",
    )


def _no_gradient(recent: Sequence[Metrics], patience: int) -> Finding | None:
    if not _always(recent, patience, "train/grad_norm", lambda norm: norm == 0):
        return None
    return Finding(
        "no_gradient",
        f"the gradient was exactly zero in the last {patience} iterations although rewards differ; the loss "
        "does not reach the policy: check its weights and masks (data.mask_truncated), and that it uses "
        "policy.logprobs undetached.",
    )


def _clipped(recent: Sequence[Metrics], patience: int) -> Finding | None:
    sides = ("train/clip_fraction_low", "train/clip_fraction_high")
    shares = [sum(m.get(side, 0.0) for side in sides) for m in recent]
    if len(recent) < patience or not all(share >= MOSTLY_CLIPPED for share in shares):
        return None
    return Finding(
        "clipped",
        f"{shares[-1]:.0%} of all tokens were clipped in the last {patience} iterations, and clipped tokens "
        "do not train; the policy moves too far within an iteration: lower module.lr or "
        "data.updates_per_rollout.",
    )


def _diverged(recent: Sequence[Metrics], start: Metrics, patience: int) -> Finding | None:
    """Training makes the policy worse although every number is finite."""
    before = start.get("val/success_rate", math.nan)
    if not _always(recent, patience, "rollout/success_rate", lambda rate: rate < before / 2):
        return None
    return Finding(
        "diverged",
        f"success fell from {before:.3f} before training to {recent[-1]['rollout/success_rate']:.3f}: the "
        "updates destroy what the policy could do; lower module.lr, or algo.weight if the loss has one.",
    )


# ---- the policy collapses ----------------------------------------------------------------------------------


def _collapse(history: Sequence[Metrics], start: Metrics) -> Finding | None:
    """Held-out success above the start's while best-of-k quality or distinct solutions are below."""
    now = next((m for m in reversed(history) if "val/success_rate" in m), None)
    if now is None or "val/success_rate" not in start:
        return None
    before, after = start["val/success_rate"], now["val/success_rate"]
    if not after > before + RISE:
        return None
    fallen = [*_fallen_best(start, now), *_fallen_solutions(start, now)]
    if not fallen:
        return None
    return Finding(
        "collapse",
        f"the policy is collapsing: held-out success rose from {before:.3f} to {after:.3f}, but "
        f"{' and '.join(fallen)}; it repeats few answers instead of keeping all good ones. Try another algo "
        "or a larger weight of its matching term, a lower module.lr, or stop at an earlier iteration.",
    )


def _fallen_best(start: Metrics, now: Metrics) -> list[str]:
    key = largest("val/best", start, now)
    if key is None or not max(now[key], now.get(f"{key}_high", now[key])) < start[key] - RISE:
        return []  # by more than other prompts would explain
    return [f"the best of {key.partition('@')[2]} answers fell from {start[key]:.3f} to {now[key]:.3f}"]


def _fallen_solutions(start: Metrics, now: Metrics) -> list[str]:
    before = start.get("val/distinct_solutions", math.nan)
    after = now.get("val/distinct_solutions", math.nan)
    if not max(after, now.get("val/distinct_solutions_high", after)) < before * (1 - LOSS_OF_SOLUTIONS):
        return []
    return [f"distinct solutions per prompt fell from {before:.2f} to {after:.2f}"]
