"""The regressor of log Z: what it reads, how it is fitted, and what it tells of prompts it has not seen."""

from __future__ import annotations

import math
import random

import pytest
import torch
from omegaconf import OmegaConf

from distmatch.data.log_z_settings import Tilt
from distmatch.data.proposal_labels import prompt_labels
from distmatch.data.proposal_records import PromptRecord, Trajectory
from distmatch.losses.prompt_regressor import PromptRegressor, token_numbers
from distmatch.modules.log_z_regressor import WEIGHTINGS, LabelledPrompts, LogZRegressor, fit_figures, split
from distmatch.modules.log_z_stage import describe_prompts, fit, judge, verdict, watch_figures
from distmatch.modules.tiny import load_tiny
from distmatch.study.exact import log_partition
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy
from distmatch.tasks.lab import Lab
from tests.conftest import SMALL
from tests.runs import ROOT

KNOBS = OmegaConf.load(ROOT / "configs" / "log_z" / "default.yaml")
BETA, N = 6.0, 512

# ---- what it reads -----------------------------------------------------------------------------------------


def test_numbers_in_tokens() -> None:
    table = token_numbers(["<pad>", "7", "5/9", "0-3=7", "1 2 3 4"])
    expected = torch.tensor([[math.nan] * 3, [7, *[math.nan] * 2], [5, 9, math.nan], [0, 3, 7], [1, 2, 3]])
    torch.testing.assert_close(table, expected, equal_nan=True)


def test_numbers_of_a_prompt_by_hand() -> None:
    """Padding in front counts for nothing; first numbers 5, 7, second 9; mean 6, deviation 1."""
    regressor = PromptRegressor(["numbers"], 4, token_numbers(["<pad>", "word", "5/9", "7"]))
    ids, mask = torch.tensor([[2, 1, 2, 3]]), torch.tensor([[False, True, True, True]])
    found = regressor.describe(ids, mask, None)[0]
    first, second, third = ([2, 12, 6, 1, 5, 7], [1, 9, 9, 0, 9, 9], [0] * 6)
    by_figure = [value for column in zip(first, second, third, strict=True) for value in column]
    in_order = [5.0, 7.0, *[0.0] * 6]
    torch.testing.assert_close(found, torch.tensor([3.0, *map(float, by_figure), *in_order]))


def test_the_states_are_those_that_rollouts_bring() -> None:
    """Stage 2 and stage 3 must see the same features: alone or padded beside longer prompts."""
    policy = load_tiny("random", **SMALL)
    regressor = PromptRegressor(["prompt_state"], 64)
    prompts = [(1, 5, 9), (1, 5, 9, 11, 30, 31), (1, 7)]
    together = describe_prompts(regressor, policy, prompts)
    for place, prompt in enumerate(prompts):
        torch.testing.assert_close(
            together[place], describe_prompts(regressor, policy, [prompt])[0], atol=1e-5, rtol=0
        )
        ids = torch.tensor([prompt])
        answer, there = torch.tensor([[40, 41]]), torch.ones(1, 2, dtype=torch.bool)
        state = policy(ids, torch.ones_like(ids).bool(), answer, there, temperature=0.7, prompt_hidden=True)
        torch.testing.assert_close(together[place], state.prompt_hidden[0].detach(), atol=1e-5, rtol=0)


def test_unknown_features_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"log_z.features=\['prompt'\] must be some of: prompt_state, numbers"
    ):
        PromptRegressor(["prompt"], 4)
    with pytest.raises(ValueError, match="must be some of"):
        PromptRegressor([], 4)


def test_the_fingerprint_sees_every_change() -> None:
    regressor = PromptRegressor(["prompt_state"], 4, width=8)
    seen = {regressor.fingerprint()}
    for tensor in (regressor.label_mean, regressor.feature_scale, regressor.layers[0].weight.data):
        tensor += 1e-3
        seen.add(regressor.fingerprint())
    assert len(seen) == 4


# ---- how it is fitted --------------------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    """Errors 1, 0, -2: mse 5/3; from the mean 4 of the fitted labels 4, 1, 1: 2; r2 1 - 5/6."""
    labels = torch.tensor([2.0, 3.0, 5.0])
    figures = fit_figures(labels + torch.tensor([1.0, 0.0, -2.0]), labels, torch.tensor(4.0))
    assert figures == pytest.approx({"mse": 5 / 3, "mse_of_mean": 2.0, "r2": 1 / 6, "bias": -1 / 3})


