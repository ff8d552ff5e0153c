"""Every picture of log Z says which partition function and which beta it is of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from distmatch.data.proposal_labels import PromptLabel, prompt_labels
from distmatch.data.proposal_records import PARTITIONS, Partition, PromptRecord, Trajectory, read_manifest
from distmatch.data.proposals import proposals_folder, run
from distmatch.study.calibration import MEANINGS, Fitted, draw_calibration
from tests.unit.data.toy_model import toy_config

EVERY = pytest.mark.parametrize("partition", PARTITIONS)


def made(partition: Partition, prompts: int = 6) -> list[PromptLabel]:
    rng = torch.Generator().manual_seed(0)
    records = []
    for index in range(prompts):
        drawn = torch.rand(32, 3, generator=rng).tolist()
        rows = (Trajectory((1,) * 4, True, -a, (-b,), c, 4, "", 0) for a, b, c in drawn)
        records.append(PromptRecord(index, "train", index, str(index), (1,), tuple(rows)))
    return prompt_labels(records, 7.5, partition)


@EVERY
def test_the_calibration(partition: Partition) -> None:
    labels = made(partition)
    groups = [
        Fitted(name, [x.log_z for x in part], part) for name, part in (("a", labels[:3]), ("b", labels[3:]))
    ]
    title = draw_calibration(groups, 7.5, partition, 0.5).axes[0].get_title()
    assert f"({partition}: {MEANINGS[partition]})" in title and "beta = 7.5" in title


@EVERY
def test_the_diagnostics(partition: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is not always of the default; and the manifest's proposals hold for any partition."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    cfg = toy_config(tmp_path, proposals__partition=partition)
    run(cfg)
    (figure,) = drawn
    assert f"partition function {partition}, beta = 3" in figure.get_suptitle()
    assert "partition" not in read_manifest(proposals_folder(cfg))
