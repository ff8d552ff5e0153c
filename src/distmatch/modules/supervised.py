"""SupervisedModule: next-token learning on demonstrations, the warm start of a policy."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from distmatch.data.demonstrations import DemonstrationBatch
from distmatch.modules.language_model import LanguageModel


class SupervisedModule(LightningModule):
    """Cross-entropy on the demonstration tokens under a one-cycle learning rate.

    Args:
        policy: The model to train.
        lr: Peak learning rate.
        warmup: Share of the steps in which the rate rises.
        weight_decay: Of matrices; vectors (norms) have none.
        betas: Adam's moment rates.
    """

    def __init__(
        self,
        policy: LanguageModel,
        lr: float = 3e-3,
        warmup: float = 0.1,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
    ) -> None:
        super().__init__()
        self.policy = policy
        self._lr, self._warmup, self._weight_decay, self._betas = lr, warmup, weight_decay, tuple(betas)

    def training_step(self, batch: DemonstrationBatch, batch_idx: int) -> Tensor:
        """Mean negative log-likelihood of the demonstrations' tokens, in nats."""
        decoder = self.policy.model.get_decoder()
        hidden = decoder(input_ids=batch.ids, use_cache=False).last_hidden_state[:, :-1]
        target = batch.target[:, 1:]
        logits = self.policy.model.get_output_embeddings()(hidden[target])
        loss = torch.nn.functional.cross_entropy(logits, batch.ids[:, 1:][target])
        self.log("train/nll", loss, on_step=True, on_epoch=False, batch_size=1)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with a one-cycle schedule over the whole run."""
        parameters = list(self.policy.trainable().values())
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": self._weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self._lr, betas=self._betas)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=self._lr,
            total_steps=int(self.trainer.estimated_stepping_batches),
            pct_start=self._warmup,
            cycle_momentum=False,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
