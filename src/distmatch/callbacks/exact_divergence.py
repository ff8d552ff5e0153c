"""ExactDivergence: in a run of the lab, the whole distribution of a language model beside its exact target.

All strings of the language are scored, each as its letters, one token each, and EOS. Everything else that
the model may write is one further outcome, `outside`: foreign letters, wrong lengths, any other text, letters
with special tokens in between, and answers that are cut before EOS. So all figures are those of a partition
into S + 1 outcomes. The reward of `outside` is that of an empty answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from distmatch.batch import RolloutBatch
from distmatch.data.rollouts import RolloutDataModule
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.policy import PolicyModule
from distmatch.modules.scoring import score
from distmatch.rewards import Reward
from distmatch.rewards import score as judge
from distmatch.settings.errors import ConfigError
from distmatch.study.exact import compare, expectation
from distmatch.study.language import Landscape
from distmatch.tasks.lab import Lab

LEAST_OUTSIDE = 1e-7
"""A probability outside the language below this, the resolution of float32, counts as this."""
FOREIGN = 0.9
"""Mass outside the language from which on a reference does not know it."""


@dataclass(frozen=True)
class Enumerated:
    """All answers to one prompt.

    Attributes:
        batch: The S strings as completions; its rewards are theirs.
        rewards: With the reward outside the language as the last, (S + 1,) float64.
        best: The best strings, (S + 1,) bool.
        lengths: Letters, 0 for outside, (S + 1,) float64.
    """

    batch: RolloutBatch
    rewards: Tensor
    best: Tensor
    lengths: Tensor


class ExactDivergence(Callback):
    """Logs `exact/*` at the start of the first, every n-th and the last iteration, of the policy then.

    The target is p*(o) = pi_ref(o) exp(beta r(o)) / Z over strings as wholes, whatever a loss does with token
    means or z-scores. The reference is the loss's own or, for losses without one, the model before training.

    Figures, as means over prompts: those of `distmatch.study.exact.compare`, `mean_length` in letters
    (outside counts as 0) and `outside_mass`. What the loss believes of `exact/log_z_exact` is
    `train/log_z_mean`.

    Args:
        reward: The run's.
        every_n_iterations: Rhythm.
        prompts: The first so many landscapes of the task.
        beta: Inverse temperature of the target, for losses without a `target_beta` of their own.
        samples: Draws in which best strings are counted.
        micro_batch_tokens: Most padded tokens that are scored at once.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        reward: Reward,
        every_n_iterations: int = 10,
        prompts: int = 2,
        beta: float = 6.0,
        samples: int = 64,
        micro_batch_tokens: int = 16384,
    ) -> None:
        if min(every_n_iterations, prompts, samples, micro_batch_tokens) < 1 or not 0 < beta < math.inf:
            raise ValueError(
                f"every_n_iterations={every_n_iterations}, prompts={prompts}, samples={samples} and "
                f"micro_batch_tokens={micro_batch_tokens} must be at least 1, beta={beta} finite and above 0"
            )
        self._reward = reward
        self._every, self._prompts, self._beta, self._samples = every_n_iterations, prompts, beta, samples
        self._micro_batch_tokens = micro_batch_tokens
        self._start: LanguageModel | None = None
        self._enumerated: list[Enumerated] = []
        self._references: list[Tensor] = []
        self._logged: list[str] = []

    # ---- hooks ---------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Enumerate, and keep the model as it is before a checkpoint is restored, if that is the reference.

        Raises:
            ConfigError: Another task than the lab, or strings that are not spelt in one way only.
        """
        data: RolloutDataModule = trainer.datamodule
        lab = data.task
        if not isinstance(lab, Lab):
            raise ConfigError(
                "callbacks.exact_divergence enumerates the strings of task=lab, and this run's task is "
                f"{lab.name}; use callbacks=default"
            )
        tokens = spell(lab, data.policy, data.sampling.max_tokens)
        if stage != "fit":
            return
        self._enumerated = [
            enumerate_answers(lab, data.policy, self._reward, tokens, index)
            for index in range(min(self._prompts, lab.prompts))
        ]
        if "ref_logprobs" not in pl_module.loss.requires:
            self._start = pl_module.policy.frozen_copy()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the reference, once."""
        self._enumerated = [_moved(answers, pl_module.device) for answers in self._enumerated]
        self._references = [self._score_reference(pl_module, answers.batch) for answers in self._enumerated]
        self._start = None
        outside = sum(float(log_ref[-1].exp()) for log_ref in self._references) / len(self._references)
        if outside > FOREIGN and trainer.is_global_zero:
            print(
                f"exact/*: the reference puts {outside:.1%} of its mass outside the lab's language, so these "
                "figures say little; teach it the language first (stage=warm_start, see experiment=lab)"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure and log, in the rhythm."""
        iteration = trainer.current_epoch
        if iteration % self._every and iteration + 1 != trainer.max_epochs:
            for name in self._logged:  # Lightning keeps the last values, and they are not of this iteration
                trainer.callback_metrics.pop(name, None)
            return
        began = time.perf_counter()
        figures = self._measure(pl_module)
        figures["time/exact"] = time.perf_counter() - began
        self._logged = list(figures)
        for name, value in figures.items():
            pl_module.log(
                name,
                value,
                on_step=False,
                on_epoch=True,
                batch_size=1,
                sync_dist=trainer.world_size > 1,
            )

    # ---- steps ---------------------------------------------------------------------------------------------

    def _measure(self, pl_module: PolicyModule) -> dict[str, float]:
        beta = pl_module.loss.target_beta or self._beta
        found = []
        for answers, log_ref in zip(self._enumerated, self._references, strict=True):
            log_pi = with_outside(self._score(pl_module.policy, pl_module, answers.batch))
            figures = compare(log_pi, log_ref, answers.rewards, answers.best, beta, self._samples)
            figures["mean_length"] = float(expectation(log_pi, answers.lengths))
            figures["outside_mass"] = float(log_pi[-1].exp())
            found.append(figures)
        return {f"exact/{name}": sum(f[name] for f in found) / len(found) for name in found[0]}

    def _score_reference(self, pl_module: PolicyModule, batch: RolloutBatch) -> Tensor:
        if self._start is None:
            return with_outside(pl_module.annotate(batch).ref_logprobs)
        return with_outside(self._score(self._start.to(pl_module.device), pl_module, batch))

    @torch.no_grad()
    def _score(self, model: LanguageModel, pl_module: PolicyModule, batch: RolloutBatch) -> Tensor:
        """Log-probabilities of the tokens at the sampling temperature, (S, T)."""
        width = batch.prompt_ids.shape[1] + batch.completion_ids.shape[1]
        chunks = math.ceil(batch.rows * width / max(width, self._micro_batch_tokens))
        with pl_module.precision():
            return score(model, batch, pl_module.sampling.temperature, chunks, {}).logprobs


def spell(lab: Lab, policy: LanguageModel, max_tokens: int) -> list[list[int]]:
    """The completion of every string as token ids, EOS included.

    Raises:
        ConfigError: A string has several spellings, or none that fits `max_tokens`.
    """
    if len(policy.eos_ids) != 1:
        raise ConfigError(
            f"callbacks.exact_divergence needs a model with one EOS token, and this one has "
            f"{len(policy.eos_ids)}; use model=tiny, or callbacks=default"
        )
    if max_tokens < lab.length + 1:
        raise ConfigError(
            f"data.max_tokens={max_tokens} cuts strings of {lab.length} letters before their EOS; "
            f"callbacks.exact_divergence needs at least {lab.length + 1}"
        )
    id_of = {letter: _ids(policy, letter) for letter in lab.letters}
    others = _other_spellings(lab, policy, id_of)
    if others:
        raise ConfigError(
            "callbacks.exact_divergence needs a tokenizer that spells a string of the lab in one way, one "
            f"token a letter; it is otherwise for {others[:4]}; use model=tiny, which has 8 letters, or "
            "callbacks=default"
        )
    eos = list(policy.eos_ids)
    return [[id_of[letter][0] for letter in text] + eos for text in lab.strings()]


def _other_spellings(lab: Lab, policy: LanguageModel, id_of: Mapping[str, list[int]]) -> list[str]:
    """Letters without a token of their own, and other tokens that add letters or nothing to an answer."""
    tokenizer, letters = policy.tokenizer, set(lab.letters)
    special = set(tokenizer.all_special_ids)
    wrong = [letter for letter, ids in id_of.items() if len(ids) != 1 or ids[0] in special]
    if _ids(policy, lab.format(lab.letters)) != [i for ids in id_of.values() for i in ids]:
        wrong.append(lab.format(lab.letters))
    for i in set(range(len(tokenizer))) - special:
        text = "".join(policy.decode([i]).split())
        if set(text) <= letters and id_of.get(text) != [i]:
            wrong.append(tokenizer.convert_ids_to_tokens(i))
    return wrong


def enumerate_answers(
    lab: Lab, policy: LanguageModel, reward: Reward, tokens: Sequence[Sequence[int]], index: int
) -> Enumerated:
    """All strings as answers to prompt `index`, judged as in training."""
    instance = lab.instance("train", index)
    landscape = Landscape.of(lab, index)
    texts = [*(lab.format(text) for text in landscape.strings), ""]
    counts = [*map(len, tokens), 0]
    outcomes = [judge(lab, instance, text, reward, n) for text, n in zip(texts, counts, strict=True)]
    rewards = torch.tensor([outcome.reward for outcome in outcomes], dtype=torch.float64)
    batch = _to_batch(policy.encode(lab.render(instance, policy.style)), tokens, rewards[:-1])
    outside = torch.zeros(1, dtype=torch.bool)
    lengths = torch.cat([landscape.tree.lengths, torch.zeros(1, dtype=torch.long)])
    return Enumerated(batch, rewards, torch.cat([landscape.best, outside]), lengths.double())


def with_outside(logprobs: Tensor) -> Tensor:
    """From token log-probabilities of all strings, (S, T), to those of all outcomes, (S + 1,) float64."""
    inside = logprobs.double().cpu().sum(dim=1)
    outside = (1 - inside.exp().sum()).clamp(min=LEAST_OUTSIDE)
    return torch.cat([inside, outside.log()[None]]).log_softmax(dim=0)


def _to_batch(prompt: Sequence[int], tokens: Sequence[Sequence[int]], rewards: Tensor) -> RolloutBatch:
    """One group with a row for every string."""
    rows, width = len(tokens), max(map(len, tokens))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens])
    mask = torch.arange(width) < torch.tensor([len(row) for row in tokens])[:, None]
    return RolloutBatch(
        prompt_ids=torch.tensor(prompt).expand(rows, -1),
        prompt_mask=torch.ones(rows, len(prompt), dtype=torch.bool),
        completion_ids=ids,
        completion_mask=mask,
        loss_mask=mask,
        rewards=rewards.float(),
        group_size=rows,
        group_ids=torch.zeros(rows, dtype=torch.long),
        truncated=torch.zeros(rows, dtype=torch.bool),
        sampler_logprobs=torch.zeros(rows, width),
    )


def _moved(answers: Enumerated, device: torch.device) -> Enumerated:
    return Enumerated(answers.batch.to(device), answers.rewards, answers.best, answers.lengths)


def _ids(policy: LanguageModel, text: str) -> list[int]:
    return list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
