"""PolicyModule: chunking keeps the gradient, nothing unneeded is computed, nothing broken is trained on."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from lightning import Trainer
from torch import nn

from distmatch.batch import LossOutput, PolicyOutput, RolloutBatch
from distmatch.losses.base import Loss
from distmatch.losses.dmpo import DMPOLoss
from distmatch.losses.pass_at_k import PassAtKLoss
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.modules.evidence import NonFiniteError
from distmatch.modules.language_model import LanguageModel, load_language_model
from distmatch.modules.policy import PolicyModule
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler, left_pad

PROMPTS = [[1, 8, 30, 31, 40, 41], [1, 9], [1, 10, 50]]
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}


def module(policy: LanguageModel, loss: Loss | None = None, **settings: object) -> PolicyModule:
    return PolicyModule(
        policy, loss or DMPOLoss(base=GRPOLoss()), SamplingParams(n=4, max_tokens=9), **settings
    )


def rollouts(policy: LanguageModel, rewards: list[float] | None = None) -> RolloutBatch:
    sampler = HFSampler()
    sampler.setup(policy)
    out = sampler.sample(PROMPTS, SamplingParams(n=4, max_tokens=9), list(range(12)))
    ids, mask = left_pad([p for p in PROMPTS for _ in range(4)], torch.device("cpu"))
    lengths = torch.tensor([9, 1, 4, 2, 3, 3, 9, 5, 1, 2, 8, 6])
    kept = torch.arange(out.ids.shape[1])[None] < torch.minimum(lengths, out.mask.sum(dim=1))[:, None]
    return RolloutBatch(
        prompt_ids=ids,
        prompt_mask=mask,
        completion_ids=out.ids,
        completion_mask=kept,
        loss_mask=kept,
        rewards=torch.tensor(rewards or [0.1, 1.0, 0.4, 0.0] * 3),
        group_size=4,
        group_ids=torch.arange(3).repeat_interleave(4),
        truncated=torch.zeros(12, dtype=torch.bool),
        sampler_logprobs=out.logprobs,
    )


def gradients(made: PolicyModule, batch: RolloutBatch) -> dict[str, torch.Tensor]:
    made.zero_grad()
    output = made(batch)
    old = output.logprobs.detach() - 0.1 * torch.randn(output.logprobs.shape, generator=torch.manual_seed(0))
    made.loss(dataclasses.replace(batch, old_logprobs=old), output).loss.backward()
    return {name: p.grad.clone() for name, p in made.policy.trainable().items()}


@pytest.mark.parametrize("tokens", [1, 20, 45])
def test_chunked_gradient_is_the_gradient(small_policy: LanguageModel, tokens: int) -> None:
    batch = rollouts(small_policy)
    whole = gradients(module(small_policy, micro_batch_tokens=10**6), batch)
    chunked = gradients(module(small_policy, micro_batch_tokens=tokens), batch)
    for name, expected in whole.items():
        assert torch.allclose(chunked[name], expected, atol=1e-6, rtol=1e-4), name


def test_small_chunks_hold_fewer_activations(small_policy: LanguageModel) -> None:
    batch = rollouts(small_policy)

    def saved_bytes(tokens: int) -> int:
        held = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal held
            held += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(small_policy, micro_batch_tokens=tokens)(batch)
        return held

    assert saved_bytes(45) < saved_bytes(10**6) / 10


class Recorder(Loss):
    """Needs what a test tells it to."""

    def __init__(self, *needs: str, head: nn.Module | None = None) -> None:
        super().__init__()
        self.requires = frozenset(needs)
        self.value_head = head
        self.seen: list[tuple[RolloutBatch, PolicyOutput]] = []

    def forward(self, batch: RolloutBatch, policy: PolicyOutput) -> LossOutput:
        self.seen.append((batch, policy))
        return LossOutput(policy.logprobs.mean(), {})


def test_nothing_is_computed_unless_asked_for(small_policy: LanguageModel) -> None:
    made = module(small_policy, Recorder(), log_entropy=False)
    batch = made.annotate(rollouts(small_policy))
    out = made(batch)
    assert (batch.old_logprobs, batch.ref_logprobs, batch.ref_prompt_hidden, batch.old_values) == (None,) * 4
    assert (out.entropy, out.values, out.prompt_hidden) == (None,) * 3


def test_everything_asked_for_is_there(small_policy: LanguageModel) -> None:
    needs = ("old_logprobs", "ref_logprobs", "ref_prompt_hidden", "prompt_hidden", "entropy", "values")
    made = module(small_policy, Recorder(*needs, head=nn.Linear(64, 1)))
    made.updates_per_rollout = 2
    batch = made.annotate(rollouts(small_policy))
    out = made(batch)
    assert torch.equal(batch.ref_logprobs, batch.old_logprobs)  # the reference is the initial policy
    assert torch.allclose(out.logprobs, batch.old_logprobs, atol=1e-6)
    assert torch.allclose(batch.ref_prompt_hidden, out.prompt_hidden, atol=1e-6)
    assert torch.allclose(batch.old_values, out.values, atol=1e-6)
    assert out.entropy.requires_grad
    assert (out.entropy >= 0).all()


def test_entropy_that_is_only_logged_has_no_gradient(small_policy: LanguageModel) -> None:
    assert not module(small_policy, Recorder())(rollouts(small_policy)).entropy.requires_grad


def test_the_reference_stays_where_the_policy_began(small_policy: LanguageModel) -> None:
    made = module(small_policy, Recorder("ref_logprobs"))
    batch = rollouts(small_policy)
    before = made.annotate(batch).ref_logprobs
    with torch.no_grad():
        for parameter in small_policy.trainable().values():
            parameter.mul_(1.1)
    assert torch.equal(made.annotate(batch).ref_logprobs, before)
    assert not any("reference" in name for name in made.state_dict())


def test_base_as_reference_means_the_model_without_its_adapter(
    small_policy: LanguageModel, tmp_path: Path
) -> None:
    small_policy.save(tmp_path)
    batch = rollouts(small_policy)
    plain = module(small_policy, Recorder("ref_logprobs")).annotate(batch).ref_logprobs
    adapted = load_language_model(str(tmp_path), "compact", lora=LORA)
    with torch.no_grad():
        for parameter in adapted.trainable().values():
            parameter.add_(0.05)
    made = module(adapted, Recorder("ref_logprobs"), reference="base")
    assert torch.allclose(made.annotate(batch).ref_logprobs, plain, atol=1e-6)
    assert not torch.allclose(made(batch).logprobs, plain, atol=1e-3)
    with pytest.raises(ValueError, match="'base' needs a LoRA model"):
        module(small_policy, Recorder("ref_logprobs"), reference="base")


def test_a_loss_that_cannot_work_is_refused_before_anything_is_sampled(small_policy: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"group_size=4 must be at least 5"):
        module(small_policy, PassAtKLoss(k=4, threshold=1.0))
    with pytest.raises(ValueError, match="requires telepathy, which nobody computes"):
        module(small_policy, Recorder("telepathy"))
    with pytest.raises(ValueError, match="has no value_head"):
        module(small_policy, Recorder("values"))


def test_one_step_with_signal_moves_lora_b(small_policy: LanguageModel, tmp_path: Path) -> None:
    small_policy.save(tmp_path)
    adapted = load_language_model(str(tmp_path), "compact", lora=LORA)
    made = module(adapted)
    gradients(made, rollouts(adapted))
    torch.optim.Adam(adapted.trainable().values(), lr=1e-3).step()
    moved = [p.abs().max().item() for name, p in adapted.trainable().items() if "lora_B" in name]
    assert max(moved) > 0


def test_nothing_to_train_is_refused(small_policy: LanguageModel) -> None:
    small_policy.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        module(small_policy)


def test_a_nan_weight_is_named_and_the_batch_kept(small_policy: LanguageModel, tmp_path: Path) -> None:
    batch = rollouts(small_policy)
    made = module(small_policy, dump_folder=str(tmp_path))
    made.updates_per_rollout = 2
    with torch.no_grad():
        small_policy.model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"layers\.1\.mlp\.up_proj\.weight.*batch is kept in"):
        made.annotate(batch)
    kept = torch.load(next(tmp_path.glob("nonfinite-*.pt")), weights_only=True)
    assert torch.equal(kept["completion_ids"], batch.completion_ids)


def test_an_infinite_gradient_stops_before_the_step(small_policy: LanguageModel) -> None:
    made = module(small_policy, Recorder())
    made(rollouts(small_policy)).logprobs.sum().mul(float("inf")).backward()
    before = small_policy.weights_hash()
    optimizer = torch.optim.Adam(small_policy.trainable().values())
    with pytest.raises(NonFiniteError, match=r"grad_norm is (nan|inf); gradients with nan or inf: model\."):
        made.configure_gradient_clipping(optimizer, 1.0)
    assert small_policy.weights_hash() == before


def test_flat_groups_leave_numerator_and_denominator_together(small_policy: LanguageModel) -> None:
    batch = rollouts(small_policy, [0.5] * 4 + [0.1, 1.0, 0.4, 0.0] * 2)
    dropping = module(small_policy, GRPOLoss(zero_signal="drop"))._prepare(batch)
    keeping = module(small_policy, GRPOLoss(zero_signal="keep"))._prepare(batch)
    assert keeping.totals.groups == 3
    assert dropping.totals.groups == 2
    assert not dropping.loss_mask[:4].any()
    assert dropping.totals.tokens == batch.loss_mask[4:].sum()


def test_checkpoints_keep_what_trains_and_refuse_other_models(
    small_policy: LanguageModel, tmp_path: Path
) -> None:
    small_policy.save(tmp_path)
    made = module(load_language_model(str(tmp_path), "compact", lora=LORA))
    checkpoint = {"state_dict": made.state_dict()}
    made.on_save_checkpoint(checkpoint)
    assert checkpoint["state_dict"]
    assert all("lora_" in name for name in checkpoint["state_dict"])

    same = module(load_language_model(str(tmp_path), "compact", lora=LORA))
    whole = dict(checkpoint)
    same.on_load_checkpoint(whole)
    same.load_state_dict(whole["state_dict"])

    with pytest.raises(ValueError, match="of another model or loss"):
        module(small_policy).on_load_checkpoint(dict(checkpoint))
    with torch.no_grad():
        next(iter(small_policy.model.parameters())).add_(1.0)
    small_policy.save(tmp_path / "other")
    other = module(load_language_model(str(tmp_path / "other"), "compact", lora=LORA))
    with pytest.raises(ValueError, match="other base weights"):
        other.on_load_checkpoint(dict(checkpoint))


def test_tied_weights_are_saved_under_both_names(small_policy: LanguageModel) -> None:
    made = module(small_policy)
    checkpoint = {"state_dict": made.state_dict()}
    made.on_save_checkpoint(checkpoint)
    assert set(checkpoint["state_dict"]) == set(made.state_dict())


# ---- precision ---------------------------------------------------------------------------------------------


@pytest.fixture
def mixed() -> Trainer:
    """A trainer under bf16-mixed on the CPU."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", precision="bf16-mixed", **quiet)


