"""Run folders, and runs that are taken up again."""

import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from distmatch.settings import ConfigError, lock
from distmatch.settings.cli import CONFIG_VARIABLE, load_config
from distmatch.settings.compose import compose
from distmatch.settings.folder import OVERRIDES_FILE, run_folder, safe_name

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "text", ["a/b:c", "x[1,2]", "  ", "..", "con trol\n", "ü" * 300, "a" * 300, 'a,b=c*?<>|"']
)
def test_names_are_safe_on_every_file_system(text):
    name = safe_name(text)
    assert 0 < len(name) <= 60
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert name.strip(".-") == name


def test_long_names_stay_different():
    assert safe_name("a" * 300) != safe_name("a" * 301)


def test_the_folder_is_short_whatever_is_overridden(tree):
    cfg = compose(tree, ["model.path='a/b:c'", "+data.lengths=[1,2]", "seed=4294967295"])
    path = run_folder(cfg, datetime(2030, 1, 2, 3, 4, 5)).as_posix()
    assert path == "logs/train/dmpo-np_tiny/2030-01-02_03-04-05-seed4294967295"
    assert len(path) < 120


def test_another_stage_has_a_folder_of_its_own(tree):
    cfg = compose(tree, ["stage=warm_start"])
    assert run_folder(cfg, datetime(2030, 1, 2)).parent.name == "warm_start-np_tiny"


def test_a_run_folder_holds_config_and_overrides(tree, monkeypatch):
    overrides = ["algo=grpo", "model.path='a/b:c'"]
    cfg = load_config(tree, overrides)
    folder = Path(cfg.paths.run_dir)
    assert yaml.safe_load((folder / OVERRIDES_FILE).read_text()) == overrides
    stored = OmegaConf.load(folder / "config.yaml")
    assert stored.model.path == "a/b:c"
    assert stored.logger.tensorboard.save_dir == cfg.paths.run_dir
    assert Path(os.environ[CONFIG_VARIABLE]) == (folder / "config.yaml").resolve()


def test_two_runs_in_one_second_get_two_folders(tree):
    assert len({load_config(tree, []).paths.run_dir for _ in range(3)}) == 3


@pytest.mark.parametrize("left", ["checkpoints/last.ckpt", "metrics.json"])
def test_a_folder_with_a_run_in_it_is_not_overwritten(tree, left):
    load_config(tree, ["paths.run_dir=here"])
    load_config(tree, ["paths.run_dir=here", "seed=2"])  # nothing came of the first one
    assert OmegaConf.load("here/config.yaml").seed == 2
    Path("here", left).parent.mkdir(exist_ok=True)
    Path("here", left).touch()
    with pytest.raises(ConfigError, match="holds a run already; continue it with resume=here"):
        load_config(tree, ["paths.run_dir=here"])


