"""The anchored balance loss against independent numbers: the network, the residual, and DISA's envelope."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from distmatch.batch import PolicyOutput
from distmatch.losses.anchor import REGRESSOR, RegressorLogZ
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.log_z import FrozenLogZ
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, tabular_batch
from distmatch.tasks.lab import Lab
from tests.anchors import anchor_folder
from tests.builders import make_batch, make_policy

# ---- the network, in NumPy from the published file ---------------------------------------------------------


def numpy_log_z(folder: Path, hidden: np.ndarray) -> np.ndarray:
    """FlowRL's ProjZ written out: Linear, GELU (erf), LayerNorm, twice, Linear; scales outside."""
    w = load_file(folder / REGRESSOR)
    x = (hidden - w["feature_mean"]) / w["feature_scale"]
    for first in (0, 4):
        x = x @ w[f"layers.{first}.weight"].T + w[f"layers.{first}.bias"]
        x = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x * w[f"layers.{first + 2}.weight"] + w[f"layers.{first + 2}.bias"]
    value = x @ w["layers.8.weight"].T + w["layers.8.bias"]
    return w["label_mean"] + w["label_scale"] * value[..., 0]


def test_the_anchor_is_the_network_of_its_file(tmp_path: Path) -> None:
    folder = anchor_folder(tmp_path / "anchor", hidden=5)
    batch = make_batch(4, 3, hidden=5)
    head = RegressorLogZ(str(folder))
    found = head(batch, make_policy(batch), torch.zeros(12))
    expected = numpy_log_z(folder, batch.ref_prompt_hidden.double().numpy())
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
    assert not found.requires_grad


@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_by_hand(tmp_path: Path, normalize: bool) -> None:
    folder = anchor_folder(tmp_path / "anchor", hidden=5, beta=3.0, length_normalize=normalize)
    batch = make_batch(2, 3, hidden=5)
    policy = make_policy(batch)
    loss = BalanceLoss(RegressorLogZ(str(folder)), 3.0, normalize, "raw", "clipped", 0.2, 0.3)
    g = numpy_log_z(folder, batch.ref_prompt_hidden.double().numpy())
    total = 0.0
    for row in range(6):
        tokens = batch.completion_mask[row].nonzero().squeeze(1).tolist()
        gap = sum(float(policy.logprobs.detach()[row, t] - batch.ref_logprobs[row, t]) for t in tokens)
        moved = sum(float(policy.logprobs.detach()[row, t] - batch.old_logprobs[row, t]) for t in tokens)
        delta = g[row] + gap / (len(tokens) if normalize else 1) - 3 * float(batch.rewards[row])
        total += min(max(math.exp(moved), 0.8), 1.3) * delta**2
    assert loss(batch, policy).loss.item() == pytest.approx(total / 6, rel=1e-4)


def test_the_manifest_of_the_folder_is_plain_json(tmp_path: Path) -> None:
    folder = anchor_folder(tmp_path / "anchor")
    assert json.loads((folder / "manifest.json").read_text())["kind"] == "log_z"


# ---- the envelope: how far an error of log Z can bend the gradient -----------------------------------------


class Enumerated:
    """All 64 strings of a language under a random policy; every expectation is a sum over them."""

    def __init__(self, seed: int) -> None:
        self.landscape = Landscape.of(Lab(alphabet=4, length=3, modes=3, near=6), seed)
        self.policy = TabularPolicy(4, 3, scale=1.5, seed=seed)
        uniform = TabularPolicy(4, 3, scale=0.0).token_logprobs().detach()
        reference = TabularPolicy(4, 3, seed=seed + 1000).token_logprobs().detach()
        self.batch = tabular_batch(torch.arange(64), 1, self.landscape, uniform, reference)
        self.scores = torch.autograd.functional.jacobian(self._log_pi, self.policy.logits).flatten(1)
        self.p = self.policy.logprobs().detach().exp()  # (S,)

    def _log_pi(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.log_softmax(dim=1)[self.policy.tree.before, self.policy.tree.tokens].sum(dim=1)

    def gradient(self, log_z: torch.Tensor) -> torch.Tensor:
        """Of the loss on all strings, "drawn" uniformly, with the weight 64 pi(o), held constant."""
        loss = BalanceLoss(FrozenLogZ(lambda batch: log_z), 6.0, False, "raw", "unclipped")
        output = loss(self.batch, PolicyOutput(self.policy.token_logprobs()))
        return torch.autograd.grad(output.loss, self.policy.logits)[0].flatten()

    def error(self, kind: str, seed: int) -> torch.Tensor:
        """An error of log Z, (S,): at random, or along the score in a random direction, which bends most."""
        rng = torch.Generator().manual_seed(seed)
        if kind == "random":
            return torch.randn(64, generator=rng, dtype=torch.float64) * 2
        return self.scores @ torch.randn(self.scores.shape[1], generator=rng, dtype=torch.float64)

    def envelope(self, error: torch.Tensor) -> float:
        """The bound 2 sqrt(E eps^2) sqrt(E |grad log pi|^2), papers.md 3.4."""
        spread = (self.p * error.square()).sum().sqrt()
        return float(2 * spread * (self.p * self.scores.square().sum(dim=1)).sum().sqrt())


def test_no_error_of_log_z_leaves_the_envelope() -> None:
    """DISA's third theorem for 100 random pairs of policy and error, and that the bound is not idle."""
    shares = []
    for seed in range(100):
        lab = Enumerated(seed)
        log_z = torch.zeros(64, dtype=torch.float64)
        error = lab.error("random" if seed % 2 else "aligned", seed)
        bent = lab.gradient(log_z + error) - lab.gradient(log_z)
        shares.append(float(bent.norm()) / lab.envelope(error))
    assert max(shares) <= 1 + 1e-9
    assert max(shares) > 0.3  # the envelope is of the size of what it bounds
    assert min(shares) > 0


def test_the_change_of_the_gradient_is_twice_the_mean_of_error_times_score() -> None:
    lab = Enumerated(3)
    error = lab.error("random", 3)
    zero = torch.zeros(64, dtype=torch.float64)
    expected = 2 * (lab.p * error) @ lab.scores
    torch.testing.assert_close(lab.gradient(zero + error) - lab.gradient(zero), expected)


def test_an_error_that_is_equal_for_all_answers_is_harmless() -> None:
    lab = Enumerated(5)
    zero = torch.zeros(64, dtype=torch.float64)
    assert float((lab.gradient(zero + 2.0) - lab.gradient(zero)).norm()) < 1e-10
