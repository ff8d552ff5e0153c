"""What arXiv 2605.19461 proves or claims about the matching term, with the limits that its text leaves out.

Propositions 3.1 and 3.2 also have tests in `test_dmpo_reference`: random groups, every divergence.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.divergence_gradients import draw, gradients
from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.base import Loss
from distmatch.losses.dmpo import DIVERGENCES, DMPOLoss
from distmatch.losses.policy_gradient import GRPOLoss
from tests.builders import make_batch, make_policy
from tests.reference.test_dmpo_reference import one_group, softmax

REWARDS = [1.0, 0.9, 0.5, 0.0]
TEMPERATURE = 0.25


def total_variation(found: Tensor, target: list[float]) -> float:
    return 0.5 * float((found - torch.tensor(target, dtype=found.dtype)).abs().sum())


# ---- proposition 3.1: L_DM < delta makes q_i >= p_i - sqrt(G delta) ----------------------------------------


@pytest.mark.parametrize("group", [2, 4, 8, 16])
@pytest.mark.parametrize("lost", [1e-3, 0.05, 0.4])
def test_the_coverage_bound_is_nearly_reached(group: int, lost: float) -> None:
    """One answer lacks `lost`, the others share it equally: no q of this loss lacks more of any answer.

    Then G delta = lost^2 (1 + 1/(G - 1)): the bound is beside the truth by a factor sqrt(G / (G - 1)) only.
    """
    p = [0.5] + [0.5 / (group - 1)] * (group - 1)
    q = [0.5 - lost] + [(0.5 + lost) / (group - 1)] * (group - 1)
    rewards, phi = ([math.log(x) for x in shares] for shares in (p, q))
    batch, policy = one_group(rewards, phi)
    delta = DMPOLoss(weight=1.0, temperature=1.0)(batch, policy).loss.item()
    allowed = math.sqrt(group * delta)
    assert allowed == pytest.approx(lost * math.sqrt(group / (group - 1)))
    assert q[0] >= p[0] - allowed


@pytest.mark.parametrize("gone", range(4))
def test_an_answer_that_is_gone_costs_its_share_squared_over_g(gone: int) -> None:
    """The proposition turned around: q_i = 0 needs a loss of p_i^2 / G. Next to nothing if it is rare."""
    phi = [0.0] * 4
    phi[gone] = -1e4
    batch, policy = one_group(REWARDS, phi)
    delta = DMPOLoss(weight=1.0, temperature=TEMPERATURE)(batch, policy).loss.item()
    assert delta >= softmax([r / TEMPERATURE for r in REWARDS])[gone] ** 2 / 4


# ---- propositions 3.2 and 3.3: from the base alone to the target alone -------------------------------------


def trained(loss: Loss, steps: int = 200) -> Tensor:
    """Probabilities of a policy over four one-token answers after Adam on groups of 8 of its own samples."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    for _ in range(steps):
        answers = torch.multinomial(logits.detach().softmax(0), 32 * 8, replacement=True, generator=rng)
        logprobs = logits.log_softmax(0)[answers, None]
        batch = samples(rewards[answers], logprobs.detach())
        optimizer.zero_grad()
        loss(batch, PolicyOutput(logprobs)).loss.backward()
        optimizer.step()
        decay.step()
    return logits.detach().softmax(0)


def samples(rewards: Tensor, old_logprobs: Tensor) -> RolloutBatch:
    """32 groups of 8 answers of one token."""
    live = torch.ones(256, 1, dtype=torch.bool)
    return RolloutBatch(
        prompt_ids=live.long(),
        prompt_mask=live,
        completion_ids=live.long(),
        completion_mask=live,
        loss_mask=live,
        rewards=rewards,
        group_size=8,
        group_ids=torch.arange(256) // 8,
        truncated=~live[:, 0],
        sampler_logprobs=old_logprobs,
        old_logprobs=old_logprobs,
    )


def test_propositions_3_2_and_3_3_weights_lead_from_the_best_answer_to_the_target() -> None:
    """The target is 0.55 0.37 0.07 0.01. MSE hardly sees the last, hence the tolerance.

    Both limits hold, and the published weight of 2 is at the limit 0: the base's collapse is all there is.
    """
    target = softmax([r / TEMPERATURE for r in REWARDS])
    none, published, large = (
        trained(DMPOLoss(GRPOLoss(), weight=weight, temperature=TEMPERATURE)) for weight in (0.0, 2.0, 1e3)
    )
    assert none[0] > 0.95
    torch.testing.assert_close(published, none, atol=0.02, rtol=0)
    assert total_variation(large, target) < 0.06 < 0.4 < total_variation(none, target)