def test_the_weight_of_a_label() -> None:
    variance = torch.tensor([0.0, 1.0, 3.0])
    assert WEIGHTINGS["equal"](variance).tolist() == [1, 1, 1]
    raw = [1 / 1, 1 / 2, 1 / 4]  # the median, 1, is added
    expected = torch.tensor([w * 3 / sum(raw) for w in raw])
    torch.testing.assert_close(WEIGHTINGS["precision"](variance), expected)


def test_equal_prompts_stay_on_one_side() -> None:
    prompts = [(i % 20,) for i in range(100)]
    train, held_out = split(prompts, 0.25, seed=0)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(100))
    assert len(held_out) == 25
    assert not {prompts[i] for i in train.tolist()} & {prompts[i] for i in held_out.tolist()}
    with pytest.raises(ValueError, match=r"log_z.held_out=0.25 of 8 different prompts leaves 2 to test"):
        split([(i % 8,) for i in range(100)], 0.25, seed=0)


def test_the_best_epoch_is_kept() -> None:
    module = LogZRegressor(PromptRegressor(["prompt_state"], 2, width=4))
    module.log_dict = lambda *_: None
    labels = torch.tensor([1.0, 2.0])
    kept = None
    for epoch, error in enumerate([3.0, 1.0, 2.0]):
        module.regressor.label_mean.fill_(epoch)
        module._held_out = [(labels + error, labels)]
        module.on_validation_epoch_end()
        kept = module.keep_best
    assert kept().label_mean == 1.0
    assert not any(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize(
    ("mse", "of_mean", "noise", "words"),
    [
        (0.2, 1.0, 0.15, "as good as its labels"),
        (0.99, 1.0, 0.05, "no better than one number"),
        (0.4, 1.0, 0.05, "60% of the differences"),
        (0.1, 0.12, 0.1, "little more than their noise"),
    ],
)
def test_the_verdict(mse: float, of_mean: float, noise: float, words: str) -> None:
    figures = {"mse": mse, "mse_of_mean": of_mean, "r2": 1 - mse / of_mean, "label_variance": noise}
    assert words in verdict(figures)


# ---- prompts it has not seen: a lab whose prompt says how much is planted ----------------------------------


class DescribedLab:
    """Prompts `lab <modes> <near>` with landscapes of so many strings, enumerated.

    log Z hangs on both numbers, and on which strings the reference likes, which no prompt says: it is not
    uniform.
    """

    def __init__(self, prompts: int, seed: int = 0) -> None:
        rng = random.Random(seed)
        pairs = rng.sample([(m, n) for m in range(2, 25) for n in range(97)], prompts)
        policy = load_tiny("random", **SMALL)
        vocabulary = list(range(len(policy.tokenizer)))
        self.table = token_numbers(policy.tokenizer.convert_ids_to_tokens(vocabulary))
        self.reference = TabularPolicy(4, 5, scale=0.2, seed=seed).logprobs().detach()
        self.exact, self.records = [], []
        for index, (modes, near) in enumerate(pairs):
            rewards = Landscape.of(Lab(modes=modes, near=near, prompts=prompts), index).rewards
            self.exact.append(float(log_partition(self.reference, rewards, BETA)))
            ids = policy.tokenizer(f"lab {modes} {near}")["input_ids"]
            self.records.append(self._record(index, tuple(ids), rewards, seed))
        self.labels = prompt_labels(self.records, BETA, "sequence")

    def _record(self, index: int, ids: tuple[int, ...], rewards: torch.Tensor, seed: int) -> PromptRecord:
        """N strings from a proposal between reference and target."""
        proposal = (self.reference + BETA / 2 * rewards).log_softmax(dim=0)
        rng = torch.Generator().manual_seed(1000 * seed + index)
        drawn = torch.multinomial(proposal.exp(), N, replacement=True, generator=rng).tolist()
        log_ref, log_p, values = self.reference.tolist(), proposal.tolist(), rewards.tolist()
        rows = (Trajectory((0,), True, log_ref[s], (log_p[s],), values[s], 5, "", 0) for s in drawn)
        return PromptRecord(index, "train", index, str(index), ids, tuple(rows))


@pytest.fixture(scope="module")
def lab() -> DescribedLab:
    return DescribedLab(384)


def labelled(lab: DescribedLab, regressor: PromptRegressor) -> LabelledPrompts:
    labels = lab.labels
    ids = torch.tensor([r.prompt_ids for r in lab.records])
    return LabelledPrompts(
        regressor.describe(ids, torch.ones_like(ids).bool(), None),
        torch.tensor([x.log_z for x in labels]),
        torch.tensor([x.variance for x in labels]),
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_it_tells_log_z_of_unseen_prompts(lab: DescribedLab, weighting: str) -> None:
    """Fitted to 224 prompts, stopped by 64, judged by 96 that neither has seen: R^2 of at least 0.9."""
    torch.manual_seed(0)
    regressor = PromptRegressor(["numbers"], 64, lab.table, KNOBS.width, KNOBS.dropout)
    whole = labelled(lab, regressor)
    assert len(set(lab.exact)) == 384 and torch.tensor(lab.exact).std() > 0.3
    parts = torch.arange(384).split([224, 64, 96])
    knobs = OmegaConf.merge(KNOBS, {"weighting": weighting})
    fitted = fit(knobs, regressor, whole.select(parts[0]), whole.select(parts[1]))
    figures = judge(fitted, whole.select(parts[2]))
    assert figures["r2"] >= 0.9
    truth = torch.tensor(lab.exact)[parts[2]]
    with torch.no_grad():
        errors = fitted(whole.features[parts[2]]) - truth
    assert float(errors.square().mean() / truth.var()) <= 0.1
    assert abs(figures["bias"]) < 0.1


def test_features_that_say_nothing_give_the_mean(lab: DescribedLab) -> None:
    torch.manual_seed(0)
    regressor = PromptRegressor(["prompt_state"], 8, width=16)
    labels = torch.tensor(lab.exact)
    blind = LabelledPrompts(torch.randn(384, 8), labels, torch.full((384,), 1e-3))
    parts = torch.arange(384).split([288, 96])
    fitted = fit(KNOBS, regressor, blind.select(parts[0]), blind.select(parts[1]))
    figures = judge(fitted, blind.select(parts[1]))
    assert figures["r2"] < 0.1
    assert "no better than one number" in verdict(figures)


def test_two_fits_are_equal(lab: DescribedLab) -> None:
    prints = set()
    for _ in range(2):
        torch.manual_seed(3)
        regressor = PromptRegressor(["numbers"], 64, lab.table, 32, 0.1)
        whole = labelled(lab, regressor).select(torch.arange(80))
        knobs = OmegaConf.merge(KNOBS, {"epochs": 3})
        prints.add(
            fit(
                knobs, regressor, whole.select(torch.arange(60)), whole.select(torch.arange(60, 80))
            ).fingerprint()
        )
    assert len(prints) == 1


def test_what_the_watch_expects_is_what_enumeration_gives(lab: DescribedLab) -> None:
    """R = mean of Z / exp(g), and the reference's variance of x, by sums over all strings."""
    regressor = PromptRegressor(["numbers"], 64, lab.table, 16, 0.0).requires_grad_(False)
    regressor.label_mean.fill_(3.0)  # an untrained network around 3 nats
    whole = labelled(lab, regressor)
    found = watch_figures(regressor, whole, lab.records, Tilt(BETA, False, "sequence"))
    g = regressor(whole.features).double()
    ratios = (torch.tensor(lab.exact, dtype=torch.float64) - g).exp()
    assert found["ratio"] == pytest.approx(float(ratios.mean()), abs=4 * found["ratio_error"] + 0.02)
    assert found["between"] == pytest.approx(float(ratios.var()), rel=0.2)
    squares = []
    for index, record in enumerate(lab.records):
        modes, near = (int(x) for x in _numbers(record, lab.table))
        rewards = Landscape.of(Lab(modes=modes, near=near, prompts=384), index).rewards
        squares.append(
            (lab.reference + 2 * (BETA * rewards - g[index])).logsumexp(0).exp() - ratios[index] ** 2
        )
    assert found["within"] == pytest.approx(float(torch.stack(squares).mean()), rel=0.15)


def _numbers(record: PromptRecord, table: torch.Tensor) -> list[float]:
    return [float(table[token, 0]) for token in record.prompt_ids if not math.isnan(float(table[token, 0]))]
