"""From a command line to a checked config, before anything slow is imported.

Only the standard library, Hydra and OmegaConf are imported here: a mistake in a setting answers at once.
"""

from distmatch.settings.checks import check
from distmatch.settings.cli import main
from distmatch.settings.errors import ConfigError

__all__ = ["ConfigError", "check", "main"]