def test_proposition_3_3_without_weight_it_is_the_base_bit_for_bit() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    base = GRPOLoss()(batch, policy).loss
    both = DMPOLoss(GRPOLoss(), weight=0.0)(batch, policy).loss
    assert torch.equal(base, both)
    grads = [torch.autograd.grad(loss, policy.logprobs)[0] for loss in (base, both)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("weight", [1e2, 1e5])
def test_proposition_3_3_with_all_weight_the_base_is_out_of_sight(weight: float) -> None:
    """The gradient over the weight is that of the term, up to the base's over the weight."""
    batch = make_batch(dtype=torch.float64)
    policy = make_policy(batch)

    def gradient(loss: Loss) -> Tensor:
        return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]

    term, base = gradient(DMPOLoss(weight=1.0)), gradient(GRPOLoss())
    apart = gradient(DMPOLoss(GRPOLoss(), weight=weight)) / weight - term
    torch.testing.assert_close(apart, base / weight)
    assert apart.norm() < 100 / weight * term.norm()


# ---- what the propositions do not say ----------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0.0, 5.0, 500.0])
def test_caveat_a_a_perfect_match_may_have_any_mass(lost: float) -> None:
    """The group may be as unlikely as e^-500 under the policy: no loss, and nothing that would change it."""
    phi = [r / TEMPERATURE - 10 - lost for r in REWARDS]
    batch, policy = one_group(REWARDS, phi)
    loss = DMPOLoss(temperature=TEMPERATURE)(batch, policy).loss
    (grad,) = torch.autograd.grad(loss, policy.logprobs)
    assert loss.item() == pytest.approx(0.0, abs=1e-20) and grad.abs().max() < 1e-12
    off, moved = one_group(REWARDS, [phi[0] + 1, *phi[1:]])
    (grad,) = torch.autograd.grad(DMPOLoss(temperature=TEMPERATURE)(off, moved).loss, moved.logprobs)
    assert grad.abs().max() > 1e-2 and abs(float(grad.sum())) < 1e-12  # shifts between answers, adds nothing


@pytest.mark.parametrize("length_normalize", [True, False])
def test_caveat_b_only_token_sums_reach_the_target_with_unequal_lengths(length_normalize: bool) -> None:
    """Answers of one and four tokens with equal reward: means match pi(o)^(1/|o|), so the long one is rare.

    Its probability is then the fourth power of the short one's; with sums both are 1/2.
    """
    batch = make_batch(1, 2, rewards=[1.0, 1.0], lengths=[1, 4], dtype=torch.float64)
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logit], lr=0.05)
    loss = DMPOLoss(length_normalize=length_normalize)
    for _ in range(400):
        # The first token decides between both answers; the other three are certain.
        log_short, log_long = torch.nn.functional.logsigmoid(torch.stack([logit, -logit]))
        zero = torch.zeros_like(logit)
        rows = [torch.stack([log_short, zero, zero, zero]), torch.stack([log_long, zero, zero, zero])]
        optimizer.zero_grad()
        output = loss(batch, PolicyOutput(torch.stack(rows)))
        output.loss.backward()
        optimizer.step()
    short, long = float(logit.detach().sigmoid()), float((-logit.detach()).sigmoid())
    assert output.loss.item() < 1e-6  # a perfect match in both cases
    assert long == pytest.approx(short**4 if length_normalize else short, rel=0.05)


@pytest.mark.parametrize("ties", [1, 2, 3])
def test_caveat_c_cold_targets_are_uniform_over_ties_and_no_dirac(ties: int) -> None:
    batch, policy = one_group([1.0] * ties + [0.3] * (5 - ties), [-1.0] * 5)
    metrics = DMPOLoss(temperature=1e-3)(batch, policy).metrics
    assert float(metrics["target_effective_size"]) == pytest.approx(ties)
    assert float(metrics["target_max"]) == pytest.approx(1 / ties)


