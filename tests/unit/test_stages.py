"""How a run gets what it needs from earlier stages: in order, once, apart, and stoppable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from distmatch import stages
from distmatch.settings.checks import CHOICES, check
from distmatch.settings.compose import Catalogue, compose
from distmatch.settings.errors import ConfigError
from distmatch.settings.stage_names import STAGE_NAMES
from distmatch.stages import POLICY_READS, STAGES, Stage, prepare
from tests.runs import CPU, ROOT, command, config, environment

CATALOGUE = Catalogue(ROOT / "configs", "train", None)


def composed(*overrides: str) -> DictConfig:
    cfg = compose(CATALOGUE, [*CPU, *overrides])
    check(cfg)
    return cfg


# ---- names and settings ------------------------------------------------------------------------------------


def test_all_lists_of_stages_agree() -> None:
    assert tuple(STAGES) == STAGE_NAMES
    assert CHOICES["stage"] == ("policy", *STAGE_NAMES)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "algo.log_z.folder=stage:logz",
            "algo.log_z.folder=stage:logz: the stages are warm_start.*stage:log_z?",
        ),
        ("log_z.partition=sequenc", "log_z.partition=sequenc must be one of: null, sequence.*=sequence?"),
        ("log_z.held_out=0", "log_z.held_out=0 must be a number above 0"),
        ("log_z.weighting=precise", "log_z.weighting=precise must be one of: equal, precision"),
        ("proposals.samples=1", "proposals.samples=1 must be a whole number of at least 2"),
    ],
)
def test_faults_are_named_before_anything_starts(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        composed("algo=disa", override)


def test_a_stages_result_can_be_the_model() -> None:
    composed("model.weights=stage:warm_start")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["algo=disa", "log_z.partition=sequence"],
            "partition=sequence does not fit algo.length_normalize=true",
        ),
        (["algo=disa", "algo.length_normalize=false", "log_z.partition=token_mean"], "choose sequence"),
        (["algo=dmpo", "stage=log_z"], "add algo=disa"),
        (
            ["algo=disa", "log_z.features=[prompt_stat]"],
            r"must be some of: .*=\[prompt_state\]\?",
        ),
        (["algo=disa", "algo.beta=-1"], "algo.beta=-1 must be finite and above 0"),
        (["algo=disa", "stage=log_z", "algo.beta=0"], "algo.beta=0 must be finite and above 0"),
        (["algo=disa", "proposals.models.strong.temperature=0"], "strong: temperature must be above 0"),
        (["algo=disa", "stage=log_z", "proposals.models.strong.top_p=0.9"], "top_p=0.9 must be 1"),
        (["algo=disa", "proposals.prompts=12"], "of 12 different prompts leaves 3 to test and 9 to fit"),
        (["algo=sft", "data=proposals", "proposals.models.strong.share=0"], "share=0 must be above 0"),
        (["algo=disa", "stage=proposals", "proposals.models.strong=null"], "proposals.models is empty"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    overrides: list[str], words: str, fake: Fake
) -> None:
    cfg = fake.config(*overrides)
    with pytest.raises(ConfigError, match=words):
        prepare(cfg)
    assert fake.made == []


# ---- order, once -------------------------------------------------------------------------------------------


class Fake:
    """Stages whose work is a line in a list; folders and needs are the real ones' shape."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.made, self.seen = folder, [], {}
        for name in STAGE_NAMES[1:3]:
            real = STAGES[name]
            monkeypatch.setitem(STAGES, name, Stage(real.run, lambda cfg, n=name: folder / n, real.reads))
        monkeypatch.setattr(stages, "_run_apart", self._make)

    def config(self, *overrides: str) -> DictConfig:
        cfg = composed(*overrides, f"paths.cache_dir={self.folder}")
        cfg.paths.run_dir = str(self.folder / "run")
        return cfg

    def _make(self, cfg: DictConfig, name: str) -> None:
        self.made.append(name)
        self.seen[name] = OmegaConf.to_container(cfg, resolve=True)
        place = STAGES[name].folder(cfg)
        place.mkdir(parents=True)
        kind = {"proposals": {"kind": "proposals", "hash": "h", "prompts": 1, "samples": 2, "reference": {}}}
        (place / "manifest.json").write_text(json.dumps(kind.get(name, {})))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


def test_needs_come_first_and_everything_once(fake: Fake) -> None:
    cfg = fake.config("algo=disa")
    prepare(cfg)
    assert fake.made == ["proposal_model", "proposals", "log_z"]
    assert cfg.algo.log_z.folder == STAGES["log_z"].folder(cfg).as_posix()
    assert fake.seen["proposals"]["proposals"]["models"]["strong"]["model"]["weights"] == str(
        fake.folder / "proposal_model"
    )
    assert fake.seen["log_z"]["log_z"]["proposals"] == str(fake.folder / "proposals")
    prepare(fake.config("algo=disa", "seed=7"))
    assert len(fake.made) == 3


