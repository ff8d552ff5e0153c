"""The exact lab's mathematics: distributions over all strings of a small language, enumerated in float64.

Letters: **A** alphabet, **L** length, **S** = A^L strings, in alphabetical order as `Lab.strings` gives them.
A distribution is its log-probabilities (S,) in nats; log of zero is -inf and adds nothing to any figure.

`train_tabular` is a plain loop over the same `Loss` objects that train language models, with batches of the
same type; one Lightning epoch an iteration is too slow for thousands of iterations on a table.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distmatch.batch import PolicyOutput, RolloutBatch
from distmatch.losses.base import Loss
from distmatch.ops import flat_groups, where_mask
from distmatch.tasks.base import Split
from distmatch.tasks.lab import Lab

History = list[dict[str, float]]
"""One dict a measured iteration: `iteration`, the keys of `measure`, and `log_z_mean` if the loss has it."""


@dataclass(frozen=True)
class Landscape:
    """Rewards of all strings for one prompt.

    Attributes:
        alphabet: A.
        length: L.
        rewards: Of every string, (S,) float64.

    Raises:
        ValueError: Not one reward a string.
    """

    alphabet: int
    length: int
    rewards: Tensor

    def __post_init__(self) -> None:
        if self.rewards.shape != (self.alphabet**self.length,):
            raise ValueError(
                f"rewards have shape {tuple(self.rewards.shape)}, expected one for each of the "
                f"{self.alphabet}**{self.length} strings"
            )

    @classmethod
    def of(cls, lab: Lab, index: int = 0, split: Split = "train") -> Landscape:
        """The landscape of one prompt of the task, with values as rewards."""
        instance = lab.instance(split, index)
        values = [lab.value_of(instance, text) for text in lab.strings()]
        return cls(len(lab.letters), lab.length, torch.tensor(values, dtype=torch.float64))

    @property
    def best(self) -> Tensor:
        """Which strings have the highest reward, (S,) bool."""
        return self.rewards == self.rewards.max()


class TabularPolicy(nn.Module):
    """An autoregressive policy with logits of its own for every prefix: it can be any distribution.

    Args:
        alphabet: A.
        length: L; every string has exactly so many letters, and there is no EOS.
        scale: Standard deviation of the initial logits; 0 is the uniform policy.
        seed: Of the initial logits.
    """

    paths: Tensor
    letters: Tensor

    def __init__(self, alphabet: int, length: int, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.alphabet, self.length = alphabet, length
        strings = torch.arange(alphabet**length)
        levels = torch.arange(length)
        before = strings[:, None] // alphabet ** (length - levels)  # (S, L): the prefix's number in its level
        offsets = (alphabet**levels - 1) // (alphabet - 1)
        self.register_buffer("paths", before + offsets)  # (S, L): rows of the table that a string visits
        self.register_buffer("letters", strings[:, None] // alphabet ** (length - 1 - levels) % alphabet)
        prefixes = (alphabet**length - 1) // (alphabet - 1)
        rng = torch.Generator().manual_seed(seed)
        drawn = torch.randn(prefixes, alphabet, generator=rng, dtype=torch.float64)
        self.logits = nn.Parameter(scale * drawn)

    def token_logprobs(self, strings: Tensor | None = None) -> Tensor:
        """Log-probability of each letter given those before it, strings (b,) long -> (b, L); None for all."""
        chosen = slice(None) if strings is None else strings
        return self.logits.log_softmax(dim=1)[self.paths[chosen], self.letters[chosen]]

    def logprobs(self) -> Tensor:
        """Log-probability of every string, (S,)."""
        return self.token_logprobs().sum(dim=1)

    def token_entropy(self, strings: Tensor) -> Tensor:
        """Entropy of the next letter in nats at each place of the strings, (b,) long -> (b, L)."""
        logp = self.logits.log_softmax(dim=1)
        return -(logp.exp() * logp).sum(dim=1)[self.paths[strings]]


# ---- distributions -----------------------------------------------------------------------------------------


def log_partition(log_ref: Tensor, rewards: Tensor, beta: float) -> Tensor:
    """The value of log Z = log sum of pi_ref(o) exp(beta * r(o)) over all strings, (S,), (S,) -> ()."""
    return (log_ref + beta * rewards).logsumexp(dim=0)


def exact_target(log_ref: Tensor, rewards: Tensor, beta: float) -> Tensor:
    """The fixed point of the balance family, log p*(o) = log pi_ref(o) + beta * r(o) - log Z, (S,)."""
    return log_ref + beta * rewards - log_partition(log_ref, rewards, beta)


def expectation(log_p: Tensor, values: Tensor) -> Tensor:
    """Mean of `values` (S,) under p; strings of probability zero do not count, whatever their value."""
    p = log_p.exp()
    return where_mask(p * values, p > 0).sum()


def entropy(log_p: Tensor) -> Tensor:
    """Entropy of p in nats."""
    return expectation(log_p, -log_p)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p||q) in nats; infinite where q lacks what p has."""
    return expectation(log_p, log_p - log_q)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Half the sum of |p - q|, between 0 and 1."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum()


