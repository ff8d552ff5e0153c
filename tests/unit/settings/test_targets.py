"""Signatures out of source text."""

from pathlib import Path

import pytest

from distmatch.settings import ConfigError, check
from distmatch.settings.compose import compose
from distmatch.settings.targets import find_target

ROOT = Path(__file__).parents[3]


def refusal(tree, *overrides):
    with pytest.raises(ConfigError) as caught:
        check(compose(tree, overrides))
    return str(caught.value)


def test_signatures_are_read_through_re_exports():
    trainer = find_target("lightning.pytorch.Trainer")
    assert {"max_epochs", "accumulate_grad_batches"} <= trainer.parameters
    assert "self" not in trainer.parameters


def test_targets_that_cannot_be_read_are_not_judged():
    assert find_target("math.sqrt") is None
    assert find_target("lightning.pytorch.loggers.TensorBoardLogger").parameters is None


def test_inherited_constants_are_seen(tree):
    assert find_target("fake_parts.GRPO").constants["min_group_size"] == 3
    assert find_target("fake_parts.DMPO").constants["min_group_size"] == 2


def test_a_syntax_error_in_a_plug_in_is_shown_with_its_line(tree, tmp_path):
    (tmp_path / "broken_plug_in.py").write_text("class Loss:\n    def :\n")
    message = refusal(tree, "algo._target_=broken_plug_in.Loss")
    assert "broken_plug_in.py, line 2" in message


def test_folders_without_init_are_packages_too(tree, tmp_path):
    folder = tmp_path / "own" / "losses"
    folder.mkdir(parents=True)
    (tmp_path / "own" / "__init__.py").touch()
    (folder / "mine.py").write_text("class MyLoss:\n    def __init__(self, scale: float = 1.0): ...\n")
    assert find_target("own.losses.mine.MyLoss").parameters == {"scale"}