def test_another_beta_makes_another_regressor_of_the_same_proposals(fake: Fake) -> None:
    prepare(fake.config("algo=disa"))
    prepare(fake.config("algo=disa", "algo.beta=10"))
    prepare(fake.config("algo=disa", "algo.length_normalize=false"))
    assert fake.made == ["proposal_model", "proposals", "log_z", "log_z", "log_z"]


def test_a_stage_alone_gets_its_own_needs(fake: Fake) -> None:
    prepare(fake.config("algo=disa", "stage=proposals"))
    assert fake.made == ["proposal_model"]


def test_algorithms_without_needs_make_nothing(fake: Fake) -> None:
    for algo in ("dmpo", "flowrl"):
        prepare(fake.config(f"algo={algo}"))
    assert fake.made == []
    assert not {"proposals", "log_z", "warm_start"} & set(POLICY_READS)


@pytest.mark.parametrize("overrides", [["algo=disa"], ["stage=warm_start"]])
def test_a_cache_that_cannot_be_written_is_named_first(
    overrides: list[str], fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    cfg = fake.config(*overrides)
    cfg.paths.cache_dir = str(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"paths.cache_dir=.*file cannot be written \(File exists\)"):
        prepare(cfg)
    assert fake.made == []


def test_given_folders_are_taken_as_they_are(fake: Fake) -> None:
    cfg = fake.config("algo=disa", "algo.log_z.folder=somewhere")
    prepare(cfg)
    assert fake.made == [] and cfg.algo.log_z.folder == "somewhere"


def test_another_process_of_the_run_waits_for_the_first(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    cfg = fake.config("algo=disa", "stage=proposals")
    later = threading.Timer(0.7, fake._make, (cfg, "proposal_model"))
    later.start()
    prepare(cfg)
    later.join()
    assert fake.made == ["proposal_model"]


# ---- apart -------------------------------------------------------------------------------------------------


def test_a_stage_is_no_part_of_a_distributed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("DISTMATCH_CONFIG", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kept = stages._environment()
    assert kept["OMP_NUM_THREADS"] == "1" and kept["PATH"] == os.environ["PATH"]
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "DISTMATCH_CONFIG"} & set(kept)
    assert not any(name.startswith(("TORCHELASTIC", "SLURM")) for name in kept)


def test_a_failed_stage_is_named_with_the_way_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The stage's own process refuses, in its own words; ours says which it was."""
    missing = f"proposals.models.strong.model.weights={tmp_path / 'model'}"
    cfg = config("algo=disa", missing, f"paths.log_dir={tmp_path}")
    with pytest.raises(ConfigError, match=r"stage proposals failed with exit status 2.*same command again"):
        prepare(cfg)
    assert f"model.weights='{tmp_path / 'model'}'" in capfd.readouterr().err


def test_a_signal_ends_the_stage_too(tmp_path: Path) -> None:
    arguments = ["algo=disa", "proposals.warm_start.steps=100000", f"paths.log_dir={tmp_path}", *CPU]
    process = subprocess.Popen(
        command(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    stage = tmp_path / "train" / "proposal_model-np_tiny"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not list(stage.glob("*/events*")) and process.poll() is None:
        time.sleep(0.1)
    child = _child(process.pid)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "stopped in stage proposal_model" in said and "same command again" in said
    assert not Path(f"/proc/{child}").exists()


def _child(parent: int) -> int:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    assert found
    return int(found[0])


# ---- experiments -------------------------------------------------------------------------------------------

PROPOSAL = ["proposal_model", "proposals", "log_z"]


@pytest.mark.parametrize(
    ("name", "beta", "made"),
    [
        ("disa_strong", 15.0, PROPOSAL),
        ("disa_weak", 15.0, PROPOSAL[1:]),
        ("disa_under_tilted", 10.0, PROPOSAL),
        ("disa_over_tilted", 20.0, PROPOSAL),
    ],
)
def test_the_experiments_ask_for_their_stages(name: str, beta: float, made: list[str], fake: Fake) -> None:
    cfg = fake.config(f"experiment={name}")
    prepare(cfg)
    assert fake.made == made
    assert cfg.algo.beta == beta
    assert fake.seen["log_z"]["algo"]["beta"] == beta


def test_the_papers_control_trains_on_the_same_answers(fake: Fake) -> None:
    cfg = fake.config("algo=sft", "data=proposals")
    prepare(cfg)
    assert fake.made == ["proposal_model", "proposals"]
    assert cfg.data.path == str(fake.folder / "proposals")
