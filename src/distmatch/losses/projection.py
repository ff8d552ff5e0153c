"""How a head of a loss reads hidden states of a size that nobody tells it: a fixed random projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_PROJECTION_SEED = 0


class FixedProjection(nn.Module):
    """Hidden states of any size to `width`, so that what follows has its final shapes from the start.

    A loss never sees the model, and lazily made parameters are unknown to optimizers, DDP and checkpoints
    until the first batch. So a head has a width of its own. States as wide pass as they are; others go
    through a Gaussian matrix, of one seed for all runs, neither trained nor saved.

    Args:
        width: Of what comes out, at least 1.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self._matrix: Tensor | None = None  # (H, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., width)."""
        return hidden if hidden.shape[-1] == self.width else hidden @ self._matrix_for(hidden)

    def _matrix_for(self, hidden: Tensor) -> Tensor:
        """(H, width), scaled so that entries keep their mean square; made again where H or device change."""
        size = hidden.shape[-1]
        known = self._matrix
        if known is None or len(known) != size or known.device != hidden.device:
            rng = torch.Generator().manual_seed(_PROJECTION_SEED)
            drawn = torch.randn(size, self.width, generator=rng) / size**0.5
            self._matrix = known = drawn.to(hidden.device)
        return known.to(hidden.dtype)
