"""What stage `proposals` stores, against plain forward passes and enumeration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from distmatch.data import proposals
from distmatch.data.proposal_labels import prompt_labels
from distmatch.data.proposal_records import (
    PromptRecord,
    Trajectory,
    read_manifest,
    read_proposals,
)
from distmatch.data.proposal_scoring import answer_logprobs
from distmatch.modules.language_model import LanguageModel
from distmatch.rewards import score
from distmatch.sampling.base import SamplingParams
from tests.unit.data.toy_model import EOS, LIMIT, all_answers, load_toy, step_logprobs, toy_config

quick = pytest.mark.usefixtures("without_report")


# ---- the numbers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers() -> list[tuple[int, ...]]:
    return all_answers(LIMIT)


def enumerated(
    policy: LanguageModel, prompt: tuple[int, ...], answers: list[tuple[int, ...]], temperature: float
) -> torch.Tensor:
    """Log-probability of every answer, (S,), and a check that they are a distribution."""
    logp = (step_logprobs(policy, prompt, answers) / temperature).log_softmax(dim=-1)
    total = torch.stack([row[range(len(a)), list(a)].sum() for row, a in zip(logp, answers, strict=True)])
    assert float(total.exp().sum()) == pytest.approx(1, abs=1e-5)
    return total


@quick
def test_stored_log_probabilities_are_those_of_plain_forward_passes(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path, proposals__prompts=1, proposals__samples=40)
    proposals.run(cfg)
    (record,) = read_proposals(proposals.proposals_folder(cfg))
    ids = [t.ids for t in record.trajectories]
    for policy, temperature, stored in (
        (load_toy(0), 1.2, record.log_ref),
        (load_toy(1), 0.9, record.log_proposal),
    ):
        logp = (step_logprobs(policy, record.prompt_ids, ids) / temperature).log_softmax(dim=-1)
        expected = [float(row[range(len(a)), list(a)].sum()) for row, a in zip(logp, ids, strict=True)]
        assert stored.tolist() == pytest.approx(expected, abs=1e-5)
    ends = [t.ids[-1] == EOS for t in record.trajectories]
    assert [t.finished for t in record.trajectories] == ends and not all(ends) and any(ends)
    assert all(len(t.ids) == t.length for t in record.trajectories)


@quick
@pytest.mark.parametrize("kind", ["alone", "mixed", "truncated and mixed"])
def test_the_estimate_is_the_enumerated_log_z(
    tmp_path: Path, answers: list[tuple[int, ...]], kind: str
) -> None:
    """Other weights, another temperature, answers cut at the limit, without and with a second proposal."""
    cfg = toy_config(tmp_path, proposals__prompts=24, proposals__samples=400)
    if kind == "truncated and mixed":
        cfg.proposals.models.other.top_p = 0.8  # allowed: the reference, which keeps all, is mixed in
    if kind != "alone":
        reference = {"share": 0.5, "temperature": 1.2, "top_p": 1.0, "model": None}
        OmegaConf.update(cfg, "proposals.models.reference", reference, force_add=True)
    proposals.run(cfg)
    made = prompt_labels(read_proposals(proposals.proposals_folder(cfg)), 3.0, "sequence")
    exact = exact_log_z(cfg, answers, list(made[0].prompt_ids))
    ratios = torch.tensor([label.log_z - exact for label in made], dtype=torch.float64).exp()
    error = float(ratios.std()) / math.sqrt(len(ratios))
    assert abs(float(ratios.mean()) - 1) < 3 * error < 0.15
    assert sum(label.coverage for label in made) / len(made) == pytest.approx(1, abs=0.1)


def exact_log_z(
    cfg: DictConfig, answers: list[tuple[int, ...]], prompt: list[int], kept: torch.Tensor | None = None
) -> float:
    policy, task = load_toy(0), instantiate(cfg.task)
    reward, instance = instantiate(cfg.reward), task.instance("train", 0)
    tilt = torch.tensor([3.0 * score(task, instance, policy.decode(a), reward).reward for a in answers])
    terms = enumerated(policy, tuple(prompt), answers, 1.2) + tilt
    return float((terms if kept is None else terms[kept]).logsumexp(dim=0))


@quick
def test_a_nucleus_covers_its_own_part_of_the_language(
    tmp_path: Path, answers: list[tuple[int, ...]]
) -> None:
    cfg = toy_config(
        tmp_path,
        proposals__prompts=4,
        proposals__samples=600,
        proposals__models__other__top_p=0.8,
        proposals__allow_truncated_support=True,
    )
    proposals.run(cfg)
    folder = proposals.proposals_folder(cfg)
    assert "lower bound" in read_manifest(folder)["support"]
    made = prompt_labels(read_proposals(folder), 3.0, "sequence")
    kept = in_nucleus(load_toy(1), made[0].prompt_ids, answers, temperature=0.9, top_p=0.8)
    assert 0 < int(kept.sum()) < len(answers)
    part, whole = (
        exact_log_z(cfg, answers, list(made[0].prompt_ids), k) for k in (kept, torch.ones_like(kept))
    )
    assert part < whole - 0.1
    for label in made:
        assert abs(label.log_z - part) < max(4 * math.sqrt(label.variance), 1e-6)


def in_nucleus(
    policy: LanguageModel,
    prompt: tuple[int, ...],
    answers: list[tuple[int, ...]],
    *,
    temperature: float,
    top_p: float,
) -> torch.Tensor:
    """Which answers have only tokens before which, in falling order, less than `top_p` of the mass lies."""
    p = (step_logprobs(policy, prompt, answers) / temperature).softmax(dim=-1)
    kept = []
    for row, answer in zip(p, answers, strict=True):
        heavier = [float(row[t][row[t] > row[t, token]].sum()) for t, token in enumerate(answer)]
        kept.append(all(mass < top_p for mass in heavier))
    return torch.tensor(kept)


def test_scoring_shares_the_prompt_and_changes_nothing() -> None:
    policy, prompt = load_toy(2), [1, 6, 7]
    ids = torch.tensor([[4, 5, 4, EOS], [EOS, 0, 0, 0], [5, 5, EOS, 0], [4, 4, 4, 4], [5, EOS, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    rows = len(ids)
    heads = torch.tensor([prompt] * rows)
    expected = policy(heads, torch.ones_like(heads).bool(), ids, mask, temperature=0.7).logprobs
    for side_by_side in (1, 2, 512):
        found = answer_logprobs(policy, prompt, ids, mask, SamplingParams(1, 4, 0.7), side_by_side)
        assert torch.allclose(found, expected.double(), atol=1e-5)
    single = answer_logprobs(policy, prompt, ids[:, :1], mask[:, :1], SamplingParams(1, 4, 0.7))
    assert torch.allclose(single, expected[:, :1].double(), atol=1e-5)


def test_the_balance_heuristic_is_the_mixture_by_counts() -> None:
    logp = [(-1.0, -3.0), (-2.0, -0.5), (-4.0, -math.inf), (-1.5, -2.5)]
    trajectories = tuple(
        Trajectory((1,), True, -1.0, pair, 0.0, 1, "", source)
        for pair, source in zip(logp, (0, 0, 0, 1), strict=True)
    )
    record = PromptRecord(0, "train", 0, "x", (1,), trajectories)
    expected = [math.log(0.75 * math.exp(a) + 0.25 * math.exp(b)) for a, b in logp]
    assert record.log_proposal.tolist() == pytest.approx(expected)
