"""The stage `proposals` in bad company: removed and damaged files, and one server for two proposals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from omegaconf import OmegaConf

from distmatch.batch import Completions
from distmatch.data import proposals
from distmatch.data.proposal_records import held, read_proposals
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.hf import HFSampler
from distmatch.settings.errors import ConfigError
from tests.unit.data.test_proposals import quick, shards, tokens
from tests.unit.data.toy_model import toy_config


@quick
def test_a_shard_that_was_removed_is_drawn_again_and_the_others_stay(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    proposals.run(cfg)
    folder, before = proposals.proposals_folder(cfg), shards(cfg)
    kept = tokens(read_proposals(folder))
    (folder.parent / "shards" / "shard-00000.jsonl").unlink()
    with pytest.raises(ConfigError, match=f"delete {folder} and run"):
        read_proposals(folder)
    (folder / "manifest.json").unlink()
    proposals.run(cfg)
    assert tokens(read_proposals(folder)) == kept
    del before["shard-00000.jsonl"]
    assert before.items() <= shards(cfg).items(), "no shard is written over"


@quick
@pytest.mark.parametrize("damage", ["cut", "without a reward", "no object"])
def test_a_damaged_shard_is_named_with_its_line(tmp_path: Path, damage: str) -> None:
    cfg = toy_config(tmp_path)
    proposals.run(cfg)
    file = proposals.proposals_folder(cfg).parent / "shards" / "shard-00001.jsonl"
    first, second = file.read_text(encoding="utf-8").splitlines()[:2]
    row = json.loads(second)
    del row["trajectories"][0]["reward"]
    bad = {"cut": second[:40], "without a reward": json.dumps(row), "no object": "7"}[damage]
    file.write_text(f"{first}\n{bad}\n", encoding="utf-8")
    for use in (lambda: read_proposals(proposals.proposals_folder(cfg)), lambda: held(file.parents[1])):
        with pytest.raises(ConfigError, match=r"shard-00001.jsonl, line 2, is damaged .*delete the folder"):
            use()


@quick
def test_a_shard_that_others_go_on_from_is_missed(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    proposals.run(cfg)
    proposals.run(toy_config(tmp_path, proposals__samples=16))
    (proposals.proposals_folder(cfg).parent / "shards" / "shard-00000.jsonl").unlink()
    with pytest.raises(ConfigError, match="of prompt 0, but 0 stand before it: a shard is missing"):
        proposals.run(toy_config(tmp_path, proposals__samples=20))


@quick
def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    proposals.run(cfg)
    (proposals.proposals_folder(cfg).parent / "manifest.json").write_text('{"kind": "prop')
    with pytest.raises(ConfigError, match=r"manifest.json is damaged: .*the next run makes it again"):
        proposals.run(toy_config(tmp_path, proposals__samples=8))


class OneServer(HFSampler):
    """All samplers of this class draw from the weights that came last, as samplers of one server do."""

    holds: ClassVar[LanguageModel]

    def sync(self, policy: LanguageModel) -> None:
        OneServer.holds = policy

    def sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> Completions:
        self._policy = OneServer.holds
        return super().sample(prompts, params, seeds)


@quick
def test_two_proposals_may_share_a_server(tmp_path: Path) -> None:
    """Each writes from its own weights: `Drawing` compares what a sampler reports with its model's scores."""
    reference = {"share": 1.0, "temperature": 1.2, "top_p": 1.0, "model": None}
    results = []
    for place, sampler in (("own", HFSampler), ("shared", OneServer)):
        cfg = toy_config(tmp_path / place, sampler={"_target_": f"{sampler.__module__}.{sampler.__name__}"})
        OmegaConf.update(cfg, "proposals.models.reference", reference, force_add=True)
        proposals.run(cfg)
        results.append(tokens(read_proposals(proposals.proposals_folder(cfg))))
    assert results[0] == results[1]
