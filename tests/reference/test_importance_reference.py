"""log Z from samples against log Z by enumeration: coverage, bias, mixtures, lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from distmatch.data.proposal_labels import prompt_label
from distmatch.data.proposal_records import Partition, PromptRecord, Trajectory, log_weights, scales
from distmatch.metrics import log_z
from distmatch.study.exact import log_partition
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy
from distmatch.tasks.lab import Lab

BETA = 6.0
LAB = Lab(prompts=96)


def trajectory(
    log_ref: float, log_proposals: tuple[float, ...], reward: float, length: int, source: int = 0
) -> Trajectory:
    return Trajectory((1,) * length, True, log_ref, log_proposals, reward, length, "", source)


def record(trajectories: list[Trajectory]) -> PromptRecord:
    return PromptRecord(0, "train", 0, "lab", (1,), tuple(trajectories))


class Prompt:
    """One landscape of the lab with a reference and a proposal that leans towards its good strings."""

    def __init__(self, index: int, noise: float = 0.5, lean: float = 0.6) -> None:
        rng = torch.Generator().manual_seed(index)
        self.rewards = Landscape.of(LAB, index).rewards
        with torch.no_grad():
            self.log_ref = TabularPolicy(4, 5, scale=0.5, seed=index).logprobs()
        drift = noise * torch.randn(len(self.rewards), generator=rng, dtype=torch.float64)
        self.log_p = (self.log_ref + drift + lean * BETA * self.rewards).log_softmax(dim=0)
        self.exact = float(log_partition(self.log_ref, self.rewards, BETA))

    def record(self, samples: int, seed: int) -> PromptRecord:
        rng = torch.Generator().manual_seed(10_000 + seed)
        drawn = torch.multinomial(self.log_p.exp(), samples, replacement=True, generator=rng).tolist()
        return record(
            [
                trajectory(float(self.log_ref[s]), (float(self.log_p[s]),), float(self.rewards[s]), 5)
                for s in drawn
            ]
        )


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return [Prompt(index) for index in range(LAB.prompts)]


def test_nine_intervals_in_ten_hold_the_enumerated_value(prompts: list[Prompt]) -> None:
    labels = [prompt_label(p.record(256, i), BETA, "sequence") for i, p in enumerate(prompts)]
    sound = [(p, label) for p, label in zip(prompts, labels, strict=True) if label.ess_share >= 0.1]
    assert len(sound) >= 64
    assert len({round(p.exact, 6) for p, _ in sound}) == len(sound), "different log Z"
    held = [label.low <= p.exact <= label.high for p, label in sound]
    assert sum(held) / len(held) >= 0.9
    assert max(label.high - label.low for _, label in sound) < 2.0, "an interval is not wide for nothing"


def test_the_estimate_of_z_is_unbiased(prompts: list[Prompt]) -> None:
    ratios = torch.tensor(
        [
            prompt_label(p.record(256, 1000 + i), BETA, "sequence").log_z - p.exact
            for i, p in enumerate(prompts)
        ],
        dtype=torch.float64,
    ).exp()
    error = float(ratios.std()) / math.sqrt(len(ratios))
    assert abs(float(ratios.mean()) - 1) <= 3 * error
    assert error < 0.03


def mean_error(prompt: Prompt, size: int, replicates: int, estimate: Callable[[Tensor], Tensor]) -> float:
    """Mean over replicates of an estimate of log Z minus log Z.

    Zhat / Z - 1 of the same samples, whose mean is zero, is taken off: what is left has the same expectation
    and a fraction of the variance.
    """
    logs = prompt.log_ref - prompt.log_p + BETA * prompt.rewards
    rng = torch.Generator().manual_seed(7)
    total = 0.0
    for _ in range(replicates // 2000):
        chosen = torch.multinomial(prompt.log_p.exp(), 2000 * size, replacement=True, generator=rng)
        drawn = logs[chosen.view(2000, size)]
        control = (log_z.log_z(drawn) - prompt.exact).exp() - 1
        total += float((estimate(drawn) - prompt.exact - control).sum())
    return total / replicates


def test_the_bias_of_log_z_falls_as_one_over_n() -> None:
    prompt, sizes = Prompt(0), [16, 32, 64, 128]
    plain = [mean_error(prompt, size, 20_000, log_z.log_z) for size in sizes]
    assert all(value < 0 for value in plain), "Jensen: log Z is underestimated"
    x = torch.tensor(sizes, dtype=torch.float64).log()
    y = torch.tensor(plain, dtype=torch.float64).abs().log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert slope == pytest.approx(-1, abs=0.15)
    # the population's own figures: -Var(w) / (2 N Z^2), to the next order in 1/N
    weights = (prompt.log_ref - prompt.log_p + BETA * prompt.rewards - prompt.exact).exp()
    spread = float((prompt.log_p.exp() * weights.square()).sum()) - 1
    assert plain[-1] == pytest.approx(-spread / (2 * 128), rel=0.15)
    assert abs(mean_error(prompt, 32, 20_000, log_z.jackknife)) < 0.2 * abs(plain[1])


def test_a_mixture_of_proposals_is_unbiased_whoever_wrote_an_answer() -> None:
    """The mean of pi_ref exp(beta r) / sum_j (n_j / N) p_j is Z, summed over what each proposal writes."""
    prompt = Prompt(3)
    other = TabularPolicy(4, 5, scale=1.5, seed=99).logprobs().detach()
    pair = (prompt.log_p, other)
    shares = (3, 1)  # of four answers
    counted = 0.0
    for source, log_p in enumerate(pair):
        for s in range(1024):
            # four answers with three of source 0 and one of source 1; the weight of the one that is looked at
            fillers = [trajectory(0.0, (0.0, 0.0), 0.0, 5, source=j) for j in (0, 0, 0, 1)]
            place = 0 if source == 0 else 3
            logs = (float(pair[0][s]), float(pair[1][s]))
            fillers[place] = trajectory(float(prompt.log_ref[s]), logs, float(prompt.rewards[s]), 5, source)
            weight = math.exp(float(log_weights(record(fillers), BETA, "sequence")[place]))
            counted += shares[source] / 4 * math.exp(float(log_p[s])) * weight
    assert math.log(counted) == pytest.approx(prompt.exact, abs=1e-9)


def test_a_truncated_proposal_covers_its_own_support_only() -> None:
    prompt = Prompt(5)
    kept = prompt.log_p >= prompt.log_p.quantile(0.5)
    log_p = prompt.log_p.masked_fill(~kept, -torch.inf).log_softmax(dim=0)
    expected = float((prompt.log_ref + BETA * prompt.rewards)[kept].logsumexp(dim=0))
    covered = float(prompt.log_ref[kept].logsumexp(dim=0).exp())
    rng = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(log_p.exp(), 20_000, replacement=True, generator=rng).tolist()
    label = prompt_label_of(prompt, log_p, drawn)
    assert abs(label[0] - expected) < 4 * math.sqrt(label[1]) < abs(expected - prompt.exact)
    assert label[2] == pytest.approx(covered, abs=0.02)


def prompt_label_of(prompt: Prompt, log_p: Tensor, drawn: list[int]) -> tuple[float, float, float]:
    """Estimate, its variance, and coverage."""
    made = record(
        [trajectory(float(prompt.log_ref[s]), (float(log_p[s]),), float(prompt.rewards[s]), 5) for s in drawn]
    )
    tilted, plain = log_weights(made, BETA, "sequence"), log_weights(made, 0.0, "sequence")
    return float(log_z.log_z(tilted)), float(log_z.variance(tilted)), float(log_z.log_z(plain).exp())


# ---- answers of different lengths --------------------------------------------------------------------------


class Lengths:
    """All strings of one to five letters out of three, any distributions over them, and random rewards."""

    def __init__(self) -> None:
        strings = [s for n in range(1, 6) for s in itertools.product("abc", repeat=n)]
        rng = torch.Generator().manual_seed(0)
        self.lengths = torch.tensor([len(s) for s in strings], dtype=torch.float64)
        self.log_ref, self.log_p = (
            torch.randn(len(strings), generator=rng, dtype=torch.float64).log_softmax(dim=0) for _ in range(2)
        )
        self.rewards = torch.rand(len(strings), generator=rng, dtype=torch.float64)

    def estimate(self, partition: Partition, beta: float, samples: int) -> tuple[float, float]:
        rng = torch.Generator().manual_seed(1)
        drawn = torch.multinomial(self.log_p.exp(), samples, replacement=True, generator=rng).tolist()
        made = record(
            [
                trajectory(
                    float(self.log_ref[s]),
                    (float(self.log_p[s]),),
                    float(self.rewards[s]),
                    int(self.lengths[s]),
                )
                for s in drawn
            ]
        )
        logs, scale = log_weights(made, beta, partition), scales(made, partition)
        return float(log_z.log_z(logs, scale)), math.sqrt(float(log_z.variance(logs, scale)))


def test_sums_and_means_over_tokens_estimate_what_they_say() -> None:
    language, beta = Lengths(), 2.0
    p, tilt = language.log_p.exp(), beta * language.rewards
    sequence = float((language.log_ref + tilt).logsumexp(dim=0))
    mean = math.log(float((p * ((language.log_ref - language.log_p) / language.lengths + tilt).exp()).sum()))
    for partition, expected in (("sequence", sequence), ("token_mean", mean)):
        value, error = language.estimate(partition, beta, 40_000)  # type: ignore[arg-type]
        assert abs(value - expected) < 4 * error < 0.1


def test_the_fixed_point_makes_the_length_normalised_target_a_distribution() -> None:
    language, beta = Lengths(), 2.0
    value, error = language.estimate("token_mean_fixed_point", beta, 40_000)
    low, high = 0.0, beta  # bisection on the enumerated equation
    for _ in range(60):
        middle = (low + high) / 2
        mass = float((language.log_ref + language.lengths * (beta * language.rewards - middle)).exp().sum())
        low, high = (middle, high) if mass > 1 else (low, middle)
    assert abs(value - low) < 4 * error < 0.05
    log_pi = language.log_ref + language.lengths * (beta * language.rewards - low)
    residual = low + (log_pi - language.log_ref) / language.lengths - beta * language.rewards
    assert float(log_pi.exp().sum()) == pytest.approx(1)
    assert torch.allclose(residual, torch.zeros_like(residual), atol=1e-12)


def test_with_one_token_an_answer_all_three_are_one() -> None:
    made = record([trajectory(-1.0 - 0.1 * i, (-2.0 + 0.2 * i,), 0.3 * i, 1) for i in range(8)])
    values = [
        float(log_z.log_z(log_weights(made, 2.0, name), scales(made, name)))
        for name in ("sequence", "token_mean", "token_mean_fixed_point")
    ]
    assert values == pytest.approx([values[0]] * 3)
