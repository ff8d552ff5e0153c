"""Stage log_z on a toy model at a beta at which its figures overflow."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from distmatch.data import proposals
from distmatch.data.log_z_settings import log_z_folder
from distmatch.losses.anchor import RegressorLogZ
from distmatch.modules import log_z_stage
from distmatch.settings.errors import ConfigError
from tests.unit.data.toy_model import TOY, WORDS, toy_config

CONFIGS = Path(__file__).parents[3] / "configs"


def both_stages(folder: Path, beta: float) -> DictConfig:
    """The config of the stage, with the proposals made: 12 different prompts."""
    words = [*WORDS, *map(str, range(1, 12))]
    model = {"_target_": TOY, "seed": 1, "words": words}
    cfg = toy_config(
        folder,
        task__prompts=12,
        model__words=words,
        proposals__prompts=12,
        proposals__samples=32,
        proposals__beta=beta,
        proposals__models={"other": {"share": 1.0, "temperature": 0.9, "top_p": 1.0, "model": model}},
    )
    proposals.run(cfg)
    cfg.algo = {
        "beta": beta,
        "length_normalize": False,
        "log_z": {"_target_": "distmatch.losses.anchor.RegressorLogZ", "folder": "stage:log_z"},
    }
    cfg.log_z = OmegaConf.load(CONFIGS / "log_z" / "default.yaml")
    source = proposals.proposals_folder(cfg)
    cfg.log_z.update({"proposals": source.as_posix(), "held_out": 0.4, "epochs": 2})
    return cfg


def strict(text: str) -> object:
    """JSON without what Python's reader takes beyond the standard."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_figures_that_overflow_are_null_and_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = both_stages(tmp_path, 1e30)
    figures = log_z_stage.run(cfg)
    files = [file for file in tmp_path.rglob("*.json*") if file.is_file()]
    names = {file.name for file in files}
    assert {"manifest.json", "diagnostics.json", "labels-1e+30-sequence.jsonl"} <= names
    for file in files:
        for text in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            strict(text)
    manifest = strict((log_z_folder(cfg) / "manifest.json").read_text())
    assert manifest["figures"]["mse"] is manifest["watch"]["ratio"] is None
    assert math.isnan(figures["log_z/mse"]) and figures["log_z/held_out"] == 5
    assert "it cannot be judged" in capsys.readouterr().out
    assert RegressorLogZ(str(log_z_folder(cfg))).anchor.manifest["watch"]["within"] is None


def test_labels_beyond_float32_name_beta(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not finite .* or beta=1e\+200 is too large"):
        log_z_stage.run(both_stages(tmp_path, 1e200))
