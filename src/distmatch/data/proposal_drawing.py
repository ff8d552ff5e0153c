"""Drawing and scoring trajectories: the part of stage `proposals` that needs models."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from distmatch.batch import Completions
from distmatch.data import proposal_settings as settings
from distmatch.data.proposal_records import KIND
from distmatch.data.proposal_scoring import answer_logprobs
from distmatch.data.warm_start import settings_hash
from distmatch.modules.language_model import LanguageModel
from distmatch.rewards import Reward, score
from distmatch.sampling.base import Sampler, SamplingParams
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Instance, Task, derive_seed

STREAM = 2 * 10**15
"""Proposals are for training instances from here on: none that a training run or a warm start meets."""

SPLIT = "train"
PACKAGES = ("torch", "transformers")
LARGEST_GAP = 0.1
"""Mean distance in nats a token between what a sampler reports and what its model scores; more is a fault."""

TRUNCATION = (
    "answers cut at max_tokens count as outcomes of their own; reference and proposals score the cut string"
)
SUPPORT = {
    True: "all answers",
    False: "the answers that top_p keeps: log Z is that of a part of the language, a lower bound",
}


@dataclass(frozen=True)
class Proposal:
    """One model that writes trajectories.

    Attributes:
        name: Its key in `proposals.models`.
        policy: The model.
        sampler: Set up with it.
        params: How it samples; the same object scores what it wrote.
    """

    name: str
    policy: LanguageModel
    sampler: Sampler
    params: SamplingParams


@dataclass(frozen=True)
class Question:
    """A prompt of the stage: its position, the instance's address, the instance, and the rendered tokens."""

    index: int
    address: int
    instance: Instance
    ids: tuple[int, ...]


