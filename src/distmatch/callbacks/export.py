"""Export: the trained policy as a plain Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from lightning import Callback, LightningModule, Trainer


class Export(Callback):
    """Writes `export/` when training ends; transformers and vLLM load it without this package.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) / "export"

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write beside the old export, then put it in place."""
        if not trainer.is_global_zero:
            return
        scratch = self._folder.with_name("export.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        pl_module.policy.save(scratch)
        shutil.rmtree(self._folder, ignore_errors=True)
        scratch.replace(self._folder)
