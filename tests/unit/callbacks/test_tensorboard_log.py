"""What lands in event files: read back with TensorBoard's own reader."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from distmatch.callbacks.tensorboard_log import FiniteTensorBoardLogger, TensorBoardLog, flat_settings
from tests.unit.callbacks.staged import StagedData, StagedModule, StagedRollouts, staged_trainer

FIGURES = {"train/loss": 0.5, "train/bad": float("nan"), "val/success_rate": 0.7, "val/tsp/success_rate": 0.6}
SETTINGS = {
    "seed": 3,
    "algo": {"weight": 2.0, "base": {"clip_low": 0.2}},
    "betas": [0.9, 0.99],
    "resume": None,
}
TASKS = ("tsp", "knapsack", "graph_coloring", "maximum_clique")


def make_logger(folder: Path, **more: int) -> FiniteTensorBoardLogger:
    return FiniteTensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False, **more)


@pytest.fixture(scope="module")
def run(np_tiny: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations with evaluations before, after the second, and after training."""
    folder = tmp_path_factory.mktemp("run")
    log, module, data = (
        TensorBoardLog(every_n_iterations=2, max_completions=3),
        StagedModule([FIGURES]),
        StagedData(np_tiny),
    )
    trainer = staged_trainer(folder, [StagedRollouts(np_tiny), log], 3, [make_logger(folder)], every=2)
    trainer.validate(module, datamodule=data, verbose=False)
    trainer.fit(module, datamodule=data)
    final = trainer.validate(module, datamodule=data, verbose=False)[0]
    log.log_final(trainer, SETTINGS, final | {"val/success_rate_low": 0.1})
    return folder / "tensorboard"


@pytest.fixture(scope="module")
def events(run: Path) -> EventAccumulator:
    return EventAccumulator(
        str(run), size_guidance={"tensors": 0, "images": 0, "histograms": 0, "scalars": 0}
    ).Reload()


def text(events: EventAccumulator, tag: str, number: int = 0) -> str:
    return events.Tensors(f"{tag}/text_summary")[number].tensor_proto.string_val[0].decode()


def test_completions_are_text_grouped_by_prompt(events: EventAccumulator) -> None:
    for task in TASKS:
        assert [e.step for e in events.Tensors(f"completions/train/{task}/text_summary")] == [1, 3]
        assert [e.step for e in events.Tensors(f"completions/val/{task}/text_summary")] == [0, 2, 3]
    shown = text(events, "completions/train/knapsack")
    assert "knapsack-tiny-train-s0-0" in shown
    assert "reference value" in shown
    assert "| 1 | 1.100 | yes |" in shown
    assert shown.index("| 1 |") < shown.index("| 3 |")
    assert "| 4 |" not in shown  # max_completions
    assert "empty set" in shown or "no 'Answer:'" in shown


def test_whatever_a_model_writes_stays_inside_its_block(events: EventAccumulator) -> None:
    """The staged nonsense holds HTML, a pipe and a fence."""
    shown = next(t for task in TASKS if "really" in (t := text(events, f"completions/val/{task}")))
    assert "~~~~\nI give up | <b>really</b>\n~~~\nAnswer: []\n~~~~" in shown


def test_long_texts_are_cut_in_the_middle() -> None:
    cut = TensorBoardLog(max_characters=10)._fenced("a" * 100 + "z")
    assert cut == "~~~\naaaaa\n[... 91 characters ...]\naaaaz\n~~~"


def test_solutions_are_pictures(events: EventAccumulator) -> None:
    for task in TASKS:
        images = events.Images(f"solutions/val/{task}")
        assert [e.step for e in images] == [0, 2, 3]
        assert min(images[0].width, images[0].height) > 200
        assert images[0].encoded_image_string.startswith(b"\x89PNG")


def test_histograms_of_every_iteration(events: EventAccumulator) -> None:
    for tag in ("distribution/reward", "distribution/length"):
        found = events.Histograms(tag)
        assert [e.step for e in found] == [1, 2, 3]
        assert found[0].histogram_value.num == 16