@pytest.mark.parametrize("tokens", [45, 10**6])
def test_under_mixed_precision_the_first_update_has_ratio_one(
    small_policy: LanguageModel, mixed: Trainer, tokens: int
) -> None:
    """What is annotated and the training step round alike; the reference is the policy here."""
    loss = Recorder("old_logprobs", "ref_logprobs")
    made = module(small_policy, loss, micro_batch_tokens=tokens)
    made.updates_per_rollout, made.trainer = 2, mixed
    batch = made.annotate(rollouts(small_policy))
    with mixed.precision_plugin.train_step_context():
        logged(made, batch, 0)
    seen, policy = loss.seen[0]
    assert torch.allclose(policy.logprobs, seen.old_logprobs, atol=1e-6)
    assert torch.allclose(policy.logprobs, seen.ref_logprobs, atol=1e-6)


# ---- mismatch ----------------------------------------------------------------------------------------------


def logged(made: PolicyModule, batch: RolloutBatch, batch_idx: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    made._log_step = lambda found: figures.update({k: float(v) for k, v in found.items()})
    made.training_step(batch, batch_idx)
    return {name: value for name, value in figures.items() if name.startswith("mismatch")}


def test_an_engine_that_says_a_tenth_more_is_measured(small_policy: LanguageModel) -> None:
    batch = rollouts(small_policy)
    engine = torch.where(batch.completion_mask, batch.sampler_logprobs + 0.1, 7.0)
    found = logged(module(small_policy), dataclasses.replace(batch, sampler_logprobs=engine), 0)
    assert found["mismatch_max"] == pytest.approx(0.1, abs=1e-5)
    assert found["mismatch_ratio_max"] == pytest.approx(math.exp(-0.1), abs=1e-5)
    assert found["mismatch_kl"] == pytest.approx(math.exp(-0.1) - 1 + 0.1, abs=1e-5)
    weights = [math.exp(-0.1 * int(length)) for length in batch.completion_mask.sum(dim=1)]
    share = sum(weights) ** 2 / (12 * sum(w * w for w in weights))
    assert found["mismatch_ess"] == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize("needs", [(), ("old_logprobs",)])
def test_the_engine_is_compared_with_the_policy_that_was_synced(
    small_policy: LanguageModel, needs: tuple[str, ...]
) -> None:
    """After an update the policy is another: without its old log-probabilities there is nothing to say."""
    made = module(small_policy, Recorder(*needs))
    made.updates_per_rollout = 2
    batch = made.annotate(rollouts(small_policy))
    assert logged(made, batch, 0)["mismatch_max"] < 1e-5
    with torch.no_grad():
        for parameter in small_policy.trainable().values():
            parameter.mul_(1.1)
    later = logged(made, batch, 1)
    assert later["mismatch_max"] < 1e-5 if needs else not later


def test_stored_trajectories_have_no_mismatch(small_policy: LanguageModel) -> None:
    batch = rollouts(small_policy)
    unknown = torch.full_like(batch.sampler_logprobs, torch.nan)
    assert not logged(
        module(small_policy, Recorder()), dataclasses.replace(batch, sampler_logprobs=unknown), 0
    )
