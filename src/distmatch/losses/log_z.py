"""Heads for log Z of a prompt: the choice that tells the members of the balance family apart.

Every head has one interface, `forward(batch, policy, residual) -> (B,)`, with one value for all rows of a
group; `residual` is log pi - log pi_ref - beta * r of each row, all of the balance residual but log Z.
`BalanceLoss` takes what a head requires, and its optimizer groups, from the head.

No head has a lazily made parameter: optimizers, DDP and checkpoints see the final shapes from the start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.projection import FixedProjection
from distmatch.ops import masked_mean


class LogZ(nn.Module, ABC):
    """One way to know log Z(x).

    Attributes:
        requires: What `forward` reads beside the residual, names out of `distmatch.losses.base.NEEDS`.
        min_group_size: The smallest group that the head is defined for.
    """

    requires: frozenset[str] = frozenset()
    min_group_size: int = 1

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """Optimizer groups of what the head learns; by default one, at the policy's rate `lr`."""
        own = [p for p in self.parameters() if p.requires_grad]
        return [{"params": own, "lr": lr}] if own else []

    def check_tilt(self, beta: float, length_normalize: bool, reward_source: str) -> None:
        """Refuse a loss whose target is not the one that the head knows log Z of; the arguments are its own.

        Raises:
            ValueError: Names what differs. Heads that learn or measure log Z fit any target.
        """

    @abstractmethod
    def forward(self, batch: RolloutBatch, policy: PolicyOutput, residual: Tensor) -> Tensor:
        """The value of log Z for each row's prompt in nats, (B,).

        Args:
            batch: The rollouts.
            policy: The policy's view of them.
            residual: log pi - log pi_ref - beta * r of each row, (B,), with gradient; zero on dead rows.
        """


class LearnedLogZ(LogZ):
    """An MLP on the mean hidden state of the prompt, trained with the policy. FlowRL, arXiv 2509.15207.

    Linear, GELU, LayerNorm, dropout, twice, then Linear to one number, as in the authors' code. There the
    last prompt token is left out of the mean; here it is part of it.

    A loss never sees the model, so the head has a width of its own. If prompt states are as wide, the head is
    the published one. If not, a fixed random projection (Gaussian, one seed for all runs, neither trained nor
    saved) leads to `width` first, and log Z stays a function of the prompt state up to what it loses.

    Args:
        width: Of the head; the model's hidden size gives the published head.
        dropout: The paper's code has 0.1. The default is 0: dropout would draw from the global random state,
            so a resumed run would differ, and would make the residual noisy where it should be zero.
        detach: Keep the head's gradient from the policy's weights. The paper's code lets it through.
        from_reference: Read the frozen reference's prompt state in place of the policy's: a target that does
            not move, and no gradient below the head.
        lr: The head's own learning rate; None (paper) for the policy's.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        width: int = 128,
        dropout: float = 0.0,
        detach: bool = False,
        from_reference: bool = False,
        lr: float | None = None,
    ) -> None:
        super().__init__()
        if width < 1 or not 0 <= dropout < 1:
            raise ValueError(f"width={width} must be at least 1 and dropout={dropout} in [0, 1)")
        self.width, self.lr, self.detach, self.from_reference = width, _checked_lr(lr), detach, from_reference
        self.requires = frozenset({"ref_prompt_hidden" if from_reference else "prompt_hidden"})
        self.layers = log_z_network(width, width, dropout)
        self.projection = FixedProjection(width)

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """The head at its own rate, or at the policy's."""
        return super().param_groups(lr if self.lr is None else self.lr)

    def forward(self, batch: RolloutBatch, policy: PolicyOutput, residual: Tensor) -> Tensor:
        """See `LogZ.forward`."""
        hidden = batch.ref_prompt_hidden if self.from_reference else policy.prompt_hidden  # (B, H)
        first = self.layers[0].weight
        hidden = (hidden.detach() if self.detach else hidden).to(first.dtype)
        return self.layers(self.projection(hidden)).squeeze(1)


