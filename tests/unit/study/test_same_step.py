"""Training a table is training a language model: the same batch and loss give the same steps in both loops.

The stand-in for the language model has the table as its only weights and finds the row of a prefix by walking
through the ids that it is given; `PolicyModule` and `LanguageModel` score and annotate as in any run.
"""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from distmatch.losses.balance import BalanceLoss
from distmatch.losses.dmpo import DMPOLoss
from distmatch.losses.gspo import GSPOLoss
from distmatch.losses.log_z import GroupMeanLogZ, LearnedLogZ, LogZ, ScalarLogZ
from distmatch.losses.policy_gradient import GRPOLoss
from distmatch.losses.ppo import PPOLoss
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.policy import PolicyModule
from distmatch.sampling.base import SamplingParams
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, tabular_batch, train_tabular
from distmatch.tasks.lab import Lab

LABS = {
    "fixed": Lab(alphabet=3, length=3, modes=4, near=6),
    "varied": Lab(alphabet=3, length=3, min_length=1, landscape="lengths", modes=3, near=3),
}
GROUPS, SIZE, LR = 5, 4, 0.05


def balance(log_z: LogZ, weight: str = "none") -> BalanceLoss:
    return BalanceLoss(log_z, beta=6.0, length_normalize=False, reward_source="raw", importance_weight=weight)


LOSSES = {
    "grpo": GRPOLoss,
    "grpo_kl_drop": lambda: GRPOLoss(kl_coef=0.1, zero_signal="drop"),
    "gspo": GSPOLoss,
    "dmpo": lambda: DMPOLoss(GRPOLoss()),
    "vargrad": lambda: balance(GroupMeanLogZ()),
    "trajectory_balance": lambda: balance(ScalarLogZ()),
    "flowrl": lambda: balance(LearnedLogZ(width=4), "clipped"),
    "ppo": lambda: PPOLoss(critic_width=8),
}


class TableLM(nn.Module):
    """Logits (B, T, A or A + 1) from a table by prefix, in the shape of a Hugging Face causal LM.

    The prompt is one token. Its hidden state, and those of completion tokens, are one-hot rows of the prefix;
    with `of_prompt` they are the number 1, which is what the table's loop gives as a prompt's state.
    """

    def __init__(self, table: Tensor, lab: Lab, *, of_prompt: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(table.clone())
        self.alphabet, self.length, self.shortest = len(lab.letters), lab.length, lab.language.min_length
        self.of_prompt = of_prompt
        self.prefixes = [
            word
            for level in range(self.length + (self.shortest < self.length))
            for word in itertools.product(range(self.alphabet), repeat=level)
        ]
        self.number = {word: i for i, word in enumerate(self.prefixes)}

    def forward(self, input_ids: Tensor, logits_to_keep: int, output_hidden_states: bool, **_: object):
        answers = [row[1:] for row in input_ids.tolist()]
        places = [[self._row(answer[:t]) for t in range(len(answer) + 1)] for answer in answers]
        rows = torch.tensor(places)  # (B, 1 + T)
        states = torch.nn.functional.one_hot(rows, len(self.prefixes)).to(self.table.dtype)
        hidden = torch.ones_like(states[..., :1]) if self.of_prompt else states
        logits = self._logits()[rows][:, -logits_to_keep:]
        return SimpleNamespace(logits=logits, hidden_states=(hidden,) if output_hidden_states else None)

    def _row(self, tokens: list[int]) -> int:
        """The prefix's number; anything after EOS is padding, whose row does not matter."""
        return self.number.get(tuple(tokens), 0)

    def _logits(self) -> Tensor:
        """With EOS barred where a string may not end, and all but EOS where it must."""
        rows = [*self.table]
        if self.shortest < self.length:
            for i, word in enumerate(self.prefixes):
                if len(word) < self.shortest:
                    rows[i] = torch.cat([rows[i][:-1], torch.tensor([-torch.inf])])
                if len(word) == self.length:
                    rows.append(torch.tensor([-torch.inf] * self.alphabet + [0.0]).to(self.table.dtype))
        return torch.stack(rows)


class StandIn(LanguageModel):
    """A LanguageModel without tokenizer: it only scores."""

    def __init__(self, model: TableLM) -> None:
        nn.Module.__init__(self)
        self.model, self.style, self.adapted = model, "compact", False


def stepped_by_module(name: str, lab: Lab, seed: int, updates: int) -> PolicyModule:
    """The module after some steps on one batch, with the gradient of the last."""
    landscape = Landscape.of(lab)
    start = TabularPolicy.of(landscape, seed=seed)
    now, rng = start.token_logprobs().detach(), torch.Generator().manual_seed(seed)
    strings = torch.multinomial(now.sum(1).exp(), GROUPS * SIZE, replacement=True, generator=rng)
    batch = tabular_batch(strings, SIZE, landscape, now[strings], now[strings])
    batch = dataclasses.replace(batch, old_logprobs=None, ref_logprobs=None, ref_prompt_hidden=None)
    torch.manual_seed(seed)
    model = TableLM(start.logits.detach(), lab, of_prompt=name == "flowrl")
    module = PolicyModule(StandIn(model), LOSSES[name](), SamplingParams(n=SIZE, max_tokens=4), lr=LR)
    module.updates_per_rollout = updates
    batch = module.annotate(batch)
    groups = [{"params": [model.table], "lr": LR}, *module.loss.param_groups(LR)]
    optimizer = torch.optim.Adam(groups)
    for step in range(updates):
        optimizer.zero_grad()
        module.training_step(batch, step).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("language", LABS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:You are trying to `self.log")
def test_a_table_takes_the_steps_of_a_language_model(name: str, language: str, updates: int) -> None:
    lab = LABS[language]
    module = stepped_by_module(name, lab, 3, updates)
    table = module.policy.model.table
    landscape = Landscape.of(lab)
    policy = TabularPolicy.of(landscape, seed=3)
    torch.manual_seed(3)
    loss = LOSSES[name]()
    train_tabular(
        loss,
        policy,
        landscape,
        iterations=1,
        groups=GROUPS,
        group_size=SIZE,
        lr=LR,
        seed=3,
        updates_per_rollout=updates,
    )
    exact = {"atol": 1e-6, "rtol": 1e-5} if name in ("ppo", "flowrl") else {"atol": 1e-12, "rtol": 1e-9}
    assert table.grad.abs().max() > 1e-3
    torch.testing.assert_close(policy.logits.grad, table.grad, **exact)
    torch.testing.assert_close(policy.logits.detach(), table.detach(), **exact)
    for one, other in zip(loss.parameters(), module.loss.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