def expected_distinct(log_p: Tensor, members: Tensor, samples: int) -> Tensor:
    """Expected number of different `members` (S,) bool among `samples` draws: sum of 1 - (1 - p)^samples."""
    p = log_p.exp()[members].clamp(max=1.0)
    return -torch.expm1(samples * torch.log1p(-p)).sum()


def measure(
    log_pi: Tensor, log_ref: Tensor, landscape: Landscape, beta: float, samples: int = 64
) -> dict[str, float]:
    """All figures of one policy against its exact target.

    Args:
        log_pi: The policy, (S,).
        log_ref: The reference, (S,).
        landscape: The rewards.
        beta: Inverse temperature of the target.
        samples: Draws in which best strings are counted (`modes`).

    Returns:
        `reward`, `entropy`, `modes`, `kl_target_policy` (KL(p*||pi)), `kl_policy_target` (KL(pi||p*)),
        `total_variation`, `log_z_exact`.
    """
    target = exact_target(log_ref, landscape.rewards, beta)
    figures = {
        "reward": expectation(log_pi, landscape.rewards),
        "entropy": entropy(log_pi),
        "modes": expected_distinct(log_pi, landscape.best, samples),
        "kl_target_policy": kl(target, log_pi),
        "kl_policy_target": kl(log_pi, target),
        "total_variation": total_variation(log_pi, target),
        "log_z_exact": log_partition(log_ref, landscape.rewards, beta),
    }
    return {name: float(value) for name, value in figures.items()}


# ---- training ----------------------------------------------------------------------------------------------


def tabular_batch(
    strings: Tensor, group_size: int, landscape: Landscape, policy: Tensor, reference: Tensor
) -> RolloutBatch:
    """Whole groups of sampled strings as a loss sees them; one prompt, whose token is 0 and whose state is 1.

    Args:
        strings: Numbers of the sampled strings, (B,) long, prompt-major.
        group_size: G.
        landscape: The rewards.
        policy: Log-probabilities of the letters under the sampling policy, (B, L).
        reference: The same under the reference, (B, L).
    """
    rows, live = len(strings), torch.ones_like(policy, dtype=torch.bool)
    places = torch.arange(landscape.length - 1, -1, -1)
    return RolloutBatch(
        prompt_ids=torch.zeros(rows, 1, dtype=torch.long),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        completion_ids=strings[:, None] // landscape.alphabet**places % landscape.alphabet,
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
        loss: Any loss without a value head. What it learns trains in its own parameter groups.
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
        ValueError: The loss needs a critic.
    """
    if "values" in loss.requires:
        raise ValueError(f"{type(loss).__name__} needs values: a table has no hidden state for a critic")
    rng = torch.Generator().manual_seed(seed)
    reference = policy.token_logprobs().detach()  # (S, L)
    optimizer = torch.optim.Adam([{"params": [policy.logits], "lr": lr}, *loss.param_groups(lr)])
    history: History = []
    for iteration in range(iterations + 1):
        now = policy.token_logprobs().detach()
        log_pi = now.sum(dim=1)
        if iteration % measure_every == 0 or iteration == iterations:
            history.append({"iteration": float(iteration)})
            history[-1] |= measure(log_pi, reference.sum(dim=1), landscape, beta)
        if iteration == iterations:
            break
        strings = torch.multinomial(log_pi.exp(), groups * group_size, replacement=True, generator=rng)
        batch = tabular_batch(strings, group_size, landscape, now[strings], reference[strings])
        metrics = _update(loss, policy, strings, _prepared(loss, batch), optimizer, updates_per_rollout)
        if "log_z_mean" in metrics:
            history[-1]["log_z_mean"] = float(metrics["log_z_mean"])
    return history


def _prepared(loss: Loss, batch: RolloutBatch) -> RolloutBatch:
    """Flat groups leave the batch if the loss says so, as in PolicyModule."""
    if not loss.drops_zero_signal_groups:
        return batch
    live = ~flat_groups(batch.rewards, batch.group_size).repeat_interleave(batch.group_size)
    return dataclasses.replace(batch, loss_mask=batch.loss_mask & live[:, None], totals=None)


def _update(
    loss: Loss,
    policy: TabularPolicy,
    strings: Tensor,
    batch: RolloutBatch,
    optimizer: torch.optim.Optimizer,
    updates: int,
) -> dict[str, Tensor | float]:
    """Adam steps on one batch; the metrics of the last."""
    metrics: dict[str, Tensor | float] = {}
    for _ in range(updates):
        output = loss(
            batch,
            PolicyOutput(
                logprobs=policy.token_logprobs(strings),
                entropy=policy.token_entropy(strings) if "entropy" in loss.requires else None,
                prompt_hidden=torch.ones(len(strings), 1, dtype=policy.logits.dtype),
            ),
        )
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        metrics = dict(output.metrics)
    return metrics
