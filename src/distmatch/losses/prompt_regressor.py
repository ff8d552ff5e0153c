"""What log Z of a prompt is read from, and the network that reads it: DISA's g_psi (arXiv 2605.17295).

It sees what a loss sees: the prompt's token ids and the frozen reference's state of it. The paper's inputs
and width are not known; the network is FlowRL's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from distmatch.losses.log_z import log_z_network
from distmatch.ops import where_mask

NUMBERS_IN_A_TOKEN = 3
"""Of a token such as `0-3=7`; more are left out."""
NUMBERS_IN_ORDER = 8
"""Tokens with a number whose first one is a feature of its own; capacities and sizes stand in front."""
_FIGURES = 6  # count, sum, mean, deviation, smallest, largest


def _state(regressor: PromptRegressor, ids: Tensor, mask: Tensor, hidden: Tensor | None) -> Tensor:
    if hidden is None:
        raise ValueError("the feature prompt_state needs ref_prompt_hidden, and there is none")
    return hidden.float()


def _numbers(regressor: PromptRegressor, ids: Tensor, mask: Tensor, hidden: Tensor | None) -> Tensor:
    """Length; six figures each of all tokens' first, second and third numbers; the prompt's first numbers."""
    found = regressor.token_numbers[ids.clamp(max=len(regressor.token_numbers) - 1)]  # (B, P, C)
    there = mask[..., None] & ~found.isnan()
    count = there.sum(dim=1)
    values = where_mask(found, there)
    total = values.sum(dim=1)
    mean = total / count.clamp(min=1)
    spread = where_mask((found - mean[:, None]).square(), there).sum(dim=1) / count.clamp(min=1)
    some = count > 0
    low = where_mask(found.masked_fill(~there, torch.inf).amin(dim=1), some)
    high = where_mask(found.masked_fill(~there, -torch.inf).amax(dim=1), some)
    figures = torch.cat([count.float(), total, mean, spread.sqrt(), low, high], dim=1)
    place = there[..., 0].long().cumsum(dim=1)  # 1 for the first token with a number
    first = values.new_zeros(len(ids), NUMBERS_IN_ORDER + 1)
    place = torch.where(there[..., 0] & (place <= NUMBERS_IN_ORDER), place, 0)
    first.scatter_(1, place, values[..., 0])
    return torch.cat([mask.sum(dim=1, keepdim=True).float(), figures, first[:, 1:]], dim=1)


Feature = Callable[["PromptRegressor", Tensor, Tensor, "Tensor | None"], Tensor]
"""From the regressor, prompt ids and mask (B, P) and the reference's state (B, H) to some columns, (B, k)."""

FEATURES: Mapping[str, tuple[Feature, Callable[[int], int]]] = {
    "prompt_state": (_state, lambda hidden: hidden),
    "numbers": (_numbers, lambda hidden: 1 + _FIGURES * NUMBERS_IN_A_TOKEN + NUMBERS_IN_ORDER),
}
"""Features by name, each with its number of columns for a hidden size.

`prompt_state` is the mean state of the prompt in the reference's last layer. `numbers` is the instance in a
sentence: how long the prompt is, how many numbers it has, their sum, mean, deviation and limits, and the
first few in order. It fits vocabularies in which a number is one token, such as the tiny model's.
"""


class PromptRegressor(nn.Module):
    """log Z of a prompt in nats, from standardised features through FlowRL's network.

    The mean and the deviation of features and labels are part of it, so that it stands alone.

    Args:
        features: Names of `FEATURES`.
        hidden: H of the reference.
        token_numbers: The numbers in each token of the vocabulary, (V, NUMBERS_IN_A_TOKEN), nan for none;
            only for `numbers`.
        width: Of the network.
        dropout: While it is fitted.

    Raises:
        ValueError: No feature, an unknown one, or a number out of range.
    """

    token_numbers: Tensor
    feature_mean: Tensor
    feature_scale: Tensor
    label_mean: Tensor
    label_scale: Tensor

    def __init__(
        self,
        features: Sequence[str],
        hidden: int,
        token_numbers: Tensor | None = None,
        width: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        unknown = sorted(set(features) - set(FEATURES))
        if unknown or not features:
            raise ValueError(f"log_z.features={list(features)} must be some of: {', '.join(FEATURES)}")
        if width < 1 or not 0 <= dropout < 1:
            raise ValueError(f"log_z.width={width} must be at least 1 and log_z.dropout={dropout} in [0, 1)")
        if "numbers" in features and token_numbers is None:
            raise ValueError("the feature numbers needs the numbers in each token of the vocabulary")
        self.features = tuple(features)
        self.architecture = {"features": list(features), "hidden": hidden, "width": width}
        size = sum(FEATURES[name][1](hidden) for name in features)
        table = torch.full((1, NUMBERS_IN_A_TOKEN), torch.nan) if token_numbers is None else token_numbers
        self.register_buffer("token_numbers", table.float())
        self.register_buffer("feature_mean", torch.zeros(size))
        self.register_buffer("feature_scale", torch.ones(size))
        self.register_buffer("label_mean", torch.zeros(()))
        self.register_buffer("label_scale", torch.ones(()))
        self.layers = log_z_network(size, width, dropout)

    @property
    def reads_state(self) -> bool:
        """Whether `describe` needs the reference's state."""
        return "prompt_state" in self.features

    def describe(self, ids: Tensor, mask: Tensor, hidden: Tensor | None) -> Tensor:
        """The features of prompts, as they are.

        Args:
            ids: Token ids, (B, P).
            mask: True on the prompt's tokens, (B, P).
            hidden: The reference's mean state of each prompt, (B, H), or None if no feature reads it.

        Returns:
            (B, F) float32.
        """
        return torch.cat([FEATURES[name][0](self, ids, mask, hidden) for name in self.features], dim=1)

    def fit_scales(self, features: Tensor, labels: Tensor) -> None:
        """Take over mean and deviation of features (n, F) and labels (n,); constants are not divided."""
        self.feature_mean.copy_(features.mean(dim=0))
        self.label_mean.copy_(labels.mean())
        for scale, spread in (
            (self.feature_scale, features.std(dim=0, correction=0)),
            (self.label_scale, labels.std(correction=0)),
        ):
            scale.copy_(torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def standardised(self, features: Tensor) -> Tensor:
        """(log Z - mean) / deviation of the labels, from features (B, F) -> (B,)."""
        return self.layers((features - self.feature_mean) / self.feature_scale).squeeze(1)

    def forward(self, features: Tensor) -> Tensor:
        """The value of log Z in nats, from features (B, F) -> (B,)."""
        return self.label_mean + self.label_scale * self.standardised(features)

    def fingerprint(self) -> str:
        """Hex digest of all that decides its answers."""
        digest = hashlib.sha256(repr(sorted(self.architecture.items())).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def token_numbers(texts: Sequence[str]) -> Tensor:
    """The numbers in each token's text, (V, NUMBERS_IN_A_TOKEN) float32, nan where there are fewer."""
    table = torch.full((len(texts), NUMBERS_IN_A_TOKEN), torch.nan)
    for row, text in enumerate(texts):
        found = [float(digits) for digits in re.findall(r"\d{1,9}", text)[:NUMBERS_IN_A_TOKEN]]
        table[row, : len(found)] = torch.tensor(found)
    return table
