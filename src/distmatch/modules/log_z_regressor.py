"""LogZRegressor: DISA's stage 2 under Lightning, least squares on importance-sampled labels of log Z."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from distmatch.losses.prompt_regressor import PromptRegressor
from distmatch.settings.errors import ConfigError


def _equal(variance: Tensor) -> Tensor:
    return torch.ones_like(variance)


def _precision(variance: Tensor) -> Tensor:
    """Inverse variance with the median added, so that one lucky label cannot outweigh the others."""
    weights = 1 / (variance + variance.median()).clamp(min=1e-12)
    return weights / weights.mean()


WEIGHTINGS: Mapping[str, Callable[[Tensor], Tensor]] = {"equal": _equal, "precision": _precision}
"""From the variances of labels (n,) to the weights of their squared errors, of mean 1."""


@dataclass(frozen=True)
class LabelledPrompts:
    """Prompts with labels of log Z.

    Attributes:
        features: As `PromptRegressor.describe` gives them, (n, F).
        labels: Estimates of log Z in nats, (n,).
        variance: Of the labels, in nats squared, (n,).
    """

    features: Tensor
    labels: Tensor
    variance: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, places: Tensor) -> LabelledPrompts:
        """Some of them, by position (k,)."""
        return LabelledPrompts(self.features[places], self.labels[places], self.variance[places])


class LogZRegressor(LightningModule):
    """Least squares: mean over prompts of weight * (prediction - label)^2, both in the labels' deviations.

    Fixed point: the mean of log Z given the features. With features that say nothing about a prompt it is
    the mean over all prompts, and `val/r2` stays at zero.

    What is kept is the network of the epoch with the smallest held-out error: `keep_best`.

    Args:
        regressor: The network with its scales.
        lr: AdamW's rate.
        weight_decay: Decoupled weight decay.
    """

    def __init__(self, regressor: PromptRegressor, lr: float = 1e-3, weight_decay: float = 0.1) -> None:
        super().__init__()
        self.regressor = regressor
        self._lr, self._weight_decay = lr, weight_decay
        self._held_out: list[tuple[Tensor, Tensor]] = []
        self._best: tuple[float, dict[str, Tensor]] | None = None

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        """Weighted squared error of a mini-batch, in the labels' deviations squared."""
        features, labels, weights = batch
        scaled = (labels - self.regressor.label_mean) / self.regressor.label_scale
        loss = (weights * (self.regressor.standardised(features) - scaled).square()).mean()
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(labels))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> None:
        """Collect predictions of held-out prompts."""
        self._held_out.append((self.regressor(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:
        """Log the held-out error and R^2, and remember the best network."""
        predictions, labels = (torch.cat(column) for column in zip(*self._held_out, strict=True))
        self._held_out.clear()
        figures = fit_figures(predictions, labels, self.regressor.label_mean)
        self.log_dict({f"val/{name}": value for name, value in figures.items()})
        if self._best is None or figures["mse"] < self._best[0]:
            self._best = (figures["mse"], copy.deepcopy(self.regressor.state_dict()))

    def keep_best(self) -> PromptRegressor:
        """The network of the best epoch, frozen."""
        if self._best is not None:
            self.regressor.load_state_dict(self._best[1])
        return self.regressor.requires_grad_(False).cpu().eval()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW at a constant rate; early stopping ends the fit."""
        return torch.optim.AdamW(self.parameters(), lr=self._lr, weight_decay=self._weight_decay)


class LabelDataModule(LightningDataModule):
    """Mini-batches of labelled prompts; the order of each epoch comes from `seed` alone.

    Args:
        train: To fit to.
        held_out: To stop by.
        weighting: A name of `WEIGHTINGS`.
        batch_size: Prompts in a mini-batch.
        seed: Of the order.

    Raises:
        ValueError: An unknown weighting.
    """

    def __init__(
        self, train: LabelledPrompts, held_out: LabelledPrompts, weighting: str, batch_size: int, seed: int
    ) -> None:
        super().__init__()
        if weighting not in WEIGHTINGS:
            known = ", ".join(WEIGHTINGS)
            raise ValueError(f"log_z.weighting={weighting!r} is unknown; choose one of {known}")
        self._train = TensorDataset(train.features, train.labels, WEIGHTINGS[weighting](train.variance))
        self._held_out = TensorDataset(held_out.features, held_out.labels, torch.ones(len(held_out)))
        self._batch_size = batch_size
        self._rng = torch.Generator().manual_seed(seed)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled."""
        return DataLoader(self._train, self._batch_size, shuffle=True, generator=self._rng)

    def val_dataloader(self) -> DataLoader[Any]:
        """All held-out prompts at once."""
        return DataLoader(self._held_out, len(self._held_out))


def fit_figures(predictions: Tensor, labels: Tensor, mean: Tensor) -> dict[str, float]:
    """How well held-out labels are met.

    Args:
        predictions: In nats, (K,).
        labels: In nats, (K,).
        mean: Of the labels that were fitted to: the prediction to beat.

    Returns:
        `mse` and `mse_of_mean` in nats squared; `r2` = 1 - mse / mse_of_mean; `bias`, the mean of prediction
        minus label in nats.
    """
    mse, of_mean = (predictions - labels).square().mean(), (mean - labels).square().mean()
    return {
        "mse": float(mse),
        "mse_of_mean": float(of_mean),
        "r2": float(1 - mse / of_mean) if of_mean > 0 else 0.0,
        "bias": float((predictions - labels).mean()),
    }


def split(prompts: list[tuple[int, ...]], share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of prompts to fit to and to hold out; equal prompts stay on one side.

    Args:
        prompts: Token ids of each.
        share: Of the different prompts that are held out.
        seed: Of the choice.

    Raises:
        ConfigError: See `held_out_count`.
    """
    different = list(dict.fromkeys(prompts))
    held = held_out_count(len(different), share)
    order = torch.randperm(len(different), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = {different[place] for place in order[:held]}
    is_held = torch.tensor([prompt in chosen for prompt in prompts])
    return (~is_held).nonzero().squeeze(1), is_held.nonzero().squeeze(1)


def held_out_count(different: int, share: float) -> int:
    """How many of so many different prompts are held out.

    Raises:
        ConfigError: Fewer than `LEAST_HELD_OUT` would be, or would be left to fit to.
    """
    held = round(share * different)
    if min(held, different - held) < LEAST_HELD_OUT:
        raise ConfigError(
            f"log_z.held_out={share} of {different} different prompts leaves {held} to test and "
            f"{different - held} to fit; both need at least {LEAST_HELD_OUT}: raise proposals.prompts, "
            "or take a task with more prompts"
        )
    return held


LEAST_HELD_OUT = 4
"""Fewer held-out prompts say nothing."""
