"""What every loss of configs/algo must hold, whatever it computes. A new YAML file is picked up by itself."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch, Totals
from distmatch.losses.base import NEEDS, Loss
from tests.anchors import anchor_folder
from tests.builders import make_batch, make_policy, take_rows

ALGO_FOLDER = Path(__file__).parents[2] / "configs" / "algo"
ALGOS = sorted(file.stem for file in ALGO_FOLDER.glob("*.yaml") if file.stem != "custom")
VARIANTS = {
    "grpo": [
        ["algo.kl_coef=0.1", "algo.dual_clip=3.0"],
        ["algo.kl_coef=0.1", "algo.kl_loss=k3", "algo.aggregation=seq_mean_token_mean"],
        ["algo.scale_rewards=false", "algo.aggregation=constant", "algo.constant_length=7"],
        ["algo.aggregation=group_mean_token_mean"],
    ],
    "dmpo": [
        ["algo.divergence=js", "algo.target_source=advantage"],
        ["algo.divergence=forward_kl", "algo.base.kl_coef=0.1"],
        ["algo.divergence=log_mse", "algo.length_normalize=false", "algo.zero_signal=drop"],
        ["algo.base=null"],
        ["algo@algo.base=ppo"],
    ],
    "gspo": [["algo.kl_coef=0.1"]],
    "sft": [["algo.aggregation=seq_mean_token_sum", "algo.min_reward=0.9"]],
    "gpg": [["algo.scale_rewards=true"]],
    "reinforce": [["algo.group_baseline=true"]],
    "pass_at_k_best": [["algo.scale_rewards=true"]],
    "vargrad": [["algo.importance_weight=clipped", "algo.reward_source=group_zscore"]],
    "trajectory_balance": [["algo.length_normalize=true", "algo.coefficient=0.02"]],
    # Not here: whiten=true, which is defined by a rank's own tokens.
    "ppo": [
        ["algo.gae_lambda=0.9", "algo.gamma=0.99", "algo.kl_coef=0.1", "algo.dual_clip=3.0"],
        ["algo.value_clip=null", "algo.value_coef=0.1", "algo.aggregation=seq_mean_token_mean"],
    ],
    "corrected": [
        ["algo.level=token", "algo.bound=truncate", "algo.limit=2.0"],
        ["algo@algo.base=ppo", "algo.limit_low=0.3"],
        ["algo@algo.base=dmpo"],
        ["algo@algo.base=flowrl"],
        ["algo@algo.base=gspo", "algo.bound=truncate"],
    ],
    "disa": [["algo.importance_weight=unclipped"], ["algo.importance_weight=none", "algo.coefficient=0.1"]],
    "flowrl": [["algo.importance_weight=unclipped", "algo.reward_source=raw", "algo.length_normalize=false"]],
}
CASES = [(algo, tuple(extra)) for algo in ALGOS for extra in [[], *VARIANTS.get(algo, [])]]


@pytest.fixture(
    params=CASES, ids=lambda case: "-".join([case[0], *(x.removeprefix("algo.") for x in case[1])])
)
def loss(request: pytest.FixtureRequest) -> Loss:
    algo, extra = request.param
    return make_loss(algo, *extra)


def make_loss(algo: str, *overrides: str) -> Loss:
    """Build a loss as run.py does, with a fixed seed for what it learns."""
    torch.manual_seed(0)
    return instantiate(compose_algo(algo, *overrides, *prepared(algo)))


@functools.cache
def prepared(algo: str) -> tuple[str, ...]:
    """What earlier stages of a run would have put into the config."""
    if algo != "disa":
        return ()
    folder = anchor_folder(Path(tempfile.mkdtemp()) / "anchor")
    return (f"algo.log_z.folder={folder}",)


@functools.cache
def compose_algo(algo: str, *overrides: str) -> DictConfig:
    """The composed algo node alone."""
    with initialize_config_dir(str(ALGO_FOLDER.parent), version_base="1.3"):
        return compose(overrides=[f"+algo={algo}", *overrides]).algo


def run(loss: Loss, batch: RolloutBatch, policy: PolicyOutput) -> tuple[Tensor, Tensor]:
    """Loss and its gradient in log-probabilities and, where there is a critic, in values: (B, T, 1 or 2)."""
    output = loss(batch, policy)
    inputs = [policy.logprobs, *([policy.values] if "values" in loss.requires else [])]
    grad = torch.stack(torch.autograd.grad(output.loss, inputs), dim=-1)
    for name, value in output.metrics.items():
        tensor = torch.as_tensor(value)
        assert tensor.ndim == 0 and not tensor.requires_grad, name
        assert torch.isfinite(tensor), name
    assert output.loss.ndim == 0 and torch.isfinite(output.loss) and torch.isfinite(grad).all()
    return output.loss.detach(), grad


def reorder(batch: RolloutBatch, policy: PolicyOutput, rows: Tensor) -> tuple[RolloutBatch, PolicyOutput]:
    changed = {
        field.name: getattr(batch, field.name)[rows]
        for field in dataclasses.fields(batch)
        if isinstance(getattr(batch, field.name), Tensor)
    }
    return dataclasses.replace(batch, **changed), take_rows(policy, rows)


def test_declares_known_needs(loss: Loss) -> None:
    assert loss.requires <= NEEDS
    assert isinstance(loss.drops_zero_signal_groups, bool)
    assert loss.min_group_size >= 1
    for hidden in (1, 64, 128, 200) if "values" in loss.requires else ():  # a critic reads states of any size
        states = torch.randn(3, 7, hidden)
        values = loss.value_head(states)
        assert values.shape == (3, 7, 1) and torch.isfinite(values).all()
        torch.testing.assert_close(loss.value_head(states[:1, 2:4]), values[:1, 2:4])


def test_finite_and_learns_from_signal(loss: Loss) -> None:
    batch = make_batch()
    _, grad = run(loss, batch, make_policy(batch))
    assert (grad.abs().amax(dim=(0, 1)) > 0).all()


def test_owns_its_parameters_once(loss: Loss) -> None:
    """Final shapes at construction, each in one optimizer group and under one name in checkpoints."""
    own = [id(p) for p in loss.parameters()]
    grouped = [id(p) for group in loss.param_groups(0.1) for p in group["params"]]
    assert sorted(grouped) == sorted(own)
    assert len(loss.state_dict()) == len({value.data_ptr() for value in loss.state_dict().values()})
    assert not any(torch.nn.parameter.is_lazy(p) for p in loss.parameters())


def test_padding_changes_nothing(loss: Loss) -> None:
    narrow, wide = make_batch(width=7), make_batch(width=7)
    policy = make_policy(narrow)

    def pad(tensor: Tensor, value: float = 0.0) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, 3), value=value)

    names = (
        "completion_ids",
        "completion_mask",
        "loss_mask",
        "sampler_logprobs",
        "old_logprobs",
        "ref_logprobs",
        "old_values",
    )
    wide = dataclasses.replace(wide, **{name: pad(getattr(wide, name)) for name in names})
    padded = PolicyOutput(
        pad(policy.logprobs.detach()).requires_grad_(),
        pad(policy.entropy),
        pad(policy.values),
        policy.prompt_hidden,
    )
    (value, grad), (wide_value, wide_grad) = run(loss, narrow, policy), run(loss, wide, padded)
    torch.testing.assert_close(wide_value, value)
    torch.testing.assert_close(wide_grad[:, :7], grad)
    assert (wide_grad[:, 7:] == 0).all()


@pytest.mark.parametrize("garbage", [-6.0, 50.0, float("-inf"), float("nan")])
def test_masked_positions_neither_matter_nor_learn(loss: Loss, garbage: float) -> None:
    batch = make_batch(masked_rows=[1, 6])
    policy = make_policy(batch)
    dead = ~batch.loss_mask
    value, grad = run(loss, batch, policy)

    def spoil(tensor: Tensor) -> Tensor:
        return tensor.detach().masked_fill(dead, garbage).requires_grad_()

    names = ("sampler_logprobs", "old_logprobs", "ref_logprobs", "old_values")
    spoilt = dataclasses.replace(batch, **{name: spoil(getattr(batch, name)).detach() for name in names})
    outputs = PolicyOutput(
        *map(spoil, (policy.logprobs, policy.entropy, policy.values)), policy.prompt_hidden
    )
    other_value, other_grad = run(loss, spoilt, outputs)
    torch.testing.assert_close(other_value, value)
    torch.testing.assert_close(other_grad, grad)
    assert (other_grad[dead] == 0).all()


def test_rewards_of_masked_rows_do_not_matter(loss: Loss) -> None:
    batch = make_batch(masked_rows=[1, 6])
    rewards = batch.rewards.clone()
    rewards[[1, 6]] = torch.tensor([-5.0, 9.0])
    other = dataclasses.replace(batch, rewards=rewards)
    torch.testing.assert_close(run(loss, other, make_policy(other)), run(loss, batch, make_policy(batch)))


@pytest.mark.parametrize("what", ["inside", "groups"])
def test_order_changes_nothing(loss: Loss, what: str) -> None:
    batch = make_batch(masked_rows=[5])
    policy = make_policy(batch)
    grid = torch.arange(batch.rows).view(batch.groups, batch.group_size)
    rows = (grid[:, [2, 0, 3, 1]] if what == "inside" else grid[[2, 0, 1]]).reshape(-1)
    (value, grad), (moved_value, moved_grad) = (
        run(loss, batch, policy),
        run(loss, *reorder(batch, policy, rows)),
    )
    torch.testing.assert_close(moved_value, value)
    torch.testing.assert_close(moved_grad, grad[rows])


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, -1.5])
def test_equal_rewards_are_safe(loss: Loss, reward: float) -> None:
    batch = make_batch(rewards=[reward] * 12)
    run(loss, batch, make_policy(batch))


@pytest.mark.parametrize("gap", [90.0, -90.0])
def test_extreme_log_ratios_stay_finite(loss: Loss, gap: float) -> None:
    batch = make_batch()
    shift = torch.zeros_like(batch.old_logprobs)
    shift[:, 0] = gap
    batch = dataclasses.replace(
        batch, old_logprobs=batch.old_logprobs + shift, ref_logprobs=batch.ref_logprobs - shift
    )
    run(loss, batch, make_policy(batch))


def test_impossible_reference_tokens_stay_finite(loss: Loss) -> None:
    batch = make_batch()
    ref = batch.ref_logprobs.clone()
    ref[0, 0] = -torch.inf
    batch = dataclasses.replace(batch, ref_logprobs=ref)
    run(loss, batch, make_policy(batch))


@pytest.mark.parametrize("scale", [1000.0, 1e-6])
def test_any_reward_scale_is_finite(loss: Loss, scale: float) -> None:
    batch = make_batch()
    batch = dataclasses.replace(batch, rewards=batch.rewards * scale)
    run(loss, batch, make_policy(batch))


def test_all_masked_gives_zero_with_a_graph(loss: Loss) -> None:
    batch = make_batch(masked_rows=range(12))
    value, grad = run(loss, batch, make_policy(batch))
    assert value == 0 and (grad == 0).all()


def test_one_live_row_in_a_group_is_safe(loss: Loss) -> None:
    batch = make_batch(masked_rows=[0, 1, 2])
    run(loss, batch, make_policy(batch))


def test_missing_needs_are_named(loss: Loss) -> None:
    batch = make_batch()
    policy = make_policy(batch)
    for need in loss.requires:
        owner = batch if hasattr(batch, need) else policy
        lacking = dataclasses.replace(owner, **{need: None})
        pair = (lacking, policy) if owner is batch else (batch, lacking)
        with pytest.raises(ValueError, match=need):
            loss(*pair)


def test_too_small_groups_are_refused(loss: Loss) -> None:
    if loss.min_group_size < 2:
        pytest.skip("defined for groups of one")
    batch = make_batch(group_size=1)
    with pytest.raises(ValueError, match="group_size=1"):
        loss(batch, make_policy(batch))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_rewards_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="rewards are nan or infinite in rows \\[2\\]"):
        make_batch(groups=1, rewards=[0.0, 1.0, bad, 0.0])
    with pytest.raises(ValueError, match="rewards must be a tensor"):
        dataclasses.replace(make_batch(), rewards=None)


def test_two_ranks_give_the_update_of_one(loss: Loss) -> None:
    """Uneven lengths; four groups against three, of which one has equal rewards and one is all masked."""
    rewards = torch.rand(28, generator=torch.Generator().manual_seed(3))
    rewards[16:20] = 0.5
    lengths = [2, 50, 3, 3] + [1, 9, 4, 30] * 6
    whole = make_batch(7, 4, rewards=rewards, lengths=lengths, masked_rows=[5, *range(20, 24)])
    policy = make_policy(whole)
    value, grad = run(loss, whole, policy)
    parts = [torch.arange(0, 4), torch.arange(4, 7)]
    batches = [whole.select_groups(part) for part in parts]
    counts = [dataclasses.astuple(batch.totals) for batch in batches]
    assert [sum(column) for column in zip(*counts, strict=True)] == list(dataclasses.astuple(whole.totals))
    totals = Totals(*(sum(column) / 2 for column in zip(*counts, strict=True)))
    values, grads = [], []
    for part, batch in zip(parts, batches, strict=True):
        rows = (part[:, None] * 4 + torch.arange(4)).reshape(-1)
        out = run(loss, dataclasses.replace(batch, totals=totals), take_rows(policy, rows))
        values.append(out[0])
        grads.append(out[1] / 2)  # DDP's mean over ranks
    torch.testing.assert_close(sum(values) / 2, value)
    torch.testing.assert_close(torch.cat(grads), grad)


def test_a_rank_with_nothing_to_learn_still_takes_part(loss: Loss) -> None:
    whole = make_batch(2, 4, masked_rows=range(4, 8))
    policy = make_policy(whole)
    _, grad = run(loss, whole, policy)
    totals = Totals(*(x / 2 for x in dataclasses.astuple(whole.totals)))
    halves = []
    for part in (0, 1):
        batch = dataclasses.replace(whole.select_groups(torch.tensor([part])), totals=totals)
        halves.append(run(loss, batch, take_rows(policy, torch.arange(4 * part, 4 * part + 4)))[1] / 2)
    torch.testing.assert_close(torch.cat(halves), grad)


@pytest.mark.parametrize("algo", ["algo=dmpo", "algo=grpo"])
def test_composes_from_the_train_config(algo: str) -> None:
    with initialize_config_dir(str(ALGO_FOLDER.parent), version_base="1.3"):
        node = compose("train", overrides=[algo]).algo
    assert isinstance(instantiate(node), Loss)


def test_the_base_of_dmpo_can_be_swapped() -> None:
    loss = make_loss("dmpo", "algo@algo.base=custom", "algo.base._target_=distmatch.losses.dmpo.DMPOLoss")
    assert type(loss.base).__name__ == "DMPOLoss" and loss.base.base is None


def test_custom_yaml_takes_any_target() -> None:
    loss = make_loss(
        "custom", "algo._target_=distmatch.losses.policy_gradient.GRPOLoss", "+algo.clip_high=0.3"
    )
    assert loss.clip_high == 0.3


@pytest.mark.parametrize("file", sorted(ALGO_FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_first_line_says_where_it_is_from(file: Path) -> None:
    assert file.read_text().startswith("# ")
