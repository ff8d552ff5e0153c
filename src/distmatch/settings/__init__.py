"""From a command line to a checked config, before anything slow is imported.

Only the standard library, Hydra and OmegaConf are imported here: a mistake in a setting answers at once.
"""

try:
    from distmatch.settings.checks import check
    from distmatch.settings.cli import main
    from distmatch.settings.errors import ConfigError
except KeyboardInterrupt:  # Ctrl-C before `main` could answer it
    raise SystemExit(130) from None

__all__ = ["ConfigError", "check", "main"]
