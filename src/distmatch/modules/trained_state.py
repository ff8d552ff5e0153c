"""What a checkpoint of a policy keeps: the weights that train, and nothing of a frozen base."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from distmatch.modules.language_model import LanguageModel
from distmatch.settings.errors import ConfigError


def trained_names(policy: LanguageModel, state: Mapping[str, Tensor]) -> set[str]:
    """The names in a `PolicyModule`'s state dict that train, under the prefixes `policy.` and `loss.`."""
    trainable = {f"policy.{name}" for name in policy.trainable()}
    # A tied weight appears in the state dict under each of its names.
    tied = {p.data_ptr() for p in policy.trainable().values()}
    return {k for k, v in state.items() if k in trainable or k.startswith("loss.") or v.data_ptr() in tied}


def check_trained(state: Mapping[str, Tensor], own: Mapping[str, Tensor], expected: set[str]) -> None:
    """Refuse a checkpoint that does not fit.

    Args:
        state: The checkpoint's weights.
        own: The module's.
        expected: The names that must be there, and no others.

    Raises:
        ConfigError: Counts what differs and names the first.
    """
    missing, unknown = expected - set(state), set(state) - expected
    shapes = {k for k in state if k in own and state[k].shape != own[k].shape}
    if missing or unknown or shapes:
        first = sorted(missing | unknown | shapes)[0]
        raise ConfigError(
            f"the checkpoint is of another model or loss: {len(missing)} weights missing, {len(unknown)} "
            f"unknown, {len(shapes)} of another shape (first: {first}); use the run's own model and algo"
        )