def test_a_place_that_cannot_be_written_is_named(tree, tmp_path):
    (tmp_path / "taken").write_text("a file, so no folder can be made below it, not even by root")
    for key in ("paths.log_dir", "paths.run_dir"):
        with pytest.raises(ConfigError, match=f"{key}=taken/logs: cannot write"):
            load_config(tree, [f"{key}=taken/logs"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_named(tree, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(ConfigError, match=r"paths.log_dir=locked: cannot write"):
        load_config(tree, ["paths.log_dir=locked"])


def test_nothing_is_created_for_a_wrong_setting(tree, tmp_path):
    with pytest.raises(ConfigError):
        load_config(tree, ["trainer.max_epochs=0"])
    assert not (tmp_path / "logs").exists()


@pytest.fixture
def finished(tree):
    folder = Path(load_config(tree, ["seed=3"]).paths.run_dir)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").touch()
    return folder


def test_resume_takes_the_runs_config_and_folder(tree, finished):
    cfg = load_config(tree, [f"resume={finished}", "trainer.max_epochs=99"])
    assert (cfg.seed, cfg.trainer.max_epochs) == (3, 99)
    assert cfg.resume == cfg.paths.run_dir == finished.as_posix()
    assert OmegaConf.load(finished / "config.yaml") == cfg
    assert yaml.safe_load((finished / OVERRIDES_FILE).read_text()) == ["seed=3", "trainer.max_epochs=99"]


def test_a_moved_run_is_resumed_where_it_lies(tree, finished, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.move(finished, moved)
    cfg = load_config(tree, [f"resume={moved}"])
    assert cfg.logger.tensorboard.save_dir == cfg.trainer.default_root_dir == moved.as_posix()


@pytest.mark.parametrize("override", ["seed=4", "algo=grpo", "+algo.temperature=2", "data.group_size=8"])
def test_resume_refuses_other_settings(tree, finished, override):
    with pytest.raises(ConfigError) as caught:
        load_config(tree, [f"resume={finished}", override])
    assert override in str(caught.value)
    assert "trainer.max_epochs" in str(caught.value)


def test_resume_without_a_run_or_a_checkpoint(tree, finished, tmp_path):
    with pytest.raises(ConfigError, match="resume=gone: there is no such folder"):
        load_config(tree, ["resume=gone"])
    (finished / "checkpoints" / "last.ckpt").unlink()
    with pytest.raises(ConfigError, match="has no checkpoint"):
        load_config(tree, [f"resume={finished}"])
    (finished / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"has no config\.yaml"):
        load_config(tree, [f"resume={finished}"])


def test_resume_checks_the_changed_value(tree, finished):
    with pytest.raises(ConfigError, match=r"trainer.max_epochs=0"):
        load_config(tree, [f"resume={finished}", "trainer.max_epochs=0"])


@pytest.mark.parametrize("name", ["a=b", "a,b", "ünï cødé", "a[1]{x}", "lr=1e-3,seed=2", "it's"])
def test_resume_takes_any_path(tree, finished, name):
    shutil.move(finished, name)
    cfg = load_config(tree, [f"resume={name}", "trainer.max_epochs=7"])
    assert (cfg.paths.run_dir, cfg.resume, cfg.trainer.max_epochs) == (name, name, 7)
    assert yaml.safe_load(Path(name, OVERRIDES_FILE).read_text()) == ["seed=3", "trainer.max_epochs=7"]


def test_resume_is_given_once(tree, finished):
    with pytest.raises(ConfigError, match="given 2 times"):
        load_config(tree, [f"resume={finished}", "resume=b"])
    with pytest.raises(ConfigError, match="must be followed by the folder"):
        load_config(tree, ["resume="])
    assert load_config(tree, ["resume=null"]).resume is None


@pytest.mark.parametrize(
    "content", [b"", b"paths:\n", b"[1]", b"a: [", b"\xff\xfe\x00", b"seed: 1\n", b"word"]
)
def test_a_damaged_config_is_named(tree, finished, content):
    (finished / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load_config(tree, [f"resume={finished}"])


def test_a_config_cut_short_is_named(tree, finished):
    whole = (finished / "config.yaml").read_bytes()
    for end in range(0, whole.index(b"\ntrainer:") + 1, 97):
        (finished / "config.yaml").write_bytes(whole[:end])
        with pytest.raises(ConfigError):
            load_config(tree, [f"resume={finished}"])


def test_an_error_without_a_file_names_the_folder(tree, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distmatch.settings.folder.write_config", full)
    with pytest.raises(ConfigError, match="cannot write here: No space left on device"):
        load_config(tree, ["paths.run_dir=here"])


HOLD = """
import sys
from pathlib import Path
from distmatch.settings import lock
lock.hold(Path(sys.argv[1]), "here")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_in_use_is_refused(tree, finished):
    lock.release()
    command = [sys.executable, "-c", HOLD, str(finished)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        before = (finished / "config.yaml").read_text()
        for override in (f"resume={finished}", f"paths.run_dir={finished}"):
            with pytest.raises(ConfigError, match=f"{override}: another process is using this folder"):
                load_config(tree, [override])
        assert (finished / "config.yaml").read_text() == before
        other.stdin.close()
    assert load_config(tree, [f"resume={finished}"]).seed == 3


def test_followers_of_a_launcher_take_no_lock_and_write_nothing(tree, finished):
    before = (finished / "config.yaml").read_text()
    launcher = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    load_config(tree, [f"resume={finished}", "trainer.max_epochs=9"], launcher)
    assert (finished / "config.yaml").read_text() == before
