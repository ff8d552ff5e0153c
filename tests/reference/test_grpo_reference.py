"""GRPOLoss against plain Python written from the papers' formulas, a worked example, finite differences."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from distmatch.losses.policy_gradient import GRPOLoss
from tests.builders import make_batch, make_policy


def grpo(batch, logprobs, *, clip_low, clip_high, dual_clip, aggregation, length, scale, kl_coef) -> float:
    """DeepSeekMath (arXiv 2402.03300) eq. 3 and 4 with token ratios, loop by loop."""
    mask, rewards = batch.loss_mask.tolist(), batch.rewards.tolist()
    old, ref, new = batch.old_logprobs.tolist(), batch.ref_logprobs.tolist(), logprobs.tolist()
    per_row = []
    for row, reward in enumerate(rewards):
        first = row // batch.group_size * batch.group_size
        group = [rewards[i] for i in range(first, first + batch.group_size) if any(mask[i])]
        tokens = []
        for t, on in enumerate(mask[row]):
            if not on:
                continue
            spread = statistics.stdev(group) + 1e-6 if scale else 1.0
            advantage = (reward - statistics.mean(group)) / spread
            ratio = math.exp(new[row][t] - old[row][t])
            objective = min(ratio * advantage, min(max(ratio, 1 - clip_low), 1 + clip_high) * advantage)
            if dual_clip is not None and advantage < 0:
                objective = max(objective, dual_clip * advantage)
            gap = ref[row][t] - new[row][t]
            tokens.append(-objective + kl_coef * (math.exp(gap) - gap - 1))
        per_row.append(tokens)
    live = [tokens for tokens in per_row if tokens]
    total = sum(map(sum, live))
    if aggregation == "token_mean":
        return total / sum(map(len, live))
    if aggregation == "seq_mean_token_mean":
        return sum(sum(tokens) / len(tokens) for tokens in live) / len(live)
    if aggregation == "seq_mean_token_sum":
        return total / len(live)
    if aggregation == "constant":
        return total / (len(live) * length)
    size = batch.group_size
    groups = [[x for tokens in per_row[i : i + size] for x in tokens] for i in range(0, len(per_row), size)]
    groups = [tokens for tokens in groups if tokens]
    return sum(sum(tokens) / len(tokens) for tokens in groups) / len(groups)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("masked", [(), (1, 6, 8, 9, 10, 11)])
@pytest.mark.parametrize(
    "aggregation",
    ["token_mean", "group_mean_token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"],
)
@pytest.mark.parametrize(
    "options", [(None, True, 0.0), (1.5, False, 0.2)], ids=["published", "dual-unscaled-kl"]
)
def test_agrees_with_loops(seed: int, masked, aggregation: str, options) -> None:
    dual_clip, scale, kl_coef = options
    length = 9 if aggregation == "constant" else None
    batch = make_batch(seed=seed, masked_rows=masked, dtype=torch.float64)
    policy = make_policy(batch, drift=0.6, seed=seed + 10)
    loss = GRPOLoss(0.2, 0.28, dual_clip, aggregation, length, scale, kl_coef, kl_loss="k3")
    expected = grpo(
        batch,
        policy.logprobs,
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=dual_clip,
        aggregation=aggregation,
        length=length,
        scale=scale,
        kl_coef=kl_coef,
    )
    assert loss(batch, policy).loss.item() == pytest.approx(expected, rel=1e-9)


def test_hand_worked_example() -> None:
    """Rewards 1, 0: A = +-0.5/sqrt(0.5) = +-0.70711. Ratios 1.5 (clipped to 1.2) and 1.5 (not clipped)."""
    batch = make_batch(1, 2, rewards=[1.0, 0.0], lengths=[1, 1], dtype=torch.float64)
    policy = make_policy(batch, logprobs=batch.old_logprobs + math.log(1.5))
    expected = (-1.2 * 0.70710578 + 1.5 * 0.70710578) / 2  # 0.5 / (0.70710678 + 1e-6)
    assert GRPOLoss()(batch, policy).loss.item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_finite_differences(aggregation: str) -> None:
    batch = make_batch(2, 3, masked_rows=[4], dtype=torch.float64)
    policy = make_policy(batch, drift=0.5)
    loss = GRPOLoss(aggregation=aggregation, dual_clip=3.0, kl_coef=0.1, kl_loss="k3")
    torch.autograd.gradcheck(lambda x: loss(batch, make_like(policy, x)).loss, policy.logprobs)


def make_like(policy, logprobs):
    return type(policy)(logprobs, policy.entropy, policy.values, policy.prompt_hidden)
