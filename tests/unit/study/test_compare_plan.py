"""From a command line to checked cells, and everything that is refused before the first one starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from distmatch.settings.compose import Catalogue, compose, parse
from distmatch.settings.errors import ConfigError
from distmatch.settings.folder import write_config
from distmatch.study.compare import main
from distmatch.study.comparison.cells import check_folders
from distmatch.study.comparison.evaluation import start_name
from distmatch.study.comparison.existing import read_plan
from distmatch.study.comparison.plan import Plan, find_baseline, literal, make_arms, make_plan
from distmatch.study.comparison.request import read_request
from tests.runs import ROOT

COMPARE = Catalogue(ROOT / "configs", "compare")
TRAIN = Catalogue(ROOT / "configs", "train")


def plan(*overrides: str) -> Plan:
    request = read_request(COMPARE, overrides)
    return read_plan(request) if request.runs else make_plan(request, TRAIN)


def test_algorithms_times_seeds_with_what_is_common_to_all():
    found = plan("algos=[dmpo,grpo]", "seeds=[3,4]", "trainer.max_epochs=7", "threads=1", "paths.log_dir=out")
    assert [cell.name for cell in found.cells] == ["dmpo-seed3", "grpo-seed3", "dmpo-seed4", "grpo-seed4"]
    assert found.folder == Path("out/compare/dmpo-grpo-np_tiny") and found.baseline == "dmpo"
    last = found.cells[-1]
    assert (last.cfg.seed, last.cfg.trainer.max_epochs, last.cfg.choices.algo) == (4, 7, "grpo")
    assert last.cfg.paths.run_dir == "out/compare/dmpo-grpo-np_tiny/cells/grpo-seed4"
    again = compose(TRAIN, last.overrides)  # the process gets what was checked
    assert again == last.cfg


def test_any_settings_can_be_axes():
    found = plan(
        "axes={algo.weight: [0.5, 2], algo.temperature: [1, 0.0666666], data.group_size: [8]}",
        "algo=dmpo",
        "seeds=[0]",
        "baseline=weight-2-temperature-0.06667-group_size-8",
        "name=grid",
    )
    assert [arm.label for arm in found.arms] == [
        f"weight={w}, temperature={t}, group_size=8" for w in ("0.5", "2") for t in ("1", "0.06667")
    ]
    assert found.baseline == found.arms[3].label
    assert found.cells[3].cfg.algo.temperature == 0.0666666
    assert found.name == "grid" and not found.notes


def test_an_axis_can_be_given_by_its_key_alone():
    found = plan("axes.algo.weight=[1,2]", "axes.module.lr=[1e-4]", "seeds=[0]", "algo=dmpo")
    assert [arm.label for arm in found.arms] == ["weight=1, lr=0.0001", "weight=2, lr=0.0001"]


def starts(found: Plan) -> set[str]:
    return {start_name(cell.cfg, found.request) for cell in found.cells}


def test_arms_that_begin_alike_have_one_start():
    """Whether an arm samples or reads what it trains on is nothing to the policy before training."""
    stored = "['algo=sft','data=stored_rollouts','data.path=there']"
    read = f"variants={{a: ['algo=sft','data=proposals'], b: ['algo=grpo'], c: {stored}}}"
    assert len(starts(plan(read, "seeds=[0]"))) == 1
    assert len(starts(plan(read, "seeds=[0]", "model.weights=stage:warm_start"))) == 1
    made = "axes={warm_start.steps: [1, 2]}"
    assert len(starts(plan(made, "seeds=[0]", "model.weights=stage:warm_start"))) == 2
    assert len(starts(plan(made, "seeds=[0]"))) == 1
    assert len(starts(plan("axes={data.temperature: [0.5, 1]}", "seeds=[0]"))) == 2


def test_unequal_budgets_are_named():
    (note,) = plan("axes={data.group_size: [4, 8]}", "seeds=[0]").notes
    assert "32 × 4 × 150" in note and "32 × 8 × 150" in note


def test_the_papers_grid_is_one_word():
    request = read_request(COMPARE, ["experiment=dmpo_grid"])
    arms = list(make_arms(request.axes))
    points = {(arm.values["algo.weight"], arm.values["algo.temperature"]) for arm in arms}
    alphas = (1.2, 1, 0.8, 1 / 5, 1 / 10, 1 / 15, 1 / 20)
    assert points == {(weight, alpha) for weight in (0.3, 0.5, 0.7, 1, 2) for alpha in alphas}
    assert len(arms) == 35
    base = next(arm for arm in arms if arm.label == find_baseline(request.baseline, arms))
    assert base.values == {"algo.weight": 2, "algo.temperature": 1 / 15}
    few = ["axes={algo.weight: [2]}", "axes={algo.temperature: [0.05, 0.06666666666666667]}"]
    found = plan("experiment=dmpo_grid", *few, "seeds=[0,1]", "trainer.max_epochs=5")
    assert [cell.cfg.algo.temperature for cell in found.cells] == [0.05, 1 / 15] * 2
    assert {(cell.cfg.choices.algo, cell.cfg.trainer.max_epochs) for cell in found.cells} == {("dmpo", 5)}


def test_the_papers_divergences_are_one_word():
    cells = {cell.arm: cell.cfg for cell in plan("experiment=dmpo_divergences", "seeds=[0]").cells}
    divergences = {"mse", "js", "forward_kl", "log_mse"}
    assert {name for name, cfg in cells.items() if cfg.algo.get("divergence") == name} == divergences
    assert cells["no_base"].algo.base is None and cells["no_base"].algo.divergence == "mse"
    assert all(cells[name].algo.base == cells["grpo"].algo for name in divergences)


def test_ready_made_comparisons_do_not_look_like_experiments_of_train():
    assert not set(COMPARE.options("compare")) & set(TRAIN.options("experiment"))
    assert "compare" not in TRAIN.groups() and "compare" in COMPARE.groups()


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARE.options("compare"))
def test_ready_made_comparisons_are_planned_to_the_last_cell(name):
    assert plan(f"experiment={name}").cells


def test_experiments_of_train_are_common_to_all_cells():
    found = plan("algos=[dmpo,gspo]", "experiment=np_bench", "seeds=[0]")
    assert {cell.cfg.module.lr for cell in found.cells} == {1e-6}


@pytest.mark.parametrize(
    "value", [None, True, 3, 0.05, 1e-7, "grpo", "true", "1e-3", "a b, c", "it's", "", [1, "x:y"], {"r": 16}]
)
def test_values_keep_their_kind_on_the_command_line(value):
    assert parse(f"key={literal(value)}").value() == value


REFUSED = [
    ([], "nothing to compare"),
    (["algos=[dmpo,grop]"], "there is no such algo"),
    (["algos=[]"], "algos=[] must be a list"),
    (["algos=dmpo"], "algos=dmpo must be a list"),
    (["algos=[dmpo,dmpo]"], "names a value twice"),
    (["algos=[dmpo]", "seeds=[]"], "seeds=[] must be a list"),
    (["algos=[dmpo]", "seeds=[1,1]"], "names a seed twice"),
    (["algos=[dmpo]", "seeds=[-1]"], "seeds=[-1]"),
    (["algos=[dmpo]", "seeds=0"], "seeds=0 must be a list"),
    (["algos=[dmpo,grpo]", "baseline=gspo"], "baseline=gspo is not among what is compared: dmpo, grpo"),
    (["algos=[dmpo,grpo]", "axes={algo.weight: [1]}"], "grpo, weight=1: "),
    (["algos=[dmpo,grpo]", "algo.weight=1"], "grpo: algo.weight"),
    (["axes={algo.weight: 1}"], "axes.algo.weight=1 must be a list"),
    (["axes.algo.weight=1"], "axes.algo.weight=1 must be a list"),
    (["axes=3"], "axes=3 must be lists of values by setting"),
    (["algos=[dmpo]", "algo=grpo"], "it is an axis of the comparison"),
    (["algos=[dmpo]", "axes={algo: [grpo]}"], "give one of them"),
    (["algos=[dmpo]", "seed=3"], "give seeds=[...]"),
    (["algos=[dmpo]", "resume=x"], "the same command goes on"),
    (["algos=[dmpo]", "paths.run_dir=x"], "give folder="),
    (["algos=[dmpo]", "jobs=0"], "jobs=0 must be"),
    (["algos=[dmpo]", "eval_sample=3"], "Did you mean eval_samples=3"),
    (["algos=[dmpo]", "eval_samples=many"], "eval_samples=many must be"),
    (["algos=[dmpo]", "trainer.max_epochs=0"], "trainer.max_epochs=0"),
    (["algos=[dmpo]", "callbacks.export=null"], "callbacks.export=null"),
    (["algos=[dmpo]", "data.lr=1"], "data has no key 'lr'"),
    (["algos=[dmpo,grpo]", "seeds=0,1"], "has several values"),
    (["axes={task: [tsp, knapsack]}", "seeds=[0]"], "a comparison needs the same prompts"),
    (["experiment=dmpo_gird"], "Did you mean experiment=dmpo_grid"),
    (["runs=[/nowhere]"], "/nowhere has no config.yaml"),
    (["runs=[/nowhere,/else,/nowhere/]"], "runs: /nowhere is named twice"),
    (["runs=[/nowhere]", "algos=[dmpo]"], "leave out"),
    (["variants={a: 3}"], "variants="),
    (["--cell"], "Did you mean --cells"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), REFUSED, ids=[" ".join(a) or "nothing" for a, _ in REFUSED]
)
def test_mistakes_are_named_before_anything_starts(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(ROOT / "configs" / "compare.yaml", "usage", arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and message in said.err, said.err
    assert not said.out and not list(tmp_path.iterdir())


def test_help_and_the_list_of_cells(capsys):
    config = ROOT / "configs" / "compare.yaml"
    assert main(config, "usage of it", ["--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("usage of it") and "eval_samples: 64" in told and "dmpo_grid" in told
    assert main(config, "", ["algos=[dmpo,grpo]", "seeds=[1]", "folder=x", "--cells"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"python train.py algo={algo} seed=1 paths.run_dir=x/cells/{algo}-seed1" for algo in ("dmpo", "grpo")
    ]


# ---- folders that are there already ------------------------------------------------------------------------


def plant(cell, **changes: object) -> Path:
    """Leave in a cell's folder what a finished run leaves."""
    cfg = cell.cfg.copy()
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    (cell.run / "export").mkdir(parents=True)
    write_config(cfg, cell.run)
    (cell.run / "export" / "config.json").write_text("{}")
    (cell.run / "metrics.json").write_text(json.dumps({}))
    (cell.run / "metrics.csv").write_text("iteration\n")
    return cell.run


