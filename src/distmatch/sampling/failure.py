"""What is raised when an engine or a server that samples has failed: the run ends, and nothing is lost."""

from __future__ import annotations


class SamplerFailure(RuntimeError):
    """A sampling engine is dead, or what it did cannot be relied on; its message is whole sentences.

    Raised between iterations' ends, so the last checkpoint is intact.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what.rstrip('.')}. Iterations that were complete are saved: go on with "
            "`python train.py resume=<run folder>`"
        )
