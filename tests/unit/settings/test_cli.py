"""The command itself, and the processes of one run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from distmatch.settings import ConfigError, main
from distmatch.settings.cli import CONFIG_VARIABLE, combinations, load_config

ROOT = Path(__file__).parents[3]


def test_children_take_the_parents_config_and_create_nothing(tree):
    cfg = load_config(tree, ["seed=3"])
    before = sorted(Path("logs").rglob("*"))
    child = load_config(tree, ["seed=4"], {CONFIG_VARIABLE: os.environ[CONFIG_VARIABLE], "LOCAL_RANK": "1"})
    assert child == cfg
    assert sorted(Path("logs").rglob("*")) == before


def test_a_stray_variable_does_not_turn_a_first_process_into_a_child(tree):
    first = load_config(tree, ["seed=3"])
    second = load_config(tree, ["seed=4"], {CONFIG_VARIABLE: os.environ[CONFIG_VARIABLE]})
    assert (first.seed, second.seed) == (3, 4)


def test_an_outside_launcher_needs_a_common_folder(tree):
    launcher = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    with pytest.raises(ConfigError, match=r"paths.run_dir must be given"):
        load_config(tree, [], launcher)
    cfg = load_config(tree, ["paths.run_dir=shared"], launcher)
    assert cfg.paths.run_dir == "shared"
    assert not Path("shared").exists()


def test_an_error_is_one_line_and_status_2(tree, capsys):
    def never(cfg):
        raise AssertionError("started")

    assert main(tree.folder / "train.yaml", never, "usage", ["algo=dmpoo"]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("error: algo=dmpoo")
    assert "Traceback" not in out.err
    assert main(tree.folder / "train.yaml", never, "usage", ["--hlep"]) == 2
    assert "Did you mean --help?" in capsys.readouterr().err


def test_a_broken_yaml_file_is_named(tree, capsys):
    (tree.folder / "algo" / "grpo.yaml").write_text("clip_low: [1\n")
    assert main(tree.folder / "train.yaml", print, "usage", ["algo=grpo"]) == 2
    assert "grpo.yaml" in capsys.readouterr().err


def test_other_errors_pass(tree):
    def broken(cfg):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main(tree.folder / "train.yaml", broken, "usage", [])


def test_a_value_that_a_constructor_refuses_is_an_error_of_the_settings(tree, capsys):
    def build(cfg):
        instantiate({"algo": {"base": {"_target_": "builtins.int", "_args_": [cfg.choices.algo]}}})

    assert main(tree.folder / "train.yaml", build, "usage", []) == 2
    assert capsys.readouterr().err.startswith("error: algo.base: invalid literal for int()")

    def broken(cfg):
        instantiate({"_target_": "operator.truediv", "_args_": [1, 0]})

    with pytest.raises(InstantiationException):
        main(tree.folder / "train.yaml", broken, "usage", [])


class MisconfigurationException(Exception):
    """Bears the name of Lightning's."""


def test_a_constructor_that_does_not_take_a_value_is_an_error_of_the_settings(tree, capsys):
    def build(cfg):
        instantiate({"trainer": {"_target_": "builtins.len", "_args_": [3]}})

    assert main(tree.folder / "train.yaml", build, "usage", []) == 2
    assert "error: trainer: object of type 'int' has no len()" in capsys.readouterr().err

    def misconfigure(cfg):
        raise InstantiationException("full_key: trainer") from MisconfigurationException("no such strategy")

    assert main(tree.folder / "train.yaml", misconfigure, "usage", []) == 2
    assert capsys.readouterr().err == "error: trainer: no such strategy\n"


def refuse(cfg):
    (Path(cfg.paths.run_dir) / "tensorboard").mkdir()
    (Path(cfg.paths.run_dir) / "tensorboard" / "events.out.tfevents.1").touch()
    raise ConfigError("no")


def test_a_failed_build_leaves_no_folder(tree, tmp_path):
    assert main(tree.folder / "train.yaml", refuse, "", ["paths.run_dir=here"]) == 2
    assert not Path("here").exists()
    assert main(tree.folder / "train.yaml", refuse, "", []) == 2
    assert not list(Path("logs").glob("train/*/*"))


