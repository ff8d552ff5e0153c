"""PolicyModule: a language model, a loss plug-in and an optimizer under Lightning's automatic optimization.

The loss sees a whole batch of whole groups; memory is handled below it, by scoring in chunks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from distmatch.batch import PolicyOutput, RolloutBatch, Totals
from distmatch.losses.base import Loss, check_declaration, check_output
from distmatch.metrics.benchmark import BenchmarkMetrics
from distmatch.modules.evidence import NonFiniteError, blame, keep
from distmatch.modules.language_model import LanguageModel, Reference
from distmatch.modules.mismatch import LARGEST, mismatch_figures
from distmatch.modules.optimization import Optimization
from distmatch.modules.scoring import score
from distmatch.modules.trained_state import check_trained, trained_names
from distmatch.ops import flat_groups, masked_mean
from distmatch.sampling.base import SamplingParams
from distmatch.settings.errors import ConfigError


class PolicyModule(LightningModule):
    """Wraps any `Loss` around a policy.

    Args:
        policy: The model to train.
        loss: The objective.
        sampling: How completions are drawn; the same object scores them.
        lr: Learning rate of the policy.
        betas: Adam's moment rates.
        weight_decay: Decoupled weight decay.
        scheduler: A name of `distmatch.modules.optimization.SCHEDULES`, over optimizer steps.
        warmup_steps: Optimizer steps of linear warm-up.
        micro_batch_tokens: Most padded tokens (prompt plus completion) of one chunk. Lower it when memory
            runs out: the update stays the same, only slower.
        reference: What the loss's reference is: `initial_policy` (these weights as they are now) or `base`
            (the model without its LoRA adapter).
        log_entropy: Log the policy's entropy even if the loss does not need it; costs time with large
            vocabularies.
        metrics: Held-out metrics, updated by `validation_step`.
        dump_folder: Where a batch that led to nan is kept as evidence.

    Raises:
        ValueError: `reference=base` without an adapter, a loss that cannot work, or nothing to train.
    """

    def __init__(
        self,
        policy: LanguageModel,
        loss: Loss,
        sampling: SamplingParams,
        lr: float = 1e-6,
        betas: Sequence[float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        scheduler: str = "constant_with_warmup",
        warmup_steps: int = 0,
        micro_batch_tokens: int = 16384,
        reference: Reference = "initial_policy",
        log_entropy: bool = True,
        metrics: BenchmarkMetrics | None = None,
        dump_folder: str | None = None,
    ) -> None:
        super().__init__()
        check_declaration(loss, sampling.n)
        self.policy = policy
        self.loss = loss
        self.val_metrics = metrics
        self.sampling = sampling
        self.updates_per_rollout = 1
        self._optimization = Optimization(lr, tuple(betas), weight_decay, scheduler, warmup_steps)
        self._micro_batch_tokens = micro_batch_tokens
        self._dump_folder = dump_folder
        self._log_entropy = log_entropy
        if reference not in ("initial_policy", "base"):
            raise ValueError(f"module.reference={reference!r} is unknown; choose initial_policy or base")
        if not policy.trainable():
            raise ValueError("no parameter of the model requires a gradient: there is nothing to train")
        self._reference = self._make_reference(reference)

    # ---- scoring -------------------------------------------------------------------------------------------

    def forward(self, batch: RolloutBatch) -> PolicyOutput:
        """Score a whole batch in chunks, with exact gradients for whatever the loss requires."""
        needs = self.loss.requires
        return self._score(
            self.policy,
            batch,
            entropy="entropy" in needs or self._log_entropy,
            detach_entropy="entropy" not in needs,
            prompt_hidden="prompt_hidden" in needs,
            value_head=self.loss.value_head if "values" in needs else None,
        )

    def precision(self) -> AbstractContextManager:
        """The arithmetic of a training step: whatever is compared with one is scored inside."""
        return nullcontext() if self._trainer is None else self.trainer.precision_plugin.forward_context()

    def _score(self, model: LanguageModel, batch: RolloutBatch, **wants: Any) -> PolicyOutput:
        chunks = self._count_chunks(batch.rows, batch.prompt_ids.shape[1] + batch.completion_ids.shape[1])
        with self.precision():
            return score(model, batch, self.sampling.temperature, chunks, wants)

    def _count_chunks(self, rows: int, width: int) -> int:
        """The same number on every rank, since a sharded model's forward is a collective."""
        per_chunk = max(1, self._micro_batch_tokens // max(1, width))
        chunks = math.ceil(rows / per_chunk)
        if self._world() > 1:
            chunks = int(
                self.trainer.strategy.reduce(torch.tensor(float(chunks), device=self.device), reduce_op="max")
            )
        return min(chunks, rows)

    @torch.no_grad()
    def annotate(self, batch: RolloutBatch) -> RolloutBatch:
        """Fill in what the loss needs from the moment of sampling, and nothing else."""
        needs, found = self.loss.requires, {}
        # With one update per rollout the policy's own log-probabilities are the old ones: no second pass.
        wants_old = "old_logprobs" in needs and self.updates_per_rollout > 1
        wants_values = "values" in needs
        if wants_old or wants_values:
            head = self.loss.value_head if wants_values else None
            now = self._score(self.policy, batch, value_head=head)
            found |= {"old_logprobs": now.logprobs, "old_values": now.values}
        if {"ref_logprobs", "ref_prompt_hidden"} & needs:
            found |= self._annotate_reference(batch, hidden="ref_prompt_hidden" in needs)
        for name, value in found.items():
            if value is not None and not bool(torch.isfinite(value).all()):
                raise NonFiniteError(
                    f"{name} of the rollouts are not finite{blame(self.policy)}{self._keep(batch)}"
                )
        return dataclasses.replace(batch, **found)

    def _annotate_reference(self, batch: RolloutBatch, *, hidden: bool) -> dict[str, Tensor | None]:
        if self._reference is None:
            with self.policy.model.disable_adapter():
                scored = self._score(self.policy, batch, prompt_hidden=hidden)
        else:
            reference = self._reference[0].to(self.device)
            scored = self._score(reference, batch, prompt_hidden=hidden)
        return {"ref_logprobs": scored.logprobs, "ref_prompt_hidden": scored.prompt_hidden}

    def _make_reference(self, kind: Reference) -> list[LanguageModel] | None:
        """A frozen copy outside the module tree, so never in a checkpoint; None for the base under LoRA."""
        if not {"ref_logprobs", "ref_prompt_hidden"} & self.loss.requires:
            return None
        if kind == "initial_policy":
            return [self.policy.frozen_copy()]
        if kind == "base" and self.policy.adapted:
            return None
        raise ValueError(
            f"module.reference={kind!r}: 'base' needs a LoRA model (model.lora); else use 'initial_policy'"
        )

    # ---- training ------------------------------------------------------------------------------------------

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> Tensor:
        """One update: score, complete the batch, call the loss, log."""
        batch = self._prepare(batch)
        policy = self(batch)
        if "old_logprobs" in self.loss.requires and batch.old_logprobs is None:
            batch = dataclasses.replace(batch, old_logprobs=policy.logprobs.detach())
        output = self.loss(batch, policy)
        check_output(self.loss, output)
        if not bool(torch.isfinite(output.loss.detach())):
            raise NonFiniteError(f"the loss is {output.loss.item()}{blame(self.policy)}{self._keep(batch)}")
        figures = {"loss": output.loss.detach(), **output.metrics}
        # Without old log-probabilities the policy's own are those of sampling time in the first update only.
        then = batch.old_logprobs if batch.old_logprobs is not None or batch_idx else policy.logprobs
        if then is not None and not bool(batch.sampler_logprobs.isnan().all()):  # nan: nothing was sampled
            figures |= mismatch_figures(then, batch.sampler_logprobs, batch.completion_mask)
        if policy.entropy is not None:
            figures["entropy"] = masked_mean(policy.entropy.detach(), batch.completion_mask)
        self._log_step(figures)
        return output.loss

    def _prepare(self, batch: RolloutBatch) -> RolloutBatch:
        """Narrow the loss mask if the loss asks for it, then count what its means divide by."""
        if self.loss.drops_zero_signal_groups:
            flat = flat_groups(batch.rewards, batch.group_size, batch.loss_mask.any(dim=1))
            live = ~flat.repeat_interleave(batch.group_size)
            batch = dataclasses.replace(batch, loss_mask=batch.loss_mask & live[:, None])
        totals = Totals.of(batch.loss_mask, batch.group_size, batch.rewards)
        if self._world() > 1:
            counts = torch.tensor(dataclasses.astuple(totals), device=self.device, dtype=torch.float64)
            summed = self.trainer.strategy.reduce(counts, reduce_op="sum") / self._world()
            totals = Totals(*summed.tolist())
        return dataclasses.replace(batch, totals=totals)

    def _log_step(self, figures: Mapping[str, Tensor | float]) -> None:
        for name, value in figures.items():
            self.log(
                f"train/{name}",
                torch.as_tensor(value, dtype=torch.float32),
                on_step=False,
                on_epoch=True,
                reduce_fx="max" if name in LARGEST else "mean",
                batch_size=1,
                sync_dist=self._world() > 1,
            )

    def on_train_batch_end(self, outputs: Any, batch: RolloutBatch, batch_idx: int) -> None:
        """Place this iteration's figures at the optimizer steps done; loggers would place them one before."""
        self.log("step", float(self.global_step), on_step=False, on_epoch=True, reduce_fx="max", batch_size=1)

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW over the policy's trainable parameters and, as groups of their own, the loss's."""
        lr = self._optimization.lr
        groups = [{"params": list(self.policy.trainable().values()), "lr": lr}, *self.loss.param_groups(lr)]
        return self._optimization.configure(groups, int(self.trainer.estimated_stepping_batches))

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the policy's and the loss's own parameters apart; stop before a step that is not finite.

        Gradients are already reduced over ranks here, so all ranks agree.
        """
        limit = gradient_clip_val if gradient_clip_val else math.inf
        parts = {
            "grad_norm": list(self.policy.trainable().values()),
            "loss_grad_norm": list(self.loss.parameters()),
        }
        for name, parameters in parts.items():
            if not parameters:
                continue
            norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
            if not bool(torch.isfinite(norm)):
                raise NonFiniteError(f"{name} is {norm.item()}{blame(self.policy)}")
            self.log(
                f"train/{name}", norm, on_step=False, on_epoch=True, batch_size=1, sync_dist=self._world() > 1
            )

    # ---- validation ----------------------------------------------------------------------------------------

    def validation_step(self, batch: Sequence[Any], batch_idx: int) -> None:
        """Add scored groups of held-out prompts (`GroupScore`) to the metrics."""
        for group in batch:
            self.val_metrics.update(group)

    def on_validation_epoch_end(self) -> None:
        """Log every held-out figure as `val/<name>`; metrics reduce over ranks themselves."""
        values = {f"val/{name}": float(value) for name, value in self.val_metrics.compute().items()}
        values["step"] = float(self.global_step)
        self.log_dict(values, sync_dist=self._world() > 1)  # equal on all ranks already; this only says so
        self.val_metrics.reset()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Rollouts move; scored groups hold no tensors, and Lightning walks into no frozen dataclass."""
        return batch.to(device) if isinstance(batch, RolloutBatch) else batch

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep only what trains, policy and loss, with the hash of the frozen base beside it."""
        kept = trained_names(self.policy, self.state_dict())
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in kept}
        checkpoint["frozen_hash"] = self._frozen_hash

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another model, then complete it with this model's frozen weights.

        Raises:
            ConfigError: Names of missing, unexpected or differently shaped weights, or another frozen base.
        """
        own = self.state_dict()
        check_trained(checkpoint["state_dict"], own, trained_names(self.policy, own))
        if checkpoint["frozen_hash"] != self._frozen_hash:
            raise ConfigError("the checkpoint's adapter was trained on other base weights than this model's")
        checkpoint["state_dict"] = own | checkpoint["state_dict"]

    @cached_property
    def _frozen_hash(self) -> str:
        """Taken once: these weights never move, and a large base takes a while to read."""
        return self.policy.frozen_hash()

    # ---- small things --------------------------------------------------------------------------------------

    def _world(self) -> int:
        return int(self.trainer.world_size) if self._trainer is not None else 1

    def _keep(self, batch: RolloutBatch) -> str:
        if self._dump_folder is None:
            return ""
        name = f"nonfinite-step{self.global_step}-rank{self.global_rank}.pt"
        return keep(batch, Path(self._dump_folder) / name)