class ScalarLogZ(LogZ):
    """One learned number for all prompts. Trajectory balance, arXiv 2201.13259.

    Exact where there is one prompt, as in the lab. With several prompts of different log Z it cannot be
    right for any: what is left of log Z then pulls the policy; take `LearnedLogZ` or `GroupMeanLogZ`.
    It moves by about `lr` nats a step under Adam and is not decayed towards zero.

    Args:
        initial: Its first value in nats.
        lr: Its own learning rate; None for the policy's, which is far too small for language models.

    Raises:
        ValueError: `lr` is not above 0.
    """

    def __init__(self, initial: float = 0.0, lr: float | None = 0.1) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(float(initial)))
        self.lr = _checked_lr(lr)

    def param_groups(self, lr: float) -> list[dict[str, object]]:
        """The number at its own rate, without weight decay."""
        return [{"params": [self.value], "lr": lr if self.lr is None else self.lr, "weight_decay": 0.0}]

    def forward(self, batch: RolloutBatch, policy: PolicyOutput, residual: Tensor) -> Tensor:
        """See `LogZ.forward`."""
        return self.value.expand(batch.rows)


class GroupMeanLogZ(LogZ):
    """The mean over the group of beta * r + log pi_ref - log pi. VarGrad, arXiv 2010.10436.

    The mean squared residual is then the variance (over n, not n - 1) of log(pi / target) inside the group.
    The mean is held constant; without importance weights the gradient is the same as through it, since
    centred residuals add up to zero.
    """

    min_group_size = 2

    def forward(self, batch: RolloutBatch, policy: PolicyOutput, residual: Tensor) -> Tensor:
        """See `LogZ.forward`; rows outside `loss_mask` do not enter the mean."""
        size = (batch.groups, batch.group_size)
        live = batch.loss_mask.any(dim=1).view(size)
        mean = masked_mean(residual.detach().view(size), live, dim=1)  # (N,)
        return -mean.repeat_interleave(batch.group_size)


class FrozenLogZ(LogZ):
    """Known values, held constant: exact ones of the lab, or an estimate made before training.

    DISA (arXiv 2605.17295) is the balance loss with such a head.

    Args:
        values: From a batch to log Z of each group in nats, (N,), or one number for all prompts.
    """

    def __init__(self, values: float | Callable[[RolloutBatch], Tensor]) -> None:
        super().__init__()
        self._values = values

    def forward(self, batch: RolloutBatch, policy: PolicyOutput, residual: Tensor) -> Tensor:
        """See `LogZ.forward`."""
        if not callable(self._values):
            return torch.full_like(residual, self._values, requires_grad=False)
        with torch.no_grad():
            values = self._values(batch)
        if values.shape != (batch.groups,):
            raise ValueError(
                f"log Z has shape {tuple(values.shape)}, expected one a group: {(batch.groups,)}"
            )
        return values.to(residual).repeat_interleave(batch.group_size)


class TableLogZ(FrozenLogZ):
    """Known values by prompt, held constant.

    Args:
        table: From the token ids of a prompt, without padding, to its log Z in nats.

    Raises:
        ValueError: In `forward`, for a prompt that the table lacks.
    """

    def __init__(self, table: Mapping[tuple[int, ...], float]) -> None:
        super().__init__(self._look_up)
        self.table = dict(table)

    def _look_up(self, batch: RolloutBatch) -> Tensor:
        first = slice(None, None, batch.group_size)
        pairs = zip(batch.prompt_ids[first].cpu(), batch.prompt_mask[first].cpu(), strict=True)
        prompts = [tuple(ids[mask].tolist()) for ids, mask in pairs]
        unknown = [prompt for prompt in prompts if prompt not in self.table]
        if unknown:
            raise ValueError(f"the log Z table of {len(self.table)} prompts lacks token ids {unknown[0]}")
        return torch.tensor([self.table[prompt] for prompt in prompts], dtype=torch.float64)


def log_z_network(inputs: int, width: int, dropout: float) -> nn.Sequential:
    """FlowRL's ProjZ: Linear, GELU, LayerNorm, dropout, twice, then Linear, (B, inputs) -> (B, 1)."""
    layers: list[nn.Module] = []
    for size in (inputs, width):
        layers += [nn.Linear(size, width), nn.GELU(), nn.LayerNorm(width), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _checked_lr(lr: float | None) -> float | None:
    if lr is not None and lr <= 0:
        raise ValueError(f"lr={lr} of the log Z head must be above 0, or null for the policy's")
    return lr
