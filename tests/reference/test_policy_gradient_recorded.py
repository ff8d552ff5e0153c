"""The shipped YAML files of GRPO and its relatives: TRL's recorded numbers, and examples worked by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.base import Loss
from tests.builders import make_batch, make_policy

ALGO_FOLDER = Path(__file__).parents[2] / "configs" / "algo"


def from_yaml(name: str, **changes: object) -> Loss:
    """The loss of a shipped YAML, with a completion limit of 7 tokens."""
    node = OmegaConf.merge(OmegaConf.load(ALGO_FOLDER / f"{name}.yaml"), changes)
    return instantiate(OmegaConf.create({"algo": node, "data": {"max_tokens": 7}}).algo)


# ---- numbers recorded from TRL ----------------------------------------------------------------------------

RECORDED = {
    # name: loss, norm of its gradient in the log-probabilities, sum of gradient * cos(5 * index)
    "grpo": (0.0021033808454296956, 0.17486463425354912, -0.0996190512955196),
    "grpo, k3": (0.00901522295787166, 0.17680098823123516, -0.10026664187928547),
    "grpo, token_mean": (0.24047050508318205, 0.1647753984764507, -0.09336503271755917),
    "dr_grpo": (0.04859726576507468, 0.033779703261294806, -0.019286458132978575),
    "dapo": (0.23440789395401812, 0.17607579544405982, -0.15542753184694708),
    "gspo": (-0.0001437739450550294, 0.14944064088622847, -0.07796068611198972),
    "rloo": (None, 0.41306779104645763, -0.1490134052418663),
}
"""TRL 1.16.0 on torch 2.13.0, float64: `GRPOTrainer._compute_loss` (for rloo `RLOOTrainer._compute_loss`)
called on a stand-in for the trainer that returns the log-probabilities of `recorded_batch`, with loss_type
grpo, grpo with beta=0.1, bnpo, dr_grpo with max_completion_length=7, dapo, and grpo with
importance_sampling_level=sequence. Advantages were made in plain Python, with TRL's formula and our 1e-6 in
place of its 1e-4. For rloo old and new policy are the same, as TRL's ratio of whole answers is not ours."""

RELATIVES = {
    "grpo": ("grpo", {"aggregation": "seq_mean_token_mean"}, 0.4),
    "grpo, k3": ("grpo", {"aggregation": "seq_mean_token_mean", "kl_coef": 0.1, "kl_loss": "k3"}, 0.4),
    "grpo, token_mean": ("grpo", {}, 0.4),
    "dr_grpo": ("dr_grpo", {}, 0.4),
    "dapo": ("dapo", {}, 0.4),
    "gspo": ("gspo", {}, 0.002),
    "rloo": ("rloo", {}, 0.4),
}


def recorded_batch(drift: float) -> tuple[RolloutBatch, PolicyOutput]:
    """Two groups of three; a quarter and a tenth of the tokens are clipped low and high at drift 0.4."""
    batch = make_batch(
        2, 3, rewards=[1.0, 0.0, 0.5, 0.2, 0.9, 0.4], lengths=[3, 5, 1, 4, 2, 5], dtype=torch.float64
    )
    index = torch.arange(30, dtype=torch.float64).view(6, 5)
    old = -(1.2 + index.sin())
    mask = batch.loss_mask
    batch = dataclasses.replace(
        batch,
        old_logprobs=torch.where(mask, old, 0.0),
        ref_logprobs=torch.where(mask, old + 0.3 * (2 * index).sin(), 0.0),
    )
    new = torch.where(mask, old + drift * (3 * index + 1).cos(), 0.0)
    return batch, make_policy(batch, logprobs=new)


@pytest.mark.parametrize("name", RECORDED)
def test_agrees_with_trl(name: str) -> None:
    algo, changes, drift = RELATIVES[name]
    loss, norm, probe = RECORDED[name]
    batch, policy = recorded_batch(drift)
    value = from_yaml(algo, **changes)(batch, policy).loss
    (grad,) = torch.autograd.grad(value, policy.logprobs)
    if loss is not None:
        assert value.item() == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert grad.norm().item() == pytest.approx(norm, rel=1e-9)
    index = torch.arange(30, dtype=torch.float64).view(6, 5)
    assert (grad * (5 * index).cos()).sum().item() == pytest.approx(probe, rel=1e-9)


# ---- worked by hand ---------------------------------------------------------------------------------------


def one_group(rewards: list[float], new: list[list[float]]) -> tuple[RolloutBatch, PolicyOutput]:
    """A group with the given log-ratios of new to old; old log-probabilities are all -1."""
    lengths = [len(row) for row in new]
    batch = make_batch(1, len(rewards), rewards=rewards, lengths=lengths, dtype=torch.float64)
    old = torch.where(batch.loss_mask, -1.0, 0.0).double()
    gaps = torch.tensor([row + [0.0] * (max(lengths) - len(row)) for row in new], dtype=torch.float64)
    batch = dataclasses.replace(batch, old_logprobs=old)
    return batch, make_policy(batch, logprobs=old + gaps)