def test_scalars_have_optimizer_steps_and_no_nan(events: EventAccumulator) -> None:
    assert "train/bad" not in events.Tags()["scalars"]
    steps = [e.step for e in events.Scalars("train/loss")]
    assert steps == sorted(set(steps))
    assert len(steps) == 3
    dropped = [e.value for e in events.Scalars("log/dropped_scalars")]
    assert dropped[-1] == 3


def test_settings_and_final_figures_are_one_session_of_the_same_run(
    run: Path, events: EventAccumulator
) -> None:
    assert not [path for path in run.iterdir() if path.is_dir()]
    assert events.Scalars("final/success_rate")[0].value == pytest.approx(0.7)
    assert "final/success_rate_low" not in events.Tags()["scalars"]
    assert "final/tsp/success_rate" not in events.Tags()["scalars"]
    assert "hp_metric" not in events.Tags()["scalars"]
    data = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(content)
        for tag, content in events.PluginTagToContent("hparams").items()
    }
    given = data["_hparams_/session_start_info"].session_start_info.hparams
    assert given["algo.weight"].number_value == 2.0
    assert given["algo.base.clip_low"].number_value == pytest.approx(0.2)
    assert given["betas"].string_value == "[0.9, 0.99]"
    assert "resume" not in given
    names = [m.name.tag for m in data["_hparams_/experiment"].experiment.metric_infos]
    assert names == ["final/success_rate"]
    assert "_hparams_/session_end_info" in data


class Kill(Exception):
    """Ends a run where SIGKILL could."""


class SavesAndDies(Checkpoint):
    """Writes checkpoints as the real one does, last of all callbacks, and dies right after one of them."""

    def __init__(self, folder: Path, deadly: int = 1) -> None:
        self._folder, self._deadly, self.seen = folder, deadly, {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(self._folder / "last.ckpt")
        if trainer.current_epoch == self._deadly:
            self.seen = scalars(self._folder)  # what is on the disk, before anything is closed
            raise Kill


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every point, by tag, without what depends on the clock."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("time/")]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


SCRIPT = [{"train/loss": 0.5, "train/rare": 1.0}, {"train/loss": 0.25}, {"train/loss": 0.125}]


def test_a_kill_between_checkpoint_and_logging_loses_no_point_and_doubles_none(
    np_tiny: object, tmp_path: Path
) -> None:
    """Lightning logs an iteration's scalars after its checkpoint."""

    def fit(folder: Path, deadly: int, ckpt: Path | None = None, **more: int) -> SavesAndDies:
        saver = SavesAndDies(folder, deadly)
        callbacks = [StagedRollouts(np_tiny), TensorBoardLog(), saver]
        trainer = staged_trainer(folder, callbacks, 3, [make_logger(folder, **more)], every=2)
        with nullcontext() if deadly < 0 else pytest.raises(Kill):
            trainer.fit(StagedModule(SCRIPT), datamodule=StagedData(np_tiny), ckpt_path=ckpt)
        return saver

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    fit(whole, -1)
    assert fit(killed, 1).seen["train/loss"] == [(1, 0.5), (2, 0.25)]
    fit(killed, -1, killed / "last.ckpt", purge_step=3)
    assert scalars(killed) == scalars(whole)
    assert scalars(whole)["train/loss"] == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert scalars(whole)["train/rare"] == [(1, 1.0)]  # an old value is no point of a later step


def test_without_tensorboard_nothing_happens(np_tiny: object, tmp_path: Path) -> None:
    log = TensorBoardLog(every_n_iterations=1)
    trainer = staged_trainer(tmp_path, [StagedRollouts(np_tiny), log], 1)
    trainer.fit(StagedModule([FIGURES]), datamodule=StagedData(np_tiny))
    log.log_final(trainer, SETTINGS, FIGURES)
    assert not list(tmp_path.rglob("events*"))


def test_settings_are_named_as_on_the_command_line() -> None:
    assert flat_settings(SETTINGS) == {
        "seed": 3,
        "algo.weight": 2.0,
        "algo.base.clip_low": 0.2,
        "betas": "[0.9, 0.99]",
    }