class Drawing:
    """Everything that draws and scores: task, reward, reference and proposals.

    Args:
        cfg: The config.

    Raises:
        ConfigError: A proposal has another vocabulary than the reference, or too small a window.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.task: Task = instantiate(cfg.task)
        self.reward: Reward = instantiate(cfg.reward)
        device = _device(cfg)
        self.reference: LanguageModel = instantiate(cfg.model).to(device)
        self.params = SamplingParams(1, int(cfg.data.max_tokens), float(cfg.data.temperature))
        self.seed = int(cfg.proposals.seed)
        self.longest_prompt = int(cfg.data.max_prompt_tokens)
        nodes = settings.proposal_nodes(cfg)
        self.shares = [float(node.share) for node in nodes.values()]
        self.proposals = [self._proposal(cfg, name, node, device) for name, node in nodes.items()]
        self._rows_side_by_side = int(cfg.module.micro_batch_tokens or 16384)

    def _proposal(self, cfg: DictConfig, name: str, node: DictConfig, device: torch.device) -> Proposal:
        policy = self.reference if node.model is None else instantiate(node.model).to(device)
        if tokenizer_hash(policy) != tokenizer_hash(self.reference):
            raise ConfigError(
                f"proposals.models.{name}.model has another vocabulary than model: both must read and write "
                "the same token ids; name a proposal of the same tokenizer"
            )
        needed = self.longest_prompt + self.params.max_tokens
        if needed > policy.window:
            raise ConfigError(
                f"proposals.models.{name}.model has a window of {policy.window} tokens, but "
                f"data.max_prompt_tokens and data.max_tokens need {needed}"
            )
        sampler: Sampler = instantiate(cfg.sampler)
        sampler.setup(policy)
        sampler.sync(policy)
        return Proposal(name, policy, sampler, settings.sampling_params(cfg, node))

    def describe(self, cfg: DictConfig) -> dict[str, Any]:
        """The manifest: all that the trajectories depend on."""
        found = settings.dependencies(cfg)
        return {
            "kind": KIND,
            "hash": settings_hash(found),
            "settings": found,
            "task": found["task"],
            "reward": found["reward"],
            "temperature": self.params.temperature,
            "max_tokens": self.params.max_tokens,
            "reference": {"weights_hash": self.reference.weights_hash()},
            "models": {
                p.name: {
                    "weights_hash": p.policy.weights_hash(),
                    "share": share,
                    "temperature": p.params.temperature,
                    "top_p": p.params.top_p,
                }
                for p, share in zip(self.proposals, self.shares, strict=True)
            },
            "tokenizer_hash": tokenizer_hash(self.reference),
            "seed": self.seed,
            "support": SUPPORT[any(p.params.top_p == 1 for p in self.proposals)],
            "truncation": TRUNCATION,
            "versions": {name: version(name) for name in PACKAGES},
        }

    def close(self) -> None:
        """Give the samplers' resources back."""
        for proposal in self.proposals:
            proposal.sampler.close()

    def rows(self, indices: Sequence[int], first: int, samples: int) -> list[dict[str, Any]]:
        """Lines of a shard: trajectories `first` to `samples` of some prompts."""
        questions = [self._question(index) for index in indices]
        order = settings.sources(self.shares, samples)
        drawn: dict[int, dict[int, dict[str, Any]]] = {index: {} for index in indices}
        for source, proposal in enumerate(self.proposals):
            numbers = [k for k in range(first, samples) if order[k] == source]
            if numbers:
                if len(self.proposals) > 1:
                    proposal.sampler.sync(proposal.policy)  # servers hold the weights of one proposal only
                for question, entries in self._draw(proposal, source, questions, numbers):
                    drawn[question.index] |= dict(zip(numbers, entries, strict=True))
        return [
            {
                "index": q.index,
                "split": SPLIT,
                "address": q.address,
                "instance": q.instance.id,
                "prompt_ids": list(q.ids),
                "first": first,
                "trajectories": [drawn[q.index][k] for k in range(first, samples)],
            }
            for q in questions
        ]

    def _question(self, index: int) -> Question:
        address = STREAM + index
        instance = self.task.instance(SPLIT, address)
        ids = self.reference.encode(self.task.render(instance, self.reference.style))
        if len(ids) > self.longest_prompt:
            raise ConfigError(
                f"the prompt of {instance.id} has {len(ids)} tokens, over data.max_prompt_tokens="
                f"{self.longest_prompt}; raise it, or choose an easier task.level"
            )
        return Question(index, address, instance, tuple(ids))

    def _draw(
        self, proposal: Proposal, source: int, questions: Sequence[Question], numbers: Sequence[int]
    ) -> Iterator[tuple[Question, list[dict[str, Any]]]]:
        """What one proposal writes: for each prompt its trajectories of these numbers."""
        n = len(numbers)
        seeds = [derive_seed("proposals", self.seed, q.index, k) for q in questions for k in numbers]
        completions = proposal.sampler.sample(
            [q.ids for q in questions], replace(proposal.params, n=n), seeds
        )
        for place, question in enumerate(questions):
            rows = slice(place * n, (place + 1) * n)
            part = Completions(
                completions.ids[rows],
                completions.mask[rows],
                completions.logprobs[rows],
                completions.finished[rows],
            )
            yield question, self._score(question, source, part)

    def _score(self, question: Question, source: int, part: Completions) -> list[dict[str, Any]]:
        lengths = part.mask.sum(dim=1).tolist()
        width = max(lengths)
        ids, mask = part.ids[:, :width], part.mask[:, :width]
        rows = max(1, self._rows_side_by_side // (len(question.ids) + width))
        log_ref = answer_logprobs(self.reference, question.ids, ids, mask, self.params, rows).sum(dim=1)
        scored = [answer_logprobs(p.policy, question.ids, ids, mask, p.params, rows) for p in self.proposals]
        scored[source] = _as_drawn(self.proposals[source], part, scored[source])
        by_proposal = torch.stack([tokens.sum(dim=1) for tokens in scored], dim=1).tolist()  # (n, J)
        entries = []
        for row, length in enumerate(lengths):
            tokens = ids[row, :length].tolist()
            text = self.reference.decode(tokens)
            outcome = score(self.task, question.instance, text, self.reward)
            entries.append(
                {
                    "ids": tokens,
                    "finished": bool(part.finished[row]),
                    "log_ref": float(log_ref[row]),
                    "log_proposals": [value if math.isfinite(value) else None for value in by_proposal[row]],
                    "reward": outcome.reward,
                    "length": length,
                    "text": text,
                    "source": source,
                }
            )
        return entries


def _as_drawn(proposal: Proposal, part: Completions, scored: Tensor) -> Tensor:
    """Token log-probabilities of what this proposal drew, (n, T), after a comparison with its sampler's own.

    At the edge of a nucleus rounding may put a token outside that the sampler had inside: there the sampler
    is right.

    Raises:
        RuntimeError: The two are far apart: every weight would be wrong.
    """
    mask, reported = part.mask[:, : scored.shape[1]], part.logprobs[:, : scored.shape[1]].to(scored)
    scored = torch.where(scored.isinf(), reported, scored)
    gap = float((reported - scored).abs()[mask].mean())
    if not gap <= LARGEST_GAP:
        raise RuntimeError(
            f"proposals.models.{proposal.name}: sampler and model differ by {gap:.3f} nats a token; the "
            "sampler does not draw from these weights at this temperature and top_p"
        )
    return scored


def tokenizer_hash(policy: LanguageModel) -> str:
    """Hex digest of a vocabulary: its words, their ids, and the ids that end an answer."""
    words = sorted(policy.tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps([words, sorted(policy.eos_ids)]).encode()).hexdigest()


def _device(cfg: DictConfig) -> torch.device:
    wanted = cfg.trainer.accelerator in ("auto", "gpu", "cuda")
    return torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")
