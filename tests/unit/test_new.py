"""A loss made from the skeleton runs, keeps the contract and passes its own tests, as it stands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distmatch.new import main, new_loss
from distmatch.settings.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a loss touches."""
    for name in ("src", "configs", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copytree(ROOT / "src/distmatch/assets/new", tmp_path / "src/distmatch/assets/new")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_a_new_loss_passes_its_tests_and_the_contract(project: Path) -> None:
    written = new_loss("my_own", project)
    assert [file.relative_to(project).as_posix() for file in written] == [
        "src/distmatch/losses/my_own.py",
        "configs/algo/my_own.yaml",
        "tests/unit/losses/test_my_own.py",
    ]
    command = ["-m", "pytest", str(written[2]), "tests/contracts/test_losses.py", "-q", "-k", "my_own"]
    done = subprocess.run(
        [sys.executable, *command, "-p", "no:cacheprovider"],
        cwd=project,
        env={"PYTHONPATH": f"{project / 'src'}:{project}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    style = [sys.executable, "-m", "ruff"]
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run([*style, *check, *map(str, [written[0], written[2]])], cwd=project, check=False)
        assert done.returncode == 0


def test_the_class_says_loss_once(project: Path) -> None:
    written = new_loss("my_loss", project)
    assert "class MyLoss(Loss)" in written[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["My", "a-b", "class", "1st", "../x", ""])
def test_bad_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lower case with underscores"):
        new_loss(name, tmp_path)


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["loss", "dmpo"]) == 2
    assert "src/distmatch/losses/dmpo.py exists already" in capsys.readouterr().err


def test_elsewhere_it_says_where_to_run_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run it from the project's root"):
        new_loss("mine", tmp_path)
    assert not list(tmp_path.iterdir())
