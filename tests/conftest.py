"""Fixtures that need a model or a whole run."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from distmatch.modules.language_model import LanguageModel
from distmatch.modules.tiny import load_tiny
from tests.runs import lab_warm_start

torch.set_num_threads(1)
SMALL = {"hidden_size": 64, "layers": 2, "heads": 2, "key_value_heads": 1, "intermediate_size": 128}


@pytest.fixture
def small_policy() -> LanguageModel:
    """A random compact-style policy of 150,000 parameters."""
    return load_tiny("random", **SMALL)


@pytest.fixture(scope="session")
def lab_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that writes nearly uniform strings of the lab's language, made by stage=warm_start."""
    return lab_warm_start(tmp_path_factory.mktemp("lab"))
