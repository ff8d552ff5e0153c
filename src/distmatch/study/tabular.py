"""A policy with a logit of its own for every choice, trained with the same losses as language models.

`train_tabular` is a plain loop over the same `Loss` objects, with batches of the same type; one Lightning
epoch an iteration is too slow for thousands of iterations on a table. All is float64 and on the CPU.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.base import Loss, check_declaration
from distmatch.ops import flat_groups, where_mask
from distmatch.study.exact import measure
from distmatch.study.language import Landscape, tree_of

History = list[dict[str, float]]
"""One dict a measured iteration: `iteration`, the keys of `measure`, and `log_z_mean` if the loss has it.

`log_z_mean` is what the loss believed when it first saw the rollouts before; in the first entry, its own.
"""


class TabularPolicy(nn.Module):
    """An autoregressive policy with logits of its own for every prefix: it can be any distribution.

    Args:
        alphabet: A.
        length: L, letters of the longest strings.
        scale: Standard deviation of the initial logits around those of the uniform policy, which 0 gives.
        seed: Of the initial logits.
        min_length: Letters of the shortest strings; None for strings of one length.
    """

    def __init__(
        self, alphabet: int, length: int, scale: float = 1.0, seed: int = 0, min_length: int | None = None
    ) -> None:
        super().__init__()
        self.alphabet, self.length = alphabet, length
        self.min_length = length if min_length is None else min_length
        self.tree = tree_of(alphabet, length, self.min_length)
        choices = alphabet + (self.tree.may_end is not None)
        self._flat = where_mask(self.tree.before * choices + self.tree.tokens, self.tree.free)  # (S, T)
        self._barred = torch.zeros(self.tree.prefixes, choices, dtype=torch.bool)
        if self.tree.may_end is not None:
            self._barred[:, -1] = ~self.tree.may_end
        rng = torch.Generator().manual_seed(seed)
        start = scale * torch.randn(self.tree.prefixes, choices, generator=rng, dtype=torch.float64)
        if self.tree.may_end is not None:
            strings_behind_a_letter = (alphabet ** (length - self.tree.depth) - 1) // (alphabet - 1)
            start[:, -1] -= strings_behind_a_letter.to(start.dtype).log()
        self.logits = nn.Parameter(start)

    @classmethod
    def of(cls, landscape: Landscape, scale: float = 1.0, seed: int = 0) -> TabularPolicy:
        """A policy over the strings of a landscape."""
        return cls(landscape.alphabet, landscape.length, scale, seed, landscape.min_length)

    @property
    def mask(self) -> Tensor:
        """Where each string has tokens, (S, T) bool."""
        return self.tree.mask

    def choice_logprobs(self) -> Tensor:
        """Log-probability of every choice at every prefix, (prefixes, A) or, with EOS, (prefixes, A + 1)."""
        return self.logits.masked_fill(self._barred, -torch.inf).log_softmax(dim=1)

    def token_logprobs(self, strings: Tensor | None = None) -> Tensor:
        """Log-probability of each token given those before it, strings (b,) long -> (b, T); None for all.

        Zero where `mask` is False.
        """
        chosen = slice(None) if strings is None else strings
        return self._at(self.choice_logprobs(), chosen)

    def logprobs(self) -> Tensor:
        """Log-probability of every string, (S,)."""
        return self.token_logprobs().sum(dim=1)

    def token_entropy(self, strings: Tensor) -> Tensor:
        """Entropy of the next token in nats at each place of the strings, (b,) long -> (b, T)."""
        logp = self.choice_logprobs()
        finite = logp.masked_fill(self._barred, 0.0)
        spread = -(logp.exp() * finite).sum(dim=1)  # (prefixes,)
        before = where_mask(self.tree.before, self.tree.free)[strings]
        return where_mask(spread[before], self.tree.free[strings])

    def values(self, head: nn.Module, strings: Tensor) -> Tensor:
        """A critic's values of the prefixes before each token, (b,) long -> (b, T).

        The hidden state of a prefix is its one-hot row among all prefixes: a linear head is a table of exact
        values. The head sees each prefix of the strings once, (1, k, nodes) in its own dtype.
        """
        visited, place = self.tree.before[strings].unique(return_inverse=True)
        weight = next(head.parameters(), self.logits)
        states = torch.zeros(len(visited), self.tree.nodes, dtype=weight.dtype)
        states[torch.arange(len(visited)), visited] = 1
        values = head(states[None]).reshape(len(visited)).to(self.logits.dtype)
        return where_mask(values[place], self.tree.mask[strings])

    def _at(self, choices: Tensor, strings: Tensor | slice) -> Tensor:
        """Entries of a table of choices along the strings' paths."""
        return where_mask(choices.view(-1)[self._flat[strings]], self.tree.free[strings])


