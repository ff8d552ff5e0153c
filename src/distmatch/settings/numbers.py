"""What every number in a config must be: one table."""

from __future__ import annotations

import math
from dataclasses import dataclass

_BEYOND = 2**63  # what the libraries underneath cannot hold


@dataclass(frozen=True)
class Number:
    """What a number in the config must be.

    Attributes:
        key: Its dotted path.
        kind: `int` or `float`; a float may be written as an int, but a truth value is neither.
        low, high: Limits that are themselves allowed.
        above: A limit that is not itself allowed.
        optional: Whether null is allowed.
    """

    key: str
    kind: type[int] | type[float] = int
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    optional: bool = False

    def demand(self) -> str:
        """The condition in words."""
        words = ["a whole number" if self.kind is int else "a number"]
        if self.low > -math.inf:
            words.append(f"of at least {_written(self.low)}")
        if self.above > -math.inf:
            words.append(f"above {_written(self.above)}")
        if self.high < math.inf:
            high = _written(self.high)
            words.append(f"of at most {high}" if len(words) == 1 else f"and at most {high}")
        return " ".join(words) + (" or null" if self.optional else "")

    def accepts(self, value: object) -> bool:
        """Whether `value` is such a number."""
        if value is None:
            return self.optional
        kinds = (int,) if self.kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        if isinstance(value, int) and abs(value) >= _BEYOND:
            return False
        return self.low <= value <= self.high and value > self.above and math.isfinite(value)


def _written(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


NUMBERS = (
    Number("threads", low=1, high=4096, optional=True),
    Number("seed", low=0, high=2**32 - 1),
    Number("trainer.max_epochs", low=1),
    Number("trainer.num_nodes", low=1),
    Number("trainer.gradient_clip_val", float, above=0, optional=True),
    Number("trainer.check_val_every_n_epoch", low=1, optional=True),
    Number("data.prompts_per_iteration", low=1, high=10**7),
    Number("data.group_size", low=1, high=10**5),
    Number("data.updates_per_rollout", low=1),
    Number("data.max_sampling_rounds", low=1, high=1000),
    Number("data.min_reward", float, optional=True),
    Number("data.eval_prompts", low=1, high=10**7),
    Number("data.eval_samples", low=1, high=10**5),
    Number("data.max_prompt_tokens", low=1),
    Number("data.max_tokens", low=1),
    Number("data.temperature", float, above=0),
    Number("data.top_p", float, above=0, high=1),
    Number("reward.limit", low=1),
    Number("reward.buffer", low=1, optional=True),
    Number("module.lr", float, above=0),
    Number("module.weight_decay", float, low=0),
    Number("module.micro_batch_tokens", low=1, optional=True),
    Number("module.warmup_steps", low=0),
    Number("sampler.max_rows", low=1),
    *(Number(f"model.{size}", low=1) for size in ("layers", "heads", "key_value_heads", "hidden_size")),
    *(Number(f"model.{size}", low=1) for size in ("intermediate_size", "window")),
    Number("warm_start.steps", low=1),
    Number("warm_start.batch_size", low=1),
    Number("warm_start.lr", float, above=0),
    Number("warm_start.weight_decay", float, low=0),
    Number("warm_start.warmup", float, low=0, high=1),
    Number("warm_start.workers", low=0),
    Number("warm_start.seed", low=0, high=2**32 - 1),
    Number("proposals.prompts", low=1, high=10**7),
    Number("proposals.samples", low=2, high=10**6),
    Number("proposals.prompts_per_shard", low=1),
    Number("proposals.seed", low=0, high=2**32 - 1),
    Number("proposals.beta", float, low=0),
    Number("log_z.width", low=1),
    Number("log_z.dropout", float, low=0, high=0.99),
    Number("log_z.held_out", float, above=0, high=0.9),
    Number("log_z.lr", float, above=0),
    Number("log_z.weight_decay", float, low=0),
    Number("log_z.batch_size", low=1),
    Number("log_z.epochs", low=1),
    Number("log_z.patience", low=1),
    Number("log_z.seed", low=0, high=2**32 - 1),
)
"""The numbers of a run; add a line for a new one."""
