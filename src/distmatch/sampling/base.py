"""The contract of a sampler, and the one object that says how tokens are drawn and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from distmatch.batch import Completions

if TYPE_CHECKING:
    from distmatch.modules.language_model import LanguageModel


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn; the trainer scores them with the same object.

    Attributes:
        n: Samples per prompt.
        max_tokens: Length limit of a completion in tokens, EOS included.
        temperature: Softmax temperature, above zero.
        top_p: Nucleus mass; 1 keeps the whole vocabulary. Other values shift log-probabilities between engine
            and trainer, so training rollouts refuse them (evaluation may use them).

    Raises:
        ValueError: A value is out of its range.
    """

    n: int = 8
    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.n < 1 or self.max_tokens < 1:
            raise ValueError(
                f"n and max_tokens must be at least 1, got n={self.n}, max_tokens={self.max_tokens}"
            )
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")


class Sampler(Protocol):
    """Draws completions of token-id prompts from the current policy."""

    def setup(self, policy: LanguageModel) -> None:
        """Start whatever is needed; called once, after Lightning's strategy is set up."""

    def sync(self, policy: LanguageModel) -> None:
        """Make the next `sample` use the policy's weights of this moment."""

    def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> Completions:
        """Draw `params.n` completions for each prompt, prompt-major.

        Args:
            prompts: N lists of token ids.
            params: How to draw.
            seeds: One 63-bit seed for each of the N*n rows; with the HF sampler a row's tokens depend on its
                seed, its prompt and the weights alone, not on the other rows.
        """

    def close(self) -> None:
        """Give back what `setup` took; safe to call twice."""
