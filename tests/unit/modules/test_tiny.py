"""The checkpoint in the package is what its manifest says, made with the default settings."""

from __future__ import annotations

import json

import pytest

from distmatch.data.warm_start import dependencies, settings_hash
from distmatch.modules.tiny import build_tokenizer, load_tiny, shipped_folder
from distmatch.settings.compose import Catalogue, compose
from distmatch.settings.manifest import MANIFEST
from tests.runs import ROOT


@pytest.fixture(scope="module")
def manifest() -> dict:
    return json.loads((shipped_folder() / MANIFEST).read_text(encoding="utf-8"))


def test_it_is_small_and_of_about_a_million_parameters(manifest: dict) -> None:
    assert sum(file.stat().st_size for file in shipped_folder().iterdir()) <= 8 * 2**20
    assert 0.8e6 < manifest["parameters"] < 1.3e6


def test_its_weights_are_those_of_the_manifest(manifest: dict) -> None:
    policy = load_tiny("shipped")
    assert policy.weights_hash() == manifest["weights_hash"]
    assert sum(p.numel() for p in policy.parameters()) == manifest["parameters"]
    assert policy.style == "compact"


def test_its_tokenizer_is_the_one_that_the_package_builds() -> None:
    assert (
        load_tiny("shipped").tokenizer.backend_tokenizer.to_str()
        == build_tokenizer().backend_tokenizer.to_str()
    )


def test_the_default_settings_are_those_it_was_made_with(manifest: dict) -> None:
    settings = dependencies(compose(Catalogue(ROOT / "configs", "train", None), ["stage=warm_start"]))
    assert manifest["settings"] == settings
    assert manifest["settings_hash"] == settings_hash(settings)
    assert manifest["command"] == "python train.py stage=warm_start"


def test_it_is_mediocre(manifest: dict) -> None:
    assert 0.4 <= manifest["figures"]["success_rate"] <= 0.9


def test_heads_must_divide() -> None:
    with pytest.raises(ValueError, match=r"key_value_heads=2 must divide model.heads=3"):
        load_tiny("random", heads=3, key_value_heads=2)
