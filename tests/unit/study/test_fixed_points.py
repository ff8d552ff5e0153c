"""Whether losses reach in the lab, by sampling, the fixed points that their docstrings state.

Setting: temperature beta = 6, raw rewards, token sums, on-policy; reference and start logits N(0, 1).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from distmatch.losses.balance import BalanceLoss
from distmatch.losses.base import Loss
from distmatch.losses.clip_cov import ClipCovLoss
from distmatch.losses.gspo import GSPOLoss
from distmatch.losses.levelled import LevelledBalanceLoss
from distmatch.losses.log_z import FrozenLogZ, GroupMeanLogZ, LearnedLogZ, LogZ, ScalarLogZ, TableLogZ
from distmatch.losses.pass_at_k import BestOfGroupLoss, PassAtKLoss
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.losses.ppo import PPOLoss
from distmatch.losses.score_function import GPGLoss, ReinforceLoss, RLOOLoss
from distmatch.losses.sft import SFTLoss
from distmatch.study.exact import exact_target, kl, log_partition
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, train_tabular
from distmatch.tasks.lab import Lab

BETA = 6.0
SMALL = Lab(alphabet=3, length=3, modes=4, near=6)
FULL = Lab(alphabet=4, length=5, modes=8, near=32)
VARIED = Lab(alphabet=3, length=4, min_length=2, landscape="lengths", modes=6, near=6)


def balance(log_z: LogZ, weight: str = "none") -> BalanceLoss:
    return BalanceLoss(
        log_z, beta=BETA, length_normalize=False, reward_source="raw", importance_weight=weight
    )


MATCHING: dict[str, Callable[[float], Loss]] = {
    "exact": lambda log_z: balance(FrozenLogZ(log_z)),
    "disa": lambda log_z: balance(TableLogZ({(0,): log_z}), "clipped"),
    "disa_biased": lambda log_z: balance(TableLogZ({(0,): log_z + 0.5}), "clipped"),
    "trajectory_balance": lambda _: balance(ScalarLogZ()),
    "vargrad": lambda _: balance(GroupMeanLogZ()),
    "flowrl": lambda _: balance(LearnedLogZ(width=8), "clipped"),
    "ppo_kl": lambda _: PPOLoss(kl_coef=1 / BETA, aggregation="seq_mean_token_sum", critic_lr=1e-2),
}
"""Losses whose fixed point is the tilted reference, from the exact log Z of the prompt, if they know it."""


def trained(
    loss: Loss, lab: Lab, seed: int, *, groups: int, iterations: int, lr: float
) -> tuple[Tensor, ...]:
    """Log-probabilities (S,) of the reference and of the policy after training, and the rewards."""
    landscape = Landscape.of(lab, seed)
    policy = TabularPolicy.of(landscape, seed=seed)
    reference = policy.logprobs().detach()
    options = {"groups": groups, "iterations": iterations, "lr": lr, "measure_every": iterations}
    train_tabular(loss, policy, landscape, seed=seed, **options)
    return reference, policy.logprobs().detach(), landscape.rewards


def log_z_of(lab: Lab, seed: int) -> float:
    landscape = Landscape.of(lab, seed)
    log_ref = TabularPolicy.of(landscape, seed=seed).logprobs().detach()
    return float(log_partition(log_ref, landscape.rewards, BETA))


def kl_to_the_target(member: str, lab: Lab, seed: int, **options: float) -> float:
    """KL(p*||pi) in nats after training, which was above 1/2 before."""
    torch.manual_seed(seed)
    loss = MATCHING[member](log_z_of(lab, seed))
    assert loss.target_beta == pytest.approx(BETA)
    reference, policy, rewards = trained(loss, lab, seed, **options)
    target = exact_target(reference, rewards, BETA)
    assert kl(target, reference) > 0.5
    return float(kl(target, policy))


@pytest.mark.parametrize("lab", [SMALL, VARIED], ids=["fixed", "varied"])
@pytest.mark.parametrize("member", MATCHING)
def test_reaches_the_target_in_a_small_lab(member: str, lab: Lab) -> None:
    assert kl_to_the_target(member, lab, 0, groups=16, iterations=400, lr=0.05) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("member", MATCHING)
def test_reaches_the_target_in_the_lab(member: str, seed: int) -> None:
    """256 samples an iteration: with 64, strings of small probability starve and some seeds end at 0.03."""
    assert kl_to_the_target(member, FULL, seed, groups=32, iterations=3000, lr=0.03) <= 0.02


@pytest.mark.parametrize("level", [0.5, 1.0])
def test_levelled_balance_reaches_its_own_target_in_a_small_lab(level: float) -> None:
    """The stated fixed point, pi_ref^(1 - level r) exp(beta r), normalised.

    In the full lab it is missed in 3,000 iterations, as its docstring warns: of 8 best strings, those that
    were sampled early share the mass before the others are found.
    """
    loss = LevelledBalanceLoss(GroupMeanLogZ(), level=level, beta=BETA, length_normalize=False)
    reference, policy, rewards = trained(loss, SMALL, 0, groups=16, iterations=600, lr=0.05)
    target = ((1 - level * rewards) * reference + BETA * rewards).log_softmax(dim=0)
    plain = exact_target(reference, rewards, BETA)
    assert kl(target, policy) <= 0.01 < 0.03 < kl(target, plain)


GREEDY: dict[str, Callable[[], Loss]] = {
    "grpo": GRPOLoss,
    "dr_grpo": lambda: GRPOLoss(scale_rewards=False, aggregation="constant", constant_length=5),
    "dapo": lambda: GRPOLoss(clip_high=0.28, zero_signal="drop"),
    "gspo": GSPOLoss,
    "clip_cov": ClipCovLoss,
    "gpg": GPGLoss,
    "rloo": RLOOLoss,
    "reinforce": ReinforceLoss,
    "ppo": PPOLoss,
}
"""Losses whose docstring says: all mass on best answers, which of them by chance."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", GREEDY)
def test_puts_all_mass_on_best_answers(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    _, policy, rewards = trained(GREEDY[name](), FULL, seed, groups=32, iterations=1000, lr=0.03)
    assert float(policy.exp()[rewards == 1].sum()) >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_other_stated_fixed_points(seed: int) -> None:
    """Probability of what each loss asks for: a success among k, a best answer among G = 8, a kept answer."""
    settings = {"groups": 32, "iterations": 1000, "lr": 0.03}
    k = 2
    _, policy, rewards = trained(PassAtKLoss(k=k, threshold=0.5), FULL, seed, **settings)
    assert 1 - float(policy.exp()[rewards < 0.5].sum()) ** k >= 0.95
    _, policy, rewards = trained(BestOfGroupLoss(), FULL, seed, **settings)
    assert 1 - float(policy.exp()[rewards < 1].sum()) ** 8 >= 0.95
    _, policy, rewards = trained(SFTLoss(min_reward=0.5), FULL, seed, **settings)
    assert float(policy.exp()[rewards >= 0.5].sum()) >= 0.99
