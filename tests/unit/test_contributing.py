"""The code of CONTRIBUTING.md runs exactly as it stands there."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

import distmatch.sampling
import distmatch.tasks.np
from distmatch.batch import Prompt
from distmatch.modules.tiny import load_tiny
from distmatch.sampling.base import SamplingParams
from tests.builders import make_batch, make_policy

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```(?:python|yaml)\n(# ([\w./]+\.(?:py|yaml)).*?)^```$",
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
FILES = {path: text for text, path in BLOCKS}
CONTRACTS = ROOT / "tests" / "contracts"


def write(path, root):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(FILES[path], encoding="utf-8")
    return target


def code_lines(text):
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", '"""'))]


def test_every_recipe_is_one_python_file_and_one_yaml_that_do_not_exist_yet():
    folders = sorted(str(Path(path).parent) for path in FILES)
    assert folders == [
        "configs/algo",
        "configs/sampler",
        "configs/task",
        "src/distmatch/losses",
        "src/distmatch/sampling",
        "src/distmatch/tasks/np",
    ]
    assert not [path for path in FILES if (ROOT / path).exists()]


def test_a_loss_takes_about_twenty_lines():
    text = FILES["src/distmatch/losses/rwr.py"]
    assert len(code_lines(text)) <= 25


@pytest.mark.parametrize("path", [path for path in FILES if path.endswith(".py")])
def test_recipes_keep_the_house_style(path, tmp_path):
    file = write(path, tmp_path)
    for command in (["check"], ["format", "--check"]):
        options = ["--config", str(ROOT / "pyproject.toml")]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options, str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_contract_tests_run_on_the_loss_untouched(tmp_path):
    for name in ("configs", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("assets", "*.egg-info"))
    for path in ("src/distmatch/losses/rwr.py", "configs/algo/rwr.yaml"):
        write(path, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTEST_ADDOPTS": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/contracts/test_losses.py",
    ]
    done = subprocess.run(
        [*command, "-k", "rwr"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= 15, done.stdout

    program = (
        "from pathlib import Path\n"
        "from distmatch.settings.checks import check_group_size, check_targets\n"
        "from distmatch.settings.compose import Catalogue, compose\n"
        "cfg = compose(Catalogue(Path('configs').resolve(), 'train'), ['algo=rwr', 'algo.temperature=0.2'])\n"
        "check_targets(cfg), check_group_size(cfg)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)


def test_the_loss_of_the_readme_runs(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(# my_losses\.py.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_losses.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    loss = instantiate({"_target_": "my_losses.MyLoss"})
    monkeypatch.delitem(sys.modules, "my_losses")
    batch = make_batch(masked_rows=[1])
    assert torch.isfinite(loss(batch, make_policy(batch)).loss)


def load(yaml_path, module_path, package, root, monkeypatch):
    """Instantiate a recipe's YAML with its module lying in `root`."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(write(module_path, root).parent)])
    config = OmegaConf.load(write(yaml_path, root))
    module = config._target_.rpartition(".")[0]
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
    made = instantiate(config)
    monkeypatch.delitem(sys.modules, module)
    return made


def test_the_task_is_solved_and_verified(tmp_path, monkeypatch):
    task = load(
        "configs/task/no_neighbours.yaml",
        "src/distmatch/tasks/np/no_neighbours.py",
        distmatch.tasks.np,
        tmp_path,
        monkeypatch,
    )
    for index in range(50):
        instance = task.instance("train", index)
        numbers = instance.data["numbers"]
        values = [sum(numbers[i] for i in answer) for answer in task.feasible_answers(instance)]
        exact, greedy = task.solve_exact(instance), task.solve(instance)
        assert exact.proved
        assert exact.value == max(values) >= greedy.value
        for solution in (exact, greedy):
            assert task.verify(instance, task.format(solution.answer)).value == solution.value
    for text in ("", "Answer: []", "Answer: [0, 1]", "Answer: [99]", "Answer: [0, 0]", "Answer: [-1]"):
        assert not task.verify(instance, text).feasible
    assert task.render(instance, "compact").text.startswith("no_neighbours ")
    assert str(numbers) in task.render(instance, "natural").text


def test_the_sampler_draws_what_the_policy_scores(tmp_path, monkeypatch):
    sampler = load(
        "configs/sampler/plain.yaml",
        "src/distmatch/sampling/plain.py",
        distmatch.sampling,
        tmp_path,
        monkeypatch,
    )
    policy = load_tiny(weights="random", hidden_size=64, layers=1, heads=2, key_value_heads=1)
    prompts = [
        policy.encode(Prompt(text, "compact")) for text in ("knapsack 5 : 0 2/3", "knapsack 7 : 0 3/4 1 5/6")
    ]
    sampler.setup(policy)
    sampler.sync(policy)
    params = SamplingParams(n=2, max_tokens=5, temperature=0.7)
    completions = sampler.sample(prompts, params, seeds=range(4))
    assert completions.ids.shape[0] == 4
    for row, prompt in enumerate([prompts[0], prompts[0], prompts[1], prompts[1]]):
        ids, mask = completions.ids[row : row + 1], completions.mask[row : row + 1]
        prompt_ids = torch.tensor([prompt])
        scored = policy(prompt_ids, torch.ones_like(prompt_ids, dtype=torch.bool), ids, mask, temperature=0.7)
        torch.testing.assert_close(
            scored.logprobs.detach(), completions.logprobs[row : row + 1], atol=1e-4, rtol=0
        )
    again = sampler.sample(prompts[1:], params, seeds=range(2, 4))
    torch.testing.assert_close(again.ids, completions.ids[2:, : again.ids.shape[1]])
    sampler.close()
    sampler.close()  # safe to call twice