def test_other_settings_in_a_cells_folder_are_refused(tmp_path):
    cells = plan("algos=[dmpo,grpo]", "seeds=[0]", f"folder={tmp_path}").cells
    for cell in cells:
        plant(cell)
    check_folders(cells)
    other = plan("algos=[dmpo,grpo]", "seeds=[0]", f"folder={tmp_path}", "module.lr=1e-5").cells
    with pytest.raises(ConfigError, match=r"other settings: module\.lr is 0\.0003 there and 1e-05 now"):
        check_folders(other)
    check_folders(plan("algos=[gspo]", "seeds=[0]", f"folder={tmp_path}", "module.lr=1e-5").cells)


def test_existing_runs_may_differ_in_the_axis_only(tmp_path):
    cells = plan("algos=[dmpo,grpo]", "seeds=[0,1]", f"folder={tmp_path}/there").cells
    runs = [plant(cell) for cell in cells]
    listed = f"runs=[{','.join(map(str, runs))}]"
    found = plan(listed, "baseline=grpo", f"folder={tmp_path}/here")
    assert [(cell.arm, cell.seed, cell.run) for cell in found.cells] == [
        (cell.arm, cell.seed, cell.run) for cell in cells
    ]
    assert found.baseline == "grpo" and found.cells[0].evaluation.is_relative_to(tmp_path / "here")
    with pytest.raises(ConfigError, match="both dmpo with seed 0"):
        plan(f"runs=[{runs[0]},{runs[0]}/../dmpo-seed0]")
    config = yaml.safe_load((runs[1] / "config.yaml").read_text())
    config["module"]["lr"] = 1e-5
    (runs[1] / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=r"module\.lr is 0\.0003 in .* accept=\[module\.lr\]"):
        plan(listed)
    config["data"] |= {"max_tokens": 99, "temperature": 0.5}
    (runs[1] / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=r"max_tokens is .*temperature is .* accept=\[data,module\.lr\]"):
        plan(listed)
    config["data"] = yaml.safe_load((runs[0] / "config.yaml").read_text())["data"]
    (runs[1] / "config.yaml").write_text(yaml.safe_dump(config))
    (note,) = plan(listed, "accept=[module.lr]").notes
    assert "module.lr" in note
    (runs[1] / "metrics.json").unlink()
    with pytest.raises(ConfigError, match=r"has no metrics\.json"):
        plan(listed)


def test_existing_runs_of_one_algorithm_are_told_apart_by_what_varies(tmp_path):
    cells = plan("axes={algo.weight: [1, 2]}", "seeds=[0]", "algo=dmpo", f"folder={tmp_path}").cells
    listed = f"runs=[{','.join(str(plant(cell)) for cell in cells)}]"
    assert [arm.label for arm in plan(listed).arms] == ["dmpo, weight=1", "dmpo, weight=2"]
    assert [arm.label for arm in plan(listed, "axes={algo.weight: []}").arms] == ["weight=1", "weight=2"]
