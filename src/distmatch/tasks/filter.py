"""Keep the instances that a policy solves sometimes: the papers' training filter.

python -m distmatch.tasks.filter task=np_tiny model=tiny n=200
python -m distmatch.tasks.filter task=curriculum model=hf model.path=Qwen/Qwen2.5-7B-Instruct-1M \
    data.max_prompt_tokens=2048 data.max_tokens=8192 n=30000 out=data/np_10k

DMPO trains on instances whose success rate under the base model lies in [0.05, 0.8]. What is kept is written
like an export, with `success_rate` and `samples` in each record, and loads back as `task=stored`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from distmatch.settings.errors import ConfigError
from distmatch.settings.numbers import Number
from distmatch.tasks.command import fresh_folder, main, moved_into_place
from distmatch.tasks.export import SPLITS, Row, make_card, write_all

if TYPE_CHECKING:
    from distmatch.modules.language_model import LanguageModel
    from distmatch.sampling.base import Sampler
    from distmatch.tasks.base import Instance, Task

NUMBERS = (
    Number("n", low=1),
    Number("samples", low=1),
    Number("low", float, low=0, high=1),
    Number("high", float, low=0, high=1),
    Number("seed", low=0),
    Number("prompts_per_pass", low=1),
)


def run(cfg: DictConfig) -> int:
    """Filter as the config says; 1 if nothing is kept."""
    _check(cfg)
    folder = fresh_folder(cfg.out, f"filter/{cfg.choices.task}-{cfg.split}-{cfg.n}")
    from hydra.utils import instantiate

    from distmatch.tasks.records import Spell, to_row

    task: Task = instantiate(cfg.task)
    spell, categories = Spell(), task.categories()
    tried, rows = Counter[str](), []
    for instance, rate in success_rates(task, cfg):
        tried[instance.task] += 1
        if cfg.low <= rate <= cfg.high:
            extra = {"success_rate": rate, "samples": int(cfg.samples)}
            rows.append(to_row(task, instance, categories[instance.task], spell, **extra))
        done = tried.total()
        if done % max(1, cfg.n // 20) == 0:
            print(f"tried {done} of {cfg.n}, kept {len(rows)}", file=sys.stderr, flush=True)
    _report(tried, Counter(str(row["task"]) for row in rows))
    if not rows:
        print("nothing was kept and nothing written", file=sys.stderr)
        return 1
    with moved_into_place(folder) as scratch:
        write_all(rows, make_card(task, cfg, rows) | {"filter": _settings(cfg)}, scratch, "jsonl")
    print(f"written to {folder}; train on it with task=stored task.path={folder}")
    return 0


def success_rates(task: Task, cfg: DictConfig) -> Iterator[tuple[Instance, float]]:
    """The instances in order, each with the share of the policy's answers that are valid.

    Raises:
        ConfigError: A prompt is over its budget, or cannot be spelt by the model.
    """
    import torch
    import transformers
    from hydra.utils import instantiate

    transformers.utils.logging.disable_progress_bar()
    policy: LanguageModel = instantiate(cfg.model)
    policy.to("cuda" if torch.cuda.is_available() else "cpu")
    sampler: Sampler = instantiate(cfg.sampler)
    sampler.setup(policy)
    sampler.sync(policy)
    try:
        for start in range(0, cfg.n, cfg.prompts_per_pass):
            places = range(start, min(start + cfg.prompts_per_pass, cfg.n))
            instances = [task.instance(cfg.split, place) for place in places]
            yield from zip(instances, _rates(task, cfg, policy, sampler, places, instances), strict=True)
    finally:
        sampler.close()


def _rates(
    task: Task,
    cfg: DictConfig,
    policy: LanguageModel,
    sampler: Sampler,
    places: range,
    instances: list[Instance],
) -> list[float]:
    from distmatch.sampling.base import SamplingParams
    from distmatch.tasks.base import derive_seed

    n = int(cfg.samples)
    params = SamplingParams(n=n, max_tokens=cfg.data.max_tokens, temperature=cfg.data.temperature)
    prompts = [_encode(task, cfg, policy, instance) for instance in instances]
    seeds = [derive_seed("filter", cfg.seed, place, k) for place in places for k in range(n)]
    completions = sampler.sample(prompts, params, seeds)
    lengths = completions.mask.sum(dim=1).tolist()
    texts = [
        policy.decode(row[:length]) for row, length in zip(completions.ids.tolist(), lengths, strict=True)
    ]
    return [
        sum(task.verify(instance, text).feasible for text in texts[i * n : (i + 1) * n]) / n
        for i, instance in enumerate(instances)
    ]


def _encode(task: Task, cfg: DictConfig, policy: LanguageModel, instance: Instance) -> list[int]:
    try:
        ids = policy.encode(task.render(instance, policy.style))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if len(ids) > cfg.data.max_prompt_tokens:
        raise ConfigError(
            f"the prompt of {instance.id} has {len(ids)} tokens, over data.max_prompt_tokens="
            f"{cfg.data.max_prompt_tokens}; raise it or choose an easier level"
        )
    return ids


def _check(cfg: DictConfig) -> None:
    if cfg.split not in SPLITS:
        raise ConfigError(f"split={cfg.split} is unknown; choose one of {', '.join(SPLITS)}")
    if cfg.low > cfg.high:
        raise ConfigError(f"low={cfg.low} must not be above high={cfg.high}")


def _settings(cfg: DictConfig) -> Row:
    keys = ("samples", "low", "high", "seed", "n")
    return {
        **{key: cfg[key] for key in keys},
        "data": OmegaConf.to_container(cfg.data),
        "model": OmegaConf.to_container(cfg.model, resolve=True),
    }


def _report(tried: Counter[str], kept: Counter[str]) -> None:
    for name, count in tried.items():
        print(f"{name}: kept {kept[name]} of {count} ({kept[name] / count:.1%})")
    total = sum(tried.values())
    print(f"kept {sum(kept.values())} of {total} ({sum(kept.values()) / total:.1%})")


if __name__ == "__main__":
    sys.exit(main("filter", run, __doc__, NUMBERS))
