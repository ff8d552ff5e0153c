"""The picture of a regressor of log Z: its predictions against the labels it was fitted to and tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from distmatch.data.proposal_labels import PromptLabel

MEANINGS = {
    "sequence": "token sums, log of the sum of pi_ref exp(beta r)",
    "token_mean": "token means; depends on the proposal",
    "token_mean_fixed_point": "token means, the constant at which the residual can vanish",
}
"""Which log Z a picture shows, by the name of the partition function."""


@dataclass(frozen=True)
class Fitted:
    """Predictions beside the labels of some prompts.

    Attributes:
        name: What the legend says.
        predictions: In nats, one for each label.
        labels: Estimates with intervals.
    """

    name: str
    predictions: Sequence[float]
    labels: Sequence[PromptLabel]


def draw_calibration(groups: Sequence[Fitted], beta: float, partition: str, r2: float) -> Figure:
    """Label with its 95 % interval over the prediction; on the diagonal they agree.

    Args:
        groups: Fitted and held-out prompts.
        beta: Of the labels.
        partition: Of the labels.
        r2: Of the held-out ones.
    """
    figure = Figure(figsize=(6.4, 6.0), layout="constrained")
    axes = figure.subplots()
    ends: list[float] = []
    for group, (colour, alpha) in zip(groups, (("0.6", 0.35), ("tab:blue", 0.8)), strict=True):
        centre = np.array([label.log_z for label in group.labels])
        low, high = (np.array([getattr(x, side) for x in group.labels]) for side in ("low", "high"))
        spread = np.nan_to_num(np.clip(np.stack([centre - low, high - centre]), 0, None))
        axes.errorbar(
            group.predictions,
            centre,
            spread,
            fmt="o",
            ms=3.5,
            lw=0.8,
            color=colour,
            alpha=alpha,
            label=group.name,
        )
        ends += [*group.predictions, *centre]
    span = [min(ends), max(ends)]
    axes.plot(span, span, color="0.2", lw=0.8, zorder=0)
    axes.set(xlabel="prediction of log Z in nats", ylabel="label in nats, with its 95 % interval")
    axes.set_title(
        f"log Z ({partition}: {MEANINGS[partition]})\nbeta = {beta:g}, held-out R² = {r2:.2f}", fontsize=9
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
