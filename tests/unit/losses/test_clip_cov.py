"""Clip-Cov: which tokens may be left out, how many are, and what the draw depends on."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.clip_cov import ClipCovLoss, pick, token_keys
from distmatch.losses.policy_gradient import GRPOLoss
from tests.builders import make_batch, make_policy, take_rows

WIDE = {"cov_low": -100.0, "cov_high": 100.0}  # every token is a candidate


def large_batch() -> RolloutBatch:
    return make_batch(4, 8, lengths=[1, 5, 9, 3] * 8, seed=3)


def gradient(loss, batch: RolloutBatch, policy: PolicyOutput, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return torch.autograd.grad(loss(batch, policy).loss, policy.logprobs)[0]


def left_out(batch: RolloutBatch, policy: PolicyOutput, seed: int = 0, **settings) -> Tensor:
    """Where GRPO has a gradient and Clip-Cov has none; all else must be the same."""
    loss = ClipCovLoss(**{**WIDE, "share": 0.25, **settings})
    plain, grad = gradient(GRPOLoss(), batch, policy), gradient(loss, batch, policy, seed)
    gone = (plain != 0) & (grad == 0)
    torch.testing.assert_close(grad, plain.masked_fill(gone, 0.0))
    return gone


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1.0])
def test_leaves_out_the_share_and_keeps_the_denominator(share: float) -> None:
    batch = large_batch()
    policy = make_policy(batch, logprobs=batch.old_logprobs)
    assert left_out(batch, policy, share=share).sum() == int(share * batch.totals.tokens)
    metrics = ClipCovLoss(share=share, **WIDE)(batch, policy).metrics
    assert metrics["clip_cov_candidates"] == 1.0
    assert metrics["clip_cov_fraction"] == pytest.approx(
        int(share * batch.totals.tokens) / batch.totals.tokens
    )


def test_small_batches_leave_out_nothing_unless_asked() -> None:
    batch = large_batch()
    policy = make_policy(batch, logprobs=batch.old_logprobs)
    assert left_out(batch, policy, share=2e-4).sum() == 0
    assert left_out(batch, policy, share=2e-4, at_least_one=True).sum() == 1
    assert left_out(batch, policy, cov_low=90.0, at_least_one=True).sum() == 0  # no candidate


def test_candidates_lie_between_the_limits() -> None:
    batch = large_batch()
    policy = make_policy(batch, drift=0.1)
    mask, advantages = batch.loss_mask, GRPOLoss().advantages(batch)[:, None].expand(batch.loss_mask.shape)
    logprobs = policy.logprobs.detach()
    cov = (advantages - advantages[mask].mean()) * (logprobs - logprobs[mask].mean())
    expected = mask & (cov > 0.2) & (cov < 0.9)
    clipped = gradient(GRPOLoss(), batch, policy) == 0
    assert 5 < expected.sum() < mask.sum() - 5
    gone = left_out(batch, policy, share=1.0, cov_low=0.2, cov_high=0.9)
    assert torch.equal(gone, expected & ~clipped)


def test_tokens_that_the_ratio_has_clipped_are_not_counted() -> None:
    batch = large_batch()
    policy = make_policy(batch, drift=0.6)
    candidates = ClipCovLoss(share=1.0, **WIDE)(batch, policy).metrics["clip_cov_candidates"]
    clipped = (gradient(GRPOLoss(), batch, policy) == 0)[batch.loss_mask].float().mean()
    assert clipped > 0.1 and candidates == pytest.approx(1 - clipped.item())


def test_the_draw_repeats_with_the_seed_and_differs_without() -> None:
    batch = large_batch()
    policy = make_policy(batch, logprobs=batch.old_logprobs)
    first = left_out(batch, policy, seed=1)
    assert torch.equal(first, left_out(batch, policy, seed=1))
    assert not torch.equal(first, left_out(batch, policy, seed=2))


def test_every_candidate_has_the_same_chance() -> None:
    batch = large_batch()
    policy = make_policy(batch, logprobs=batch.old_logprobs)
    drawn = torch.stack([left_out(batch, policy, seed=seed) for seed in range(400)]).float().mean(dim=0)
    chances = drawn[batch.loss_mask]
    assert chances.mean() == pytest.approx(0.25, abs=0.01)
    assert (chances - 0.25).abs().max() < 5 * (0.25 * 0.75 / 400) ** 0.5


@pytest.mark.parametrize("what", ["inside", "groups"])
def test_the_draw_does_not_depend_on_order(what: str) -> None:
    batch = large_batch()
    policy = make_policy(batch, logprobs=batch.old_logprobs)
    grid = torch.arange(32).view(4, 8)
    rows = (grid[:, torch.arange(7, -1, -1)] if what == "inside" else grid[[2, 0, 3, 1]]).reshape(-1)
    changed = {
        field.name: getattr(batch, field.name)[rows]
        for field in dataclasses.fields(batch)
        if isinstance(getattr(batch, field.name), Tensor)
    }
    moved = dataclasses.replace(batch, **changed)
    assert torch.equal(left_out(moved, take_rows(policy, rows)), left_out(batch, policy)[rows])


def test_the_draw_does_not_depend_on_padding_or_masked_tokens() -> None:
    batch = make_batch(masked_rows=[2])
    torch.manual_seed(0)
    keys = token_keys(batch)
    spoilt = batch.completion_ids.masked_fill(~batch.loss_mask, 7)
    wide = {
        name: torch.nn.functional.pad(getattr(batch, name), (0, 4))
        for name in ("completion_mask", "loss_mask", "sampler_logprobs", "old_logprobs", "ref_logprobs")
    }
    wide |= {"completion_ids": torch.nn.functional.pad(spoilt, (0, 4), value=7), "old_values": None}
    torch.manual_seed(0)
    padded = token_keys(dataclasses.replace(batch, **wide))
    assert torch.equal(padded[:, : keys.shape[1]][batch.loss_mask], keys[batch.loss_mask])


def test_equal_answers_of_two_groups_draw_apart() -> None:
    batch = make_batch(2, 2, lengths=[4] * 4)
    batch = dataclasses.replace(batch, completion_ids=torch.ones(4, 4, dtype=torch.long))
    keys = token_keys(batch)
    assert torch.equal(keys[0], keys[1]) and keys.unique().numel() == 8


def test_pick_takes_the_smallest_keys_of_candidates_only() -> None:
    candidates = torch.tensor([[True, False, True], [True, False, True]])
    keys = torch.tensor([[5, 1, -3], [7, 0, 4]])
    assert pick(candidates, 2, keys).tolist() == [[False, False, True], [False, False, True]]
    assert torch.equal(pick(candidates, 99, keys), candidates)
    assert not pick(candidates, 0, keys).any() and not pick(candidates & False, 3, keys).any()


def test_nothing_to_learn_is_safe() -> None:
    for batch in (make_batch(rewards=[1.0] * 12), make_batch(masked_rows=range(12))):
        loss = ClipCovLoss(at_least_one=True, **WIDE)
        assert (gradient(loss, batch, make_policy(batch)) == 0).all()


@pytest.mark.parametrize("settings", [{"share": -0.1}, {"share": 1.5}, {"cov_low": 5.0}])
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match="share"):
        ClipCovLoss(**settings)
