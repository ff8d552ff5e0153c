"""The contract of a loss plug-in: a function of tensors that says what it needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch

_FROM_BATCH = frozenset({"old_logprobs", "ref_logprobs", "ref_prompt_hidden", "old_values"})
NEEDS = _FROM_BATCH | {"prompt_hidden", "entropy", "values"}
"""All that a loss may ask for in `requires`; nothing else is ever computed for it."""
ZeroSignal = Literal["keep", "drop"]
"""What to do with groups whose rewards are all equal."""


class Loss(nn.Module, ABC):
    """One objective. It sees a `RolloutBatch` and a `PolicyOutput`, never the model, tokenizer or config.

    Whatever it learns itself (a log Z head, a critic) is a submodule, and so trains, moves and is saved with
    the policy. A batch always holds whole groups, whatever the memory or the number of ranks, so group
    statistics are taken inside `forward`. Every mean divides by `batch.totals`, which already counts all
    ranks.

    `requires`, `drops_zero_signal_groups`, `value_head` and `min_group_size` may depend on the arguments of a
    loss: set them on the instance in `__init__`.

    Attributes:
        requires: Names out of `NEEDS` that must not be None when `forward` is called.
        drops_zero_signal_groups: True if groups of equal rewards are to be left out. PolicyModule then takes
            them out of `loss_mask` before it counts totals, so that they leave numerators and denominators
            alike; a loss just trusts `loss_mask`.
        value_head: Applied to the policy's hidden states to give `policy.values`; None for losses without a
            critic.
        min_group_size: The smallest group that the objective is defined for.
        target_beta: The beta at which the tilted reference pi_ref exp(beta r) / Z is the stated fixed point;
            None for losses with another fixed point. `distmatch.check` measures whether it is reached.
    """

    requires: frozenset[str] = frozenset()
    drops_zero_signal_groups: bool = False
    value_head: nn.Module | None
    min_group_size: int = 1
    target_beta: float | None = None

    def __init__(self) -> None:
        super().__init__()
        # On the instance: a class attribute would hide the module that a subclass registers under this name.
        self.value_head = None

    def __call__(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """`forward`, once everything that the loss declares to need is there; see `check_needs`."""
        check_needs(self, batch, policy)
        return super().__call__(batch, policy)

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """Optimizer groups of the loss's own parameters; by default one group at the policy's rate `lr`."""
        own = [p for p in self.parameters() if p.requires_grad]
        return [{"params": own, "lr": lr}] if own else []

    @abstractmethod
    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        """The scalar to minimise on `batch`, and what to log about it."""


def check_declaration(loss: Loss, group_size: int) -> None:
    """Make sure that what a loss declares can be met, before anything is sampled.

    Raises:
        ValueError: No Loss, an unknown need, values without a head that computes them, or too small a group.
    """
    name = type(loss).__name__
    if not isinstance(loss, Loss) or "_modules" not in vars(loss):
        raise ValueError(
            f"algo: {name} must be a subclass of distmatch.losses.base.Loss, and its __init__ must call "
            "super().__init__()"
        )
    unknown = loss.requires - NEEDS
    if unknown:
        raise ValueError(
            f"{name} requires {', '.join(sorted(unknown))}, which nobody computes; known: {sorted(NEEDS)}"
        )
    if "values" in loss.requires and loss.value_head is None:
        raise ValueError(f"{name} requires values, but has no value_head that computes them")
    if group_size < loss.min_group_size:
        raise ValueError(
            f"{name} compares the answers to one prompt: group_size={group_size} must be at least "
            f"{loss.min_group_size}"
        )


def check_needs(loss: Loss, batch: RolloutBatch, policy: PolicyOutput) -> None:
    """Make sure that everything in `loss.requires` is there and that groups are large enough.

    Raises:
        ValueError: Names what is missing, or an unknown need, or too small a group.
    """
    check_declaration(loss, batch.group_size)
    name = type(loss).__name__
    for need in sorted(loss.requires):
        source, where = (batch, "batch") if need in _FROM_BATCH else (policy, "policy")
        if getattr(source, need) is None:
            raise ValueError(f"{name} requires {need}, but {where}.{need} is None")


def check_output(loss: Loss, output: LossOutput) -> None:
    """Make sure that a loss returned something to minimise.

    Raises:
        ValueError: No LossOutput, no scalar, no gradient, or a metric that is no number.
    """
    name = type(loss).__name__
    if not isinstance(output, LossOutput):
        raise ValueError(f"{name} returned {type(output).__name__}; it must return LossOutput(loss, metrics)")
    if output.loss.numel() != 1:
        raise ValueError(f"{name} returned a loss of shape {tuple(output.loss.shape)}; it must be a scalar")
    if torch.is_grad_enabled() and not output.loss.requires_grad:
        raise ValueError(f"{name} returned a loss without gradient; it must use policy.logprobs undetached")
    for key, value in output.metrics.items():
        if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.numel() == 1):
            raise ValueError(f"{name}: metric {key!r} must be a number or a tensor of one, got {value!r}")


def drops(zero_signal: str) -> bool:
    """Whether the setting `zero_signal` drops groups of equal rewards.

    Raises:
        ValueError: Neither `keep` nor `drop`.
    """
    if zero_signal not in ("keep", "drop"):
        raise ValueError(f"zero_signal={zero_signal!r} is unknown; choose keep or drop")
    return zero_signal == "drop"