def test_maximum_entropy_reward_is_distance_from_the_tempered_rewards() -> None:
    """E[r] + alpha H(pi) = alpha log Z - alpha KL(pi||p): the argument for p, on random policies."""
    p = softmax([r / TEMPERATURE for r in REWARDS])
    log_z = math.log(sum(math.exp(r / TEMPERATURE) for r in REWARDS))
    for seed in range(5):
        pi = torch.randn(4, generator=torch.Generator().manual_seed(seed)).double().softmax(0).tolist()
        soft = sum(x * (r - TEMPERATURE * math.log(x)) for x, r in zip(pi, REWARDS, strict=True))
        distance = sum(x * math.log(x / y) for x, y in zip(pi, p, strict=True))
        assert soft == pytest.approx(TEMPERATURE * (log_z - distance))


# ---- gradients of the divergences as one q goes to 0 -------------------------------------------------------

SLOPES_IN_Q = {
    # From p, q, G and the mean of log(q/p) over the group: dD/dq with the other shares held.
    "mse": lambda p, q, group, mean: 2 / group * (q - p),
    "js": lambda p, q, group, mean: 0.5 * math.log(2 * q / (p + q)),
    "forward_kl": lambda p, q, group, mean: -p / q,
    "log_mse": lambda p, q, group, mean: 2 / group * (math.log(q / p) - mean) / q,
}


def by_hand(kind: str, q: float, target: float, group: int) -> tuple[float, float]:
    """|dD/dq| and, by dq_i/dphi_1 = q_i ([i = 1] - q_1), |dD/dphi| of the first answer."""
    shares = [[x] + [(1 - x) / (group - 1)] * (group - 1) for x in (target, q)]
    pairs = list(zip(*shares, strict=True))
    mean = sum(math.log(b / a) for a, b in pairs) / group
    slopes = [SLOPES_IN_Q[kind](a, b, group, mean) for a, b in pairs]
    in_phi = sum(s * b * ((i == 0) - q) for i, (s, (_, b)) in enumerate(zip(slopes, pairs, strict=True)))
    return abs(slopes[0]), abs(in_phi)


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize(("target", "group"), [(0.5, 8), (0.9, 2), (0.05, 4)])
def test_gradients_agree_with_the_formulas(kind: str, target: float, group: int) -> None:
    shares = [1e-8, 1e-5, 1e-3, 0.04, 0.3]
    found = gradients(DIVERGENCES[kind], torch.tensor(shares, dtype=torch.float64), target, group)
    for i, q in enumerate(shares):
        pair = float(found["by_q"][i]), float(found["by_phi"][i])
        assert pair == pytest.approx(by_hand(kind, q, target, group), rel=1e-6)


def test_mse_is_bounded_and_blind_where_others_are_neither() -> None:
    """The paper's argument for MSE, and its other side. From q = 1e-4 to 1e-8, a factor 1e-4, at p = 1/2."""
    shares = torch.tensor([1e-4, 1e-8], dtype=torch.float64)
    growth = {}
    for kind, divergence in DIVERGENCES.items():
        found = gradients(divergence, shares, 0.5, 8)
        growth[kind] = [float(found[by][1] / found[by][0]) for by in ("by_q", "by_phi")]
    # In q: bounded by 2/G, like log(1/q), like 1/q, like log(1/q)/q.
    assert growth["mse"][0] == pytest.approx(1, abs=1e-3)
    assert growth["js"][0] == pytest.approx(2, abs=0.2)
    assert growth["forward_kl"][0] == pytest.approx(1e4)
    assert growth["log_mse"][0] == pytest.approx(2e4, rel=0.1)
    # In phi, that is times q: MSE and JS let go of the answer, forward KL holds at p, log MSE pulls harder.
    assert growth["mse"][1] == pytest.approx(1e-4, rel=1e-2)
    assert growth["js"][1] == pytest.approx(2e-4, rel=0.2)
    assert growth["forward_kl"][1] == pytest.approx(1, abs=1e-3)
    assert growth["log_mse"][1] == pytest.approx(2, abs=0.2)


def test_the_gradient_of_mse_in_q_never_exceeds_2_over_g() -> None:
    shares = torch.logspace(-12, -1e-6, 200, dtype=torch.float64)
    for target in (1e-6, 0.5, 1 - 1e-6):
        assert gradients(DIVERGENCES["mse"], shares, target, 8)["by_q"].max() <= 2 / 8


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "slopes.png"
    draw(file, 0.5, 8)
    assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 10_000
