"""Folders of small regressors of log Z, as stage=log_z leaves them."""

from __future__ import annotations

from pathlib import Path

import torch

from distmatch.losses.anchor import save_anchor
from distmatch.losses.prompt_regressor import PromptRegressor


def anchor_folder(
    folder: Path, hidden: int = 5, beta: float = 15.0, length_normalize: bool = True, spread: float = 0.3
) -> Path:
    """A regressor with random weights, whose held-out labels are its predictions plus noise of mean zero.

    Args:
        folder: Where.
        hidden: H of the states that it reads.
        beta: In the manifest.
        length_normalize: In the manifest.
        spread: Standard deviation of the noise in nats.
    """
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        regressor = PromptRegressor(["prompt_state"], hidden, width=16, dropout=0.0)
    features = torch.randn(32, hidden, generator=rng)
    regressor.fit_scales(features * 2 + 1, 12 + 3 * torch.randn(32, generator=rng))
    noise = torch.randn(32, generator=rng)
    with torch.no_grad():
        labels = regressor(features) - spread * (noise - noise.mean())
    manifest = {
        "beta": beta,
        "length_normalize": length_normalize,
        "partition": "token_mean" if length_normalize else "sequence",
        "figures": {"bias": 0.0},
        "watch": {"ratio": 1.0, "ratio_error": 0.05, "between": 0.1, "within": 2.0},
    }
    save_anchor(folder, regressor.requires_grad_(False), features, labels, manifest)
    return folder
