"""pyproject.toml, constraints.txt, environment.yml and the files around them say the same."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import distmatch

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()
}
PINS = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(
        r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
}
NAMED_BY_THE_USER = {
    "lightning",
    "torch",
    "transformers",
    "peft",
    "torchmetrics",
    "tensorboard",
    "lightning-utilities",
}


@pytest.mark.parametrize("requirement", [*CORE, *EXTRAS["dev"]], ids=lambda r: r.name)
def test_every_direct_dependency_is_pinned_inside_its_range(requirement):
    pin = PINS.get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} is missing from constraints.txt"
    assert requirement.specifier.contains(pin), (
        f"{requirement.name}=={pin} is outside {requirement.specifier}"
    )


def test_every_line_of_the_constraints_is_a_pin():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) == len(PINS)
    assert pins == sorted(pins)


def test_the_packages_that_users_expect_are_there():
    core = {canonicalize_name(r.name) for r in CORE}
    assert core >= NAMED_BY_THE_USER
    assert "vllm" not in core
    assert [r.name for r in EXTRAS["vllm"]] == ["vllm"]
    assert not any(name.startswith(("vllm", "flash-attn", "nvidia")) for name in PINS)


def test_the_tested_torch_and_transformers_fit_the_tested_vllm():
    assert PINS["torch"] == Version("2.13.0")
    assert PINS["transformers"] == Version("5.19.0")
    (vllm,) = EXTRAS["vllm"]
    assert vllm.specifier.contains("0.32.0")
    assert "linux" in str(vllm.marker)


def test_conda_gets_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    assert pip == ["-c constraints.txt", "-e .[dev]"]
    (python,) = [item for item in environment["dependencies"] if str(item).startswith("python=")]
    assert (
        Version(python.removeprefix("python="))
        in Requirement(f"python{PROJECT['requires-python']}").specifier
    )


def test_the_version_is_said_once():
    assert distmatch.__version__ == PROJECT["version"]


def test_make_lists_every_target_and_needs_no_other():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    assert set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)) == phony
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {target} " in listed for target in phony)


def test_ci_runs_the_command_of_the_readme():
    ci = (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    for command in ("make test", "make demo"):
        assert command in readme
    assert ci.rstrip().endswith("make test")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_hooks_fetch_nothing():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in hooks["repos"]} == {"local"}
    assert {hook["language"] for repo in hooks["repos"] for hook in repo["hooks"]} == {"system"}


def test_the_licence_is_whole():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["license"] == "Apache-2.0"
