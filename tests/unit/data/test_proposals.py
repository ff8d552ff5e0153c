"""The stage `proposals`: what it writes, how it goes on, and that its estimates are those of enumeration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from distmatch.data import proposal_drawing, proposals
from distmatch.data.proposal_labels import judge, overall_verdict, prompt_labels
from distmatch.data.proposal_records import (
    PromptRecord,
    log_weights,
    read_proposals,
)
from distmatch.data.proposal_settings import plan_shards, sources
from distmatch.metrics import log_z
from distmatch.sampling.base import SamplingParams
from distmatch.settings.errors import ConfigError
from tests.unit.data.toy_model import LIMIT, WORDS, toy_config


def shards(cfg: DictConfig) -> dict[str, str]:
    place = proposals.proposals_folder(cfg).parent / "shards"
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(place.glob("*"))}


def tokens(records: list[PromptRecord]) -> list[list[tuple[int, ...]]]:
    return [[t.ids for t in record.trajectories] for record in records]


def logs(records: list[PromptRecord]) -> torch.Tensor:
    return torch.stack([torch.stack([r.log_ref, r.log_proposal]) for r in records])


quick = pytest.mark.usefixtures("without_report")


# ---- going on ----------------------------------------------------------------------------------------------


@quick
def test_a_killed_run_loses_the_shard_in_work_and_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = toy_config(tmp_path / "whole")
    proposals.run(whole)
    for survivors in range(3):
        cfg = toy_config(tmp_path / f"killed{survivors}")
        with monkeypatch.context() as patch:
            patch.setattr(proposals, "write_shard", killing(survivors))
            with pytest.raises(KeyboardInterrupt):
                proposals.run(cfg)
        names = [name for name in shards(cfg) if name.endswith(".jsonl")]
        assert len(names) == survivors, "the others are kept"
        assert not (proposals.proposals_folder(cfg) / "manifest.json").exists()
        proposals.run(cfg)
        assert {k: v for k, v in shards(cfg).items() if k.endswith(".jsonl")} == shards(whole)


def killing(survivors: int) -> object:
    """A `write_shard` that dies half-way through the shard after so many whole ones."""
    done = []
    real = proposals.write_shard

    def write(base: Path, rows: list[dict[str, object]]) -> Path:
        if len(done) == survivors:
            place = base / "shards"
            place.mkdir(exist_ok=True)
            (place / f"shard-{survivors:05d}.tmp").write_text(json.dumps(rows[0])[:50], encoding="utf-8")
            raise KeyboardInterrupt
        done.append(1)
        return real(base, rows)

    return write


def test_a_repeated_run_draws_nothing_and_gives_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = proposals.run(toy_config(tmp_path))
    monkeypatch.setattr(proposals, "Drawing", None)
    again = proposals.run(toy_config(tmp_path))
    assert again == pytest.approx(first, nan_ok=True)


@quick
@pytest.mark.parametrize(
    "larger", [{"proposals__prompts": 9}, {"proposals__samples": 16}, {"proposals__samples": 7}]
)
def test_extending_gives_what_one_longer_run_gives(tmp_path: Path, larger: dict[str, int]) -> None:
    small = toy_config(tmp_path / "grown")
    proposals.run(small)
    before, kept = read_proposals(proposals.proposals_folder(small)), shards(small)
    grown, whole = toy_config(tmp_path / "grown", **larger), toy_config(tmp_path / "whole", **larger)
    for cfg in (grown, whole):
        proposals.run(cfg)
    assert {name: shards(grown)[name] for name in kept} == kept, "shards are only added"
    one, other = (read_proposals(proposals.proposals_folder(cfg)) for cfg in (grown, whole))
    assert tokens(one) == tokens(other)
    assert torch.allclose(logs(one), logs(other), atol=1e-5)
    assert read_proposals(proposals.proposals_folder(small)) == before, "a smaller result stays what it was"


def test_the_folder_does_not_depend_on_how_much_nor_on_what_for(tmp_path: Path) -> None:
    base = proposals.proposals_folder(toy_config(tmp_path)).parent
    same = {"prompts": 99, "samples": 50, "prompts_per_shard": 9, "beta": 1.0, "partition": "token_mean"}
    for key, value in same.items():
        assert proposals.proposals_folder(toy_config(tmp_path, **{f"proposals__{key}": value})).parent == base
    other = {
        "proposals__seed": 1,
        "data__temperature": 1.0,
        "reward": {"_target_": "distmatch.rewards.Binary"},
        "model__seed": 7,
        "proposals__models__other__temperature": 1.0,
        "proposals__models__other__model__seed": 7,
        "task__seed": 1,
    }
    for key, value in other.items():
        assert proposals.proposals_folder(toy_config(tmp_path, **{key: value})).parent != base, key


@quick
def test_shards_of_other_weights_are_not_extended(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    proposals.run(cfg)
    file = proposals.proposals_folder(cfg).parent / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    manifest["models"]["other"]["weights_hash"] = "0" * 64
    file.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ConfigError, match="models="):
        proposals.run(toy_config(tmp_path, proposals__samples=8))


def test_the_plan_has_what_is_missing_and_nothing_else() -> None:
    assert plan_shards({}, 5, 8, 2) == [([0, 1], 0), ([2, 3], 0), ([4], 0)]
    assert plan_shards({0: 8, 1: 8, 2: 4, 3: 4}, 5, 8, 4) == [([2, 3], 4), ([4], 0)]
    assert plan_shards({0: 8, 1: 4, 2: 8, 3: 4}, 4, 8, 4) == [([1], 4), ([3], 4)]
    assert plan_shards({0: 8}, 1, 8, 4) == []


def test_proposals_take_turns_by_their_shares() -> None:
    assert sources([1, 1], 6) == [0, 1, 0, 1, 0, 1]
    assert sources([3, 1], 8).count(0) == 6
    assert sources([3, 1], 40)[:8] == sources([3, 1], 8), "a prefix stays when N grows"


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proposals__models__other__top_p": 0.9}, "Mix in a proposal with top_p=1"),
        ({"proposals__models__other__share": 0.0}, "share=0.0 must be above 0"),
        ({"proposals__models__other__temperature": 0.0}, "models.other: temperature must be above 0"),
        ({"proposals__betas": [1, "a"]}, "must be numbers of at least 0"),
        ({"proposals__models": {}}, "proposals.models is empty"),
        ({"proposals__samples": 1}, "samples=1 must be at least 2"),
        ({"data__max_prompt_tokens": 13}, "window of 16 tokens"),
        ({"data__max_prompt_tokens": 1}, "over data.max_prompt_tokens=1"),
        ({"proposals__models__other__model__words": [*WORDS[:-1], "1"]}, "another vocabulary"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    cfg = toy_config(tmp_path)
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value, merge=False, force_add=True)
    with pytest.raises(ConfigError, match=message):
        proposals.run(cfg)


def test_a_sampler_that_draws_from_something_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = proposal_drawing.answer_logprobs

    def at_another_temperature(policy, prompt, ids, mask, params, rows):  # type: ignore[no-untyped-def]
        return real(policy, prompt, ids, mask, SamplingParams(1, LIMIT, 2 * params.temperature), rows)

    monkeypatch.setattr(proposal_drawing, "answer_logprobs", at_another_temperature)
    with pytest.raises(RuntimeError, match="nats a token"):
        proposals.run(toy_config(tmp_path))


def test_a_folder_without_proposals_and_an_unknown_partition_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stage=proposals"):
        read_proposals(tmp_path)
    (tmp_path / "manifest.json").write_text('{"kind": "log_z"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="kind 'log_z'"):
        read_proposals(tmp_path)
    with pytest.raises(ConfigError, match="Did you mean token_mean"):
        log_weights(PromptRecord(0, "train", 0, "x", (1,), ()), 1.0, "token_means")  # type: ignore[arg-type]


# ---- verdicts and what is left behind ----------------------------------------------------------------------


def weights(spread: float, count: int = 256) -> torch.Tensor:
    return spread * torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_verdicts_tell_the_causes_apart() -> None:
    even, wild = weights(0.3), weights(5.0)
    assert judge(even, even) == "usable"
    assert judge(even, wild) == "usable", "a strong proposal need not look like the reference"
    assert judge(wild, wild) == "weak proposal"
    assert judge(wild, even) == "tilt too strong"
    assert judge(even[:16], even[:16]) == "weak proposal", "sixteen samples are not enough of anything"


@quick
def test_a_weak_proposal_and_a_strong_tilt_are_called_so(tmp_path: Path) -> None:
    cold = {"proposals__models__other__temperature": 0.15, "proposals__samples": 64}
    cfg = toy_config(tmp_path, **cold)
    proposals.run(cfg)
    made = prompt_labels(read_proposals(proposals.proposals_folder(cfg)), 3.0, "sequence")
    assert overall_verdict(made)[0] == "weak proposal"
    assert sum(label.coverage for label in made) / len(made) < 0.7
    same = {"share": 1.0, "temperature": 1.2, "top_p": 1.0, "model": None}
    cfg = toy_config(tmp_path, proposals__models__other=same, proposals__samples=256)
    cfg.task.update({"length": 1, "near": 0})  # one good answer that the reference writes once in some sixty
    proposals.run(cfg)
    records = read_proposals(proposals.proposals_folder(cfg))
    assert overall_verdict(prompt_labels(records, 0.0, "sequence"))[0] == "usable"
    verdict, sentence = overall_verdict(prompt_labels(records, 60.0, "sequence"))
    assert verdict == "tilt too strong" and "lower beta" in sentence


def test_a_run_leaves_diagnostics_picture_and_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = toy_config(tmp_path, proposals__partition="token_mean_fixed_point", proposals__samples=32)
    figures = proposals.run(cfg)
    run = tmp_path / "run"
    content = json.loads((run / "diagnostics.json").read_text(encoding="utf-8"))
    assert "token_mean_fixed_point" in content["title"] and "beta = 3" in content["title"]
    assert content["title"] in capsys.readouterr().out.replace("\n", " ")
    assert len(content["prompts"]) == 5 and [row["beta"] for row in content["scan"]] == [0, 3, 9]
    assert [row["samples"] for row in content["variance_against_samples"]] == [4, 8, 16, 32]
    assert (run / "diagnostics.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events*"))
    assert figures["proposals/usable"] == content["overall"]["usable"]
    file = proposals.proposals_folder(cfg) / "labels-3-token_mean_fixed_point.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    (again, *_) = prompt_labels(read_proposals(file.parent), 3.0, "token_mean_fixed_point")
    assert rows[0]["log_z"] == again.log_z and rows[0]["prompt_ids"] == list(again.prompt_ids)


def test_the_scan_and_the_label_are_of_the_same_weights(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path, proposals__samples=32)
    proposals.run(cfg)
    content = json.loads((tmp_path / "run" / "diagnostics.json").read_text(encoding="utf-8"))
    at_three = next(row for row in content["scan"] if row["beta"] == 3)
    records = read_proposals(proposals.proposals_folder(cfg))
    shares = [float(log_z.effective_sample_size(log_weights(r, 3.0, "sequence"))) / 32 for r in records]
    assert at_three["ess_share"] == pytest.approx(sorted(shares)[2])
