"""distmatch: distribution-matching reinforcement learning of language models, as a Lightning template."""

__version__ = "0.1.0"
