"""The final evaluation: n answers of a policy to every held-out prompt, kept as one record a prompt.

All policies answer the same prompts with the same random numbers: an answer's seed is made of `eval_seed`,
the prompt's number and the answer's alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from hydra.utils import instantiate
from lightning import Fabric
from omegaconf import DictConfig, OmegaConf, open_dict

from distmatch.callbacks.scored import Rollouts, verify
from distmatch.data.rollouts import RolloutDataModule
from distmatch.metrics.group_score import GroupScore
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.tiny import load_tiny
from distmatch.run import make, quiet
from distmatch.settings.errors import ConfigError
from distmatch.settings.stage_names import STAGE_MARK
from distmatch.stages import prepare
from distmatch.study.comparison.existing import flatten
from distmatch.study.comparison.plan import Cell, trained_model
from distmatch.study.comparison.request import Request

DECISIVE = ("max_prompt_tokens", "max_tokens", "temperature", "eval_split")
"""Settings of `data` that an evaluation depends on."""


@dataclass(frozen=True)
class Record:
    """The n answers to one prompt.

    Attributes:
        instance: The instance's id.
        prompt: The prompt's number among the held-out ones.
        task: Name of its task.
        category: The task's category.
        seed: `eval_seed`.
        feasible: Whether each answer is feasible.
        quality: Ratio to the reference, 0 if infeasible.
        key: Canonical form of each answer's solution, None if it has none.
        reward: Of each answer.
        length: In tokens.
        truncated: Whether the answer was cut at the length limit.
    """

    instance: str
    prompt: int
    task: str
    category: str
    seed: int
    feasible: list[bool]
    quality: list[float]
    key: list[str | None]
    reward: list[float]
    length: list[int]
    truncated: list[bool]

    def score(self) -> GroupScore:
        """What the metrics read."""
        return GroupScore(self.task, self.category, self.feasible, self.quality, self.key)


def start_name(cfg: DictConfig, request: Request) -> str:
    """A name for the policy before training: equal for configs whose evaluations would be equal.

    What an arm trains on, sampled or stored, is not in it.
    """
    model = OmegaConf.to_container(cfg.model, resolve=True)
    made = OmegaConf.to_container(cfg.warm_start) if _has_marks(cfg.model) else None
    return f"start-{_digest(_asked(cfg, request), model, made)[:8]}"


def evaluate_cell(cell: Cell, request: Request) -> list[Record]:
    """The records of a trained cell: those on disk, if they answer the same questions, or new ones."""
    export = cell.run / "export"
    stamp = _digest(_asked(cell.cfg, request), _weights_stamp(export))
    return _evaluate(cell.cfg, export, cell.evaluation, request, stamp)


def evaluate_start(cfg: DictConfig, file: Path, request: Request) -> list[Record]:
    """The same of the policy before training."""
    return _evaluate(cfg, None, file, request, start_name(cfg, request))


def read_records(file: Path) -> list[Record]:
    """The records of an evaluation."""
    return [Record(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def write_records(file: Path, records: Iterable[Record]) -> None:
    """Write all records and move the file into place."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".tmp")
    lines = (json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
    scratch.write_text("".join(lines), encoding="utf-8")
    scratch.replace(file)


def _evaluate(cfg: DictConfig, export: Path | None, file: Path, request: Request, stamp: str) -> list[Record]:
    """Answer, unless the records beside `stamp` are there already."""
    mark = file.with_suffix(".json")
    if file.is_file() and mark.is_file() and json.loads(mark.read_text(encoding="utf-8"))["stamp"] == stamp:
        return read_records(file)
    print(f"  evaluates {file.parent.name}", flush=True)
    records = sample_records(cfg, export, request)
    mark.unlink(missing_ok=True)
    write_records(file, records)
    asked = {"eval_seed": request.eval_seed, "eval_samples": request.eval_samples, "prompts": len(records)}
    mark.write_text(json.dumps({"stamp": stamp, **asked}, indent=1) + "\n", encoding="utf-8")
    return records


def sample_records(cfg: DictConfig, export: Path | None, request: Request) -> list[Record]:
    """Load a policy and let it answer.

    Args:
        cfg: The config of its run.
        export: Folder of the trained policy; None for the one before training.
        request: How much to ask.

    Raises:
        ConfigError: The policy cannot be loaded, or a prompt is over its budget.
    """
    quiet()
    if _has_marks(cfg.model) or _has_marks(cfg.data):
        cfg = cfg.copy()
        prepare(cfg)
    model = cfg.model if export is None else trained_model(cfg, export)
    if cfg.threads or model._target_ == f"{load_tiny.__module__}.{load_tiny.__name__}":
        torch.set_num_threads(int(cfg.threads or 1))
    settings = cfg.data.copy()
    with open_dict(settings):
        settings.eval_samples = request.eval_samples
        settings.eval_prompts = request.eval_prompts or settings.eval_prompts
    try:
        policy: LanguageModel = instantiate(model).eval()
        policy.to(Fabric(accelerator=cfg.trainer.accelerator, devices=1).device)
        data: RolloutDataModule = make(
            settings, task=instantiate(cfg.task), policy=policy, seed=request.eval_seed
        )
        queries = data.eval_queries()
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    sampler = instantiate(cfg.sampler)
    params = data.eval_sampling
    try:
        sampler.setup(policy)
        sampler.sync(policy)
        seeds = data.sample_seeds(queries, "eval", params.n)
        completions = sampler.sample([query.ids for query in queries], params, seeds)
    finally:
        sampler.close()
    rollouts = verify(data, instantiate(cfg.reward), queries, completions, params.n)
    return list(_records(rollouts, data, request.eval_seed))


def _records(rollouts: Rollouts, data: RolloutDataModule, seed: int) -> Iterable[Record]:
    categories = data.task.categories()
    for query, rows in rollouts.groups():
        outcomes = rollouts.outcomes[rows]
        name = data.task.problem(query.instance).name
        yield Record(
            instance=query.instance.id,
            prompt=query.group_id,
            task=name,
            category=categories[name],
            seed=seed,
            feasible=[outcome.success for outcome in outcomes],
            quality=[outcome.quality for outcome in outcomes],
            key=[outcome.verdict.key for outcome in outcomes],
            reward=[outcome.reward for outcome in outcomes],
            length=list(rollouts.lengths[rows]),
            truncated=list(rollouts.truncated[rows]),
        )


def _has_marks(node: DictConfig) -> bool:
    """Whether a value in it stands for the result of a stage; those of the loss are not needed here."""
    return any(str(value).startswith(STAGE_MARK) for value in flatten(OmegaConf.to_container(node)).values())


def _asked(cfg: DictConfig, request: Request) -> object:
    """All that decides an evaluation beside the weights."""
    data = {key: cfg.data.get(key) for key in DECISIVE}
    nodes = [OmegaConf.to_container(cfg[part], resolve=True) for part in ("task", "reward")]
    prompts = request.eval_prompts or cfg.data.eval_prompts
    return [data, nodes, prompts, request.eval_samples, request.eval_seed]


def _weights_stamp(export: Path) -> list[object]:
    """Changes when the weights are written anew."""
    files = sorted(export.glob("*.safetensors"))
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