def test_a_folder_that_was_there_or_holds_more_stays(tree):
    def refuse_late(cfg):
        (Path(cfg.paths.run_dir) / "metrics.csv").touch()
        raise ConfigError("no")

    Path("mine").mkdir()
    assert main(tree.folder / "train.yaml", refuse, "", ["paths.run_dir=mine"]) == 2
    assert Path("mine/config.yaml").exists()
    assert main(tree.folder / "train.yaml", refuse_late, "", ["paths.run_dir=here"]) == 2
    assert Path("here/config.yaml").exists()
    assert main(tree.folder / "train.yaml", print, "", ["paths.run_dir=here"]) == 0


def test_a_resume_that_fails_leaves_the_files_as_they_were(tree, capsys):
    def fail(cfg):
        assert OmegaConf.load("here/config.yaml").trainer.max_epochs == 1  # what child processes read
        raise ConfigError("too few")

    assert main(tree.folder / "train.yaml", print, "", ["paths.run_dir=here"]) == 0
    Path("here/checkpoints").mkdir()
    Path("here/checkpoints/last.ckpt").touch()
    before = {file: file.read_bytes() for file in Path("here").glob("*.yaml")}
    assert main(tree.folder / "train.yaml", fail, "", ["resume=here", "trainer.max_epochs=1"]) == 2
    assert {file: file.read_bytes() for file in Path("here").glob("*.yaml")} == before
    assert main(tree.folder / "train.yaml", print, "", ["resume=here", "trainer.max_epochs=1"]) == 0
    assert OmegaConf.load("here/config.yaml").trainer.max_epochs == 1


def test_help_lists_groups_and_options(tree, capsys):
    assert main(tree.folder / "train.yaml", print, "How to use it", ["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("How to use it", "dmpo, grpo", "none, tensorboard, wandb", "smoke", "--multirun" and "-m "):
        assert word in text


def test_help_shows_a_group_without_a_default(tree, capsys):
    file = tree.folder / "train.yaml"
    file.write_text(file.read_text().replace("- algo: dmpo ", "- algo: ??? "))
    assert main(file, print, "How to use it", ["--help"]) == 0
    assert "algo       [required] dmpo, grpo" in capsys.readouterr().out
    assert main(file, print, "", ["--cfg", "job"]) == 2
    assert "algo" in capsys.readouterr().err


def test_cfg_prints_the_config_and_creates_nothing(tree, capsys, tmp_path):
    assert main(tree.folder / "train.yaml", print, "", ["--cfg", "job", "algo=grpo"]) == 0
    cfg = OmegaConf.create(capsys.readouterr().out)
    assert cfg.choices.algo == "grpo"
    assert not (tmp_path / "logs").exists()


def test_options_of_ones_own_folder(tree, tmp_path, capsys):
    (tmp_path / "mine" / "algo").mkdir(parents=True)
    (tmp_path / "mine" / "algo" / "my_loss.yaml").write_text("_target_: fake_parts.GRPO\n")
    seen = []
    arguments = [f"--config-dir={tmp_path / 'mine'}", "algo=my_loss"]
    assert main(tree.folder / "train.yaml", seen.append, "", arguments) == 0
    assert seen[0].algo._target_ == "fake_parts.GRPO"
    assert main(tree.folder / "train.yaml", seen.append, "", ["--config-dir=gone"]) == 2


def test_combinations_vary_the_last_fastest():
    assert combinations(["a=1,2", "b=x", "c=range(3,5)"]) == [
        ["a=1", "b=x", "c=3"],
        ["a=1", "b=x", "c=4"],
        ["a=2", "b=x", "c=3"],
        ["a=2", "b=x", "c=4"],
    ]


SCRIPT = """
import sys
from pathlib import Path
from distmatch.settings import main

def run(cfg):
    assert "torch" not in sys.modules
    if cfg.seed == 2:
        raise SystemExit(7)
    (Path(cfg.paths.run_dir) / "done").write_text(str(cfg.seed))

sys.exit(main(Path("configs/train.yaml"), run, "usage"))
"""


def test_several_runs_each_get_a_process_and_a_folder(tree, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)])}
    command = [sys.executable, "script.py", "-m", "seed=1,2,3", "algo=grpo"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "1 of 3 runs failed: seed=2 algo=grpo (exit status 7)" in done.stderr
    assert sorted(path.read_text() for path in tmp_path.glob("logs/train/grpo-np_tiny/*/done")) == ["1", "3"]
    assert len(list(tmp_path.glob("logs/train/grpo-np_tiny/*"))) == 3


def test_a_wrong_combination_stops_all_before_the_first(tree, tmp_path, capsys):
    arguments = ["-m", "data.group_size=4,1"]
    assert main(tree.folder / "train.yaml", print, "", arguments) == 2
    assert "data.group_size=1" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