def test_gspo_by_hand() -> None:
    """Means of log-ratios: 0.2 / 2 = 0.1 for A = +0.70711, clipped at 1 + 4e-4; -0.0001 for A = -0.70711."""
    batch, policy = one_group([1.0, 0.0], [[0.5, -0.3], [-0.0001]])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    expected = -(1.0004 * a - math.exp(-0.0001) * a) / 2
    assert from_yaml("gspo")(batch, policy).loss.item() == pytest.approx(expected, rel=1e-12)


def test_dr_grpo_by_hand() -> None:
    """Rewards 1, 0: A = +-0.5; 1 and 3 tokens at ratio 1: -(0.5 - 1.5) / (2 rows * 7 tokens)."""
    batch, policy = one_group([1.0, 0.0], [[0.0], [0.0, 0.0, 0.0]])
    assert from_yaml("dr_grpo")(batch, policy).loss.item() == pytest.approx(1 / 14)


def test_dapo_by_hand() -> None:
    """Ratio 1.5: the good token is cut at 1.28, the bad one not at all."""
    batch, policy = one_group([1.0, 0.0], [[math.log(1.5)], [math.log(1.5)]])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert from_yaml("dapo")(batch, policy).loss.item() == pytest.approx(-(1.28 - 1.5) * a / 2)


def test_rloo_and_reinforce_by_hand() -> None:
    """Rewards 1, 0, 0 and log-probabilities -1, -2, -3 of whole answers."""
    batch, policy = one_group([1.0, 0.0, 0.0], [[0.0], [0.0, 0.0], [0.0, 0.0, 0.0]])
    assert from_yaml("rloo")(batch, policy).loss.item() == pytest.approx(-(-1 + 0.5 * 2 + 0.5 * 3) / 3)
    assert from_yaml("reinforce")(batch, policy).loss.item() == pytest.approx(1 / 3)


def test_gpg_by_hand() -> None:
    """One group of two has signal: alpha is 2. Tokens at -1, A = +-0.5 * 2, four tokens."""
    batch = make_batch(2, 2, rewards=[1, 0, 1, 1], lengths=[1, 1, 1, 1], dtype=torch.float64)
    policy = make_policy(batch, logprobs=torch.tensor([[-1.0], [-3.0], [-1.0], [-1.0]]).double())
    assert from_yaml("gpg")(batch, policy).loss.item() == pytest.approx(-(1 * -1 - 1 * -3) / 4)
    verl = from_yaml("gpg", alpha_by="nonzero_rewards")  # three of four rewards are not 0
    assert verl(batch, policy).loss.item() == pytest.approx(-(4 / 3) * (0.5 * -1 - 0.5 * -3) / 4)


def test_pass_at_k_by_hand() -> None:
    """Successes 1 1 0 0, k=2: of 6 pairs 5 pass. R = 5/6, sigma = sqrt(5)/6, A = (1/6)/sigma = +-0.44721."""
    batch, policy = one_group([1.0, 0.9, 0.4, 0.0], [[0.0], [0.0], [0.0, 0.0], [0.0]])
    a = 1 / math.sqrt(5)
    assert from_yaml("pass_at_k")(batch, policy).loss.item() == pytest.approx(-(2 * a - 3 * a) / 5)


def test_best_of_group_by_hand() -> None:
    """Only the first row is pushed, by 1 - 0.9."""
    batch, policy = one_group([1.0, 0.9, 0.4, 0.0], [[0.0], [0.0], [0.0, 0.0], [0.0]])
    assert from_yaml("pass_at_k_best")(batch, policy).loss.item() == pytest.approx(-0.1 / 5)


def test_clip_cov_by_hand() -> None:
    """A = +-0.70711 on two tokens each; log-probabilities 0, -4, -4, 0 around their mean -2.

    Covariances 1.414, -1.414, 1.414, -1.414: the first and the third are candidates, share 0.5 takes both.
    """
    batch, policy = one_group([1.0, 0.0], [[0.0, 0.0], [0.0, 0.0]])
    logprobs = torch.tensor([[0.0, -4.0], [-4.0, 0.0]]).double()
    batch = dataclasses.replace(batch, old_logprobs=logprobs)
    policy = make_policy(batch, logprobs=logprobs)
    output = from_yaml("clip_cov", share=0.5)(batch, policy)
    (grad,) = torch.autograd.grad(output.loss, policy.logprobs)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    torch.testing.assert_close(grad, torch.tensor([[0.0, -a / 4], [0.0, a / 4]]).double())
    assert output.metrics["clip_cov_fraction"] == 0.5 and output.metrics["clip_cov_candidates"] == 0.5
