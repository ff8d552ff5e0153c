"""LogZWatch against enumeration: it finds shifted labels within five iterations, and accuses no others."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from distmatch.batch import RolloutBatch
from distmatch.callbacks.log_z_watch import LogZWatch, Tally, judge
from distmatch.losses.anchor import RegressorLogZ, load_anchor, save_anchor
from distmatch.losses.balance import BalanceLoss
from distmatch.losses.log_z import GroupMeanLogZ
from distmatch.settings.manifest import MANIFEST
from distmatch.study.exact import exact_target, kl, log_partition
from distmatch.study.language import Landscape
from distmatch.study.tabular import TabularPolicy, tabular_batch
from distmatch.tasks.lab import Lab
from tests.anchors import anchor_folder

BETA, GROUPS, GROUP_SIZE = 5.0, 32, 8


@dataclass
class Bench:
    """1,024 strings; a reference, a policy somewhere on the way to the target, and an anchor.

    Args:
        folder: For the anchor.
        shift: Nats by which labels, and with them the anchor, are off.
        offset: Nats by which the anchor means another log Z than that of token sums, as token means do.
        progress: 0 for the reference, 1 for the target.
    """

    folder: Path
    shift: float = 0.0
    offset: float = 0.0
    progress: float = 0.0
    logged: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.landscape = Landscape.of(Lab())
        self.reference = TabularPolicy(4, 5, seed=1)
        self.log_ref = self.reference.logprobs().detach()
        rewards = self.landscape.rewards
        self.log_z = float(log_partition(self.log_ref, rewards, BETA))
        self.target = exact_target(self.log_ref, rewards, BETA)
        log_pi = ((1 - self.progress) * self.log_ref + self.progress * self.target).log_softmax(dim=0)
        self.log_pi = log_pi
        self.g = self.log_z + self.offset + self.shift
        self.loss = BalanceLoss(RegressorLogZ(str(self._anchor())), BETA, False, "raw", "none")

    def _anchor(self) -> Path:
        """A regressor that says g for every prompt, and what enumeration gives for such labels."""
        anchor = load_anchor(anchor_folder(self.folder / "anchor", 1, BETA, length_normalize=False))
        anchor.regressor.layers[-1].weight.zero_()
        anchor.regressor.layers[-1].bias.zero_()
        anchor.regressor.label_mean.fill_(self.g)
        x = (
            BETA * self.landscape.rewards - (self.g - self.shift)
        ).exp()  # rewards of the labels are shifted too
        mean, p = math.exp(-self.offset), self.log_ref.exp()
        within = float((p * x.square()).sum()) - mean**2
        watch = {"ratio": mean, "ratio_error": 0.02 * mean, "between": 0.0, "within": within}
        labels = torch.full((32,), self.g)
        manifest = json.loads((anchor.folder / MANIFEST).read_text()) | {"watch": watch}
        save_anchor(anchor.folder, anchor.regressor, anchor.features, labels, manifest)
        return anchor.folder

    def rollouts(self, seed: int) -> RolloutBatch:
        rng = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(self.log_pi.exp(), GROUPS * GROUP_SIZE, replacement=True, generator=rng)
        reference = self.reference.token_logprobs(drawn).detach()
        # Sums over tokens are all that counts, so the policy's may lie on any of them.
        policy = reference + ((self.log_pi - self.log_ref)[drawn] / 5)[:, None]
        return tabular_batch(drawn, GROUP_SIZE, self.landscape, policy, reference)

    def look(self, watch: LogZWatch, iteration: int, seed: int) -> None:
        """One iteration of a run, as the callback sees it."""
        data = SimpleNamespace(train_dataloader=lambda: SimpleNamespace(dataset=[self.rollouts(seed)]))
        strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)
        trainer = SimpleNamespace(
            datamodule=data, strategy=strategy, current_epoch=iteration, is_global_zero=True
        )
        module = SimpleNamespace(
            loss=self.loss, device=torch.device("cpu"), log=lambda k, v, **_: self.logged.update({k: v})
        )
        watch.on_train_epoch_start(trainer, module)


def watch() -> LogZWatch:
    return LogZWatch(console=Console(quiet=True))


def after(bench: Bench, iterations: int = 5, seed: int = 0) -> LogZWatch:
    found = watch()
    for iteration in range(iterations):
        bench.look(found, iteration, 100 * seed + iteration)
    return found


@pytest.mark.parametrize("progress", [0.0, 0.3])
@pytest.mark.parametrize("offset", [0.0, 1.3, -2.5])
@pytest.mark.parametrize(("shift", "word"), [(2.0, "above"), (-2.0, "below")])
def test_shifted_labels_are_found_within_five_iterations(
    tmp_path: Path, shift: float, word: str, offset: float, progress: float
) -> None:
    bench = Bench(tmp_path, shift, offset, progress)
    found = after(bench)
    assert f"nats {word} what" in found.finding
    assert str(tmp_path / "anchor") in found.finding
    assert bench.logged["log_z/anchor_minus_onpolicy"] == pytest.approx(shift, abs=0.5)


@pytest.mark.parametrize("offset", [0.0, 1.3, -2.5])
@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_right_labels_are_never_accused(tmp_path: Path, offset: float, progress: float) -> None:
    bench = Bench(tmp_path, 0.0, offset, progress)
    for seed in range(20):
        assert after(bench, seed=seed).finding == ""
    assert abs(bench.logged["log_z/anchor_minus_onpolicy"]) < 0.3


def test_the_target_has_no_spread_at_all(tmp_path: Path) -> None:
    """Under the target itself x is 1 for every answer: the estimate is exact."""
    bench = Bench(tmp_path, progress=1.0)
    bench.look(watch(), 0, 0)
    assert bench.logged["log_z/anchor_minus_onpolicy"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(("progress", "shift"), [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (0.5, -2.0)])
def test_the_residual_is_the_divergence_from_the_target(
    tmp_path: Path, progress: float, shift: float
) -> None:
    bench = Bench(tmp_path, shift, progress=progress)
    values = []
    for seed in range(20):
        bench.look(watch(), 0, seed)
        values.append(bench.logged["log_z/residual"])
    expected = float(kl(bench.log_pi, bench.target)) + shift
    assert sum(values) / 20 == pytest.approx(expected, abs=0.12)
    if progress == 0:  # at the start, KL(pi_ref||target) = log Z - beta E r
        mean = float((bench.log_ref.exp() * bench.landscape.rewards).sum())
        assert expected == pytest.approx(bench.log_z - BETA * mean)


def test_it_says_so_where_it_cannot_tell() -> None:
    expected = {"ratio": 1.0, "ratio_error": 0.1, "between": 0.0, "within": 500.0}
    seen = Tally(prompts=160, total=160 * 0.3, squares=160 * 0.2, answers=8)
    assert judge(seen, expected, "f", last=False) == ""
    assert "could not be judged from 160 prompts" in judge(seen, expected, "f", last=True)
    overflown = {"ratio": math.inf, "ratio_error": math.nan, "between": math.nan, "within": math.nan}
    assert "could not be judged from 160 prompts" in judge(seen, overflown, "f", last=True)
    vanished = {"ratio": 0.0, "ratio_error": 0.0, "between": 0.0, "within": 0.0}
    assert "above" not in judge(Tally(160, 0.0, 0.0, 8), vanished, "f", last=False)


def test_a_manifest_without_figures_accuses_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loss.log_z.anchor.manifest["watch"] = dict.fromkeys(("ratio", "ratio_error", "between", "within"))
    assert "could not be judged" in after(bench).finding
    assert math.isnan(bench.logged["log_z/anchor_minus_onpolicy"])


def test_errors_by_hand() -> None:
    """Two prompts with means 1 and 3 from 4 answers each, the proposals' figures smaller or larger."""
    seen = Tally(prompts=2, total=4, squares=10, answers=4)
    small = {"ratio": 2.0, "ratio_error": 0.5, "between": 0.2, "within": 0.8}
    assert seen.error(small) == pytest.approx(math.sqrt(max(0.2 / 2 + 0.8 / 8, 1 / 1) + 0.25))
    large = small | {"between": 6.0}
    assert seen.error(large) == pytest.approx(math.sqrt(3 + 0.1 + 0.25))
    assert Tally.over([seen, Tally(6, 3, 2, 8)]) == Tally(8, 7, 12, 7)


def test_a_resumed_run_says_the_same(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    straight = after(bench, 3)
    first = dict(bench.logged)
    other = after(bench, 2)
    resumed = watch()
    resumed.load_state_dict(json.loads(json.dumps(other.state_dict())))
    bench.look(resumed, 2, 2)
    assert bench.logged == first
    assert resumed.state_dict() == straight.state_dict()


def test_other_losses_are_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loss = BalanceLoss(GroupMeanLogZ(), BETA, False, "raw", "none")
    assert after(bench, 1).finding == ""
    assert bench.logged == {}