def tabular_batch(
    strings: Tensor, group_size: int, landscape: Landscape, policy: Tensor, reference: Tensor
) -> RolloutBatch:
    """Whole groups of sampled strings as a loss sees them; one prompt, whose token is 0 and whose state is 1.

    Args:
        strings: Numbers of the sampled strings, (B,) long, prompt-major.
        group_size: G.
        landscape: The rewards.
        policy: Log-probabilities of the tokens under the sampling policy, (B, T).
        reference: The same under the reference, (B, T).
    """
    rows, live = len(strings), landscape.tree.mask[strings]
    return RolloutBatch(
        prompt_ids=torch.zeros(rows, 1, dtype=torch.long),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        completion_ids=landscape.tree.tokens[strings],
        completion_mask=live,
        loss_mask=live,
        rewards=landscape.rewards[strings],
        group_size=group_size,
        group_ids=torch.arange(rows) // group_size,
        truncated=torch.zeros(rows, dtype=torch.bool),
        sampler_logprobs=policy,
        old_logprobs=policy,
        ref_logprobs=reference,
        ref_prompt_hidden=torch.ones(rows, 1, dtype=policy.dtype),
    )


def train_tabular(
    loss: Loss,
    policy: TabularPolicy,
    landscape: Landscape,
    *,
    iterations: int,
    groups: int = 8,
    group_size: int = 8,
    lr: float = 0.03,
    seed: int = 0,
    beta: float = 6.0,
    updates_per_rollout: int = 1,
    measure_every: int = 100,
) -> History:
    """Train a table in place with Adam; the reference is the policy as it comes in.

    Args:
        loss: Any loss. What it learns, a log Z head or a critic, trains in its own parameter groups.
        policy: The table; changed in place.
        landscape: The rewards, of one prompt.
        iterations: Rollouts.
        groups: N, groups a rollout, all for the same prompt.
        group_size: G.
        lr: Adam's rate for the table, constant.
        seed: Of the samples.
        beta: Inverse temperature of the target that is measured against. The loss has its own.
        updates_per_rollout: Adam steps on the same whole batch; more than one is off-policy.
        measure_every: Iterations between two entries of the history; first and last are always there.

    Raises:
        ValueError: The loss asks for something unknown, or for larger groups.
    """
    check_declaration(loss, group_size)
    rng = torch.Generator().manual_seed(seed)
    reference = policy.token_logprobs().detach()  # (S, T)
    log_ref = reference.sum(dim=1)
    optimizer = torch.optim.Adam([{"params": [policy.logits], "lr": lr}, *loss.param_groups(lr)])
    history: History = []
    believed: dict[str, float] = {}
    for iteration in range(iterations + 1):
        now = policy.token_logprobs().detach()
        log_pi = now.sum(dim=1)
        if iteration % measure_every == 0 or iteration == iterations:
            figures = measure(log_pi, log_ref, landscape, beta)
            history.append({"iteration": float(iteration), **figures, **believed})
        if iteration == iterations:
            break
        strings = torch.multinomial(log_pi.exp(), groups * group_size, replacement=True, generator=rng)
        batch = tabular_batch(strings, group_size, landscape, now[strings], reference[strings])
        batch = _prepared(loss, policy, strings, batch)
        metrics = _update(loss, policy, strings, batch, optimizer, updates_per_rollout)
        if "log_z_mean" in metrics:
            believed["log_z_mean"] = float(metrics["log_z_mean"])
            history[0].setdefault("log_z_mean", believed["log_z_mean"])
    return history


def _prepared(loss: Loss, policy: TabularPolicy, strings: Tensor, batch: RolloutBatch) -> RolloutBatch:
    """What PolicyModule does to a batch: old values for a critic; flat groups leave if the loss says so."""
    changes: dict[str, object] = {}
    if "values" in loss.requires and loss.value_head is not None:
        with torch.no_grad():
            changes["old_values"] = policy.values(loss.value_head, strings)
    if loss.drops_zero_signal_groups:
        live = ~flat_groups(batch.rewards, batch.group_size).repeat_interleave(batch.group_size)
        changes |= {"loss_mask": batch.loss_mask & live[:, None], "totals": None}
    return dataclasses.replace(batch, **changes) if changes else batch


def _update(
    loss: Loss,
    policy: TabularPolicy,
    strings: Tensor,
    batch: RolloutBatch,
    optimizer: torch.optim.Optimizer,
    updates: int,
) -> dict[str, Tensor | float]:
    """Adam steps on one batch; the metrics of the first, in which the batch is on-policy."""
    metrics: dict[str, Tensor | float] = {}
    for _ in range(updates):
        output = loss(batch, _output(loss, policy, strings))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        metrics = metrics or dict(output.metrics)
    return metrics


def _output(loss: Loss, policy: TabularPolicy, strings: Tensor) -> PolicyOutput:
    """What the policy says about sampled strings, as far as the loss requires it."""
    head = loss.value_head if "values" in loss.requires else None
    return PolicyOutput(
        logprobs=policy.token_logprobs(strings),
        entropy=policy.token_entropy(strings) if "entropy" in loss.requires else None,
        values=None if head is None else policy.values(head, strings),
        prompt_hidden=torch.ones(len(strings), 1, dtype=policy.logits.dtype),
    )
