"""Values that cannot work are refused by name."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distmatch.settings import ConfigError, check
from distmatch.settings.checks import check_batch_plan, configured_devices
from distmatch.settings.compose import compose
from distmatch.settings.numbers import NUMBERS

ROOT = Path(__file__).parents[3]


def refusal(tree, *overrides):
    with pytest.raises(ConfigError) as caught:
        check(compose(tree, overrides))
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.max_epochs=abc", ["trainer.max_epochs=abc", "a whole number of at least 1"]),
        ("trainer.max_epochs=0", ["trainer.max_epochs=0", "at least 1"]),
        ("trainer.max_epochs=2.5", ["trainer.max_epochs=2.5", "whole number"]),
        ("trainer.max_epochs=true", ["trainer.max_epochs=True", "whole number"]),
        ("trainer.max_epochs=null", ["trainer.max_epochs=None"]),
        ("data.prompts_per_iteration=-8", ["data.prompts_per_iteration=-8", "at least 1"]),
        ("data.eval_samples=0", ["data.eval_samples=0"]),
        ("module.lr=0", ["module.lr=0", "a number above 0"]),
        ("module.lr=-1e-3", ["module.lr=-0.001"]),
        ("module.lr=.nan", ["module.lr"]),
        ("module.lr=inf", ["module.lr=inf"]),
        ("data.temperature=0", ["data.temperature=0", "above 0"]),
        ("data.top_p=0.9", ["data.top_p=0.9 must be 1 in training"]),
        ("data.top_p=1.5", ["data.top_p=1.5", "at most 1"]),
        ("stage=warmstart", ["stage=warmstart must be one of: policy, warm_start", "stage=warm_start?"]),
        ("stage=null", ["stage=null must be one of"]),
        ("+data.eval_split=train", ["data.eval_split=train must be one of: val, test"]),
        ("threads=5000", ["threads=5000", "at most 4096 or null"]),
        ("data.eval_prompts=10000001", ["data.eval_prompts=10000001", "at most 10000000"]),
        ("data.eval_samples=100001", ["data.eval_samples=100001", "at most 100000"]),
        ("data.prompts_per_iteration=10000001", ["at most 10000000"]),
        ("data.group_size=100001", ["data.group_size=100001"]),
        (f"trainer.max_epochs={10**400}", ["trainer.max_epochs=1000"]),
        ("+model.layers=0", ["model.layers=0", "at least 1"]),
        ("+model.hidden_size=0", ["model.hidden_size=0"]),
        ("warm_start.warmup=2", ["warm_start.warmup=2", "at most 1"]),
        ("seed=-1", ["seed=-1", "at least 0"]),
        ("data.group_size=1", ["data.group_size=1: DMPO", "at least 2", "data.group_size=2"]),
        ("trainer.accumulate_grad_batches=4", ["must be 1", "whole groups", "module.micro_batch_tokens"]),
        (
            "data.updates_per_rollout=3",
            ["8 cannot be divided into 3", "=6 or 9", "data.updates_per_rollout=2"],
        ),
        ("trainer.devices=3", ["3 device(s)", "data.prompts_per_iteration=6 or 9"]),
        ("trainer.devices=0", ["trainer.devices=0", "at least 1"]),
        ("trainer.devices=two", ["trainer.devices=two"]),
        ("~task.tasks.tsp", []),
        ("task.tasks.tsp=-1", ["weights must not be negative"]),
        ("model.path=./nowhere", ["model.path=./nowhere: there is no such folder", "hub id"]),
        ("model.path=configs", ["model.path=configs has no config.json"]),
        ("model.path=./configs", ["configs has no config.json"]),
        ("+model.weights=shiped", ["model.weights=shiped", "Did you mean model.weights=shipped?"]),
        ("+model.window=149", ["need 150 positions", "model.window=149"]),
        ("callbacks.checkpoint.every_n_epochs=0", []),
        ("+callbacks.checkpoint.every_n_train_steps=5", ["callbacks.checkpoint.every_n_epochs"]),
        ("callbacks.checkpoint.save_on_train_epoch_end=false", ["must be true"]),
    ],
)
def test_values_out_of_range_are_refused(tree, override, words):
    if not words:
        check(compose(tree, [override]))
        return
    message = refusal(tree, override)
    for word in words:
        assert word in message


def test_a_base_loss_inside_a_loss_counts_too(tree):
    base = "{_target_:fake_parts.GRPO}"
    assert "GRPO" in refusal(tree, f"algo.base={base}", "data.group_size=2")
    check(compose(tree, [f"algo.base={base}", "data.group_size=3"]))


def test_an_empty_mixture_is_refused(tree):
    assert "task.tasks is empty" in refusal(tree, "~task.tasks.tsp", "~task.tasks.knapsack")
    assert "one must be above 0" in refusal(tree, "task.tasks.tsp=0", "task.tasks.knapsack=0")
    assert "nothing to train on" in refusal(tree, "~task")
    assert "write ~logger for none" in refusal(tree, "logger=null")


def test_truncated_sampling_can_be_allowed(tree):
    check(compose(tree, ["data.top_p=0.9", "+data.allow_truncated_sampling=true"]))


def test_a_prompt_that_outgrows_the_window_is_refused(tree, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 149}')
    message = refusal(tree, "model.path=model")
    assert "need 150 positions" in message
    assert "has 149" in message
    check(compose(tree, ["model.path=model", "data.max_tokens=49"]))


def test_seven_devices_and_eight_prompts():
    cfg = OmegaConf.create({"data": {"prompts_per_iteration": 8, "updates_per_rollout": 1}})
    with pytest.raises(ConfigError, match="prompts_per_iteration=7 or 14"):
        check_batch_plan(cfg, 7)
    check_batch_plan(cfg, 8)


def test_devices_in_all_their_forms():
    forms = {2: 2, "2": 2, "auto": 1, -1: 1}
    for devices, count in forms.items():
        assert configured_devices(OmegaConf.create({"trainer": {"devices": devices}})) == count
    assert configured_devices(OmegaConf.create({"trainer": {"devices": [0, 1], "num_nodes": 2}})) == 4


def test_every_number_states_its_condition():
    for number in NUMBERS:
        assert number.demand().startswith(("a whole number", "a number"))
        assert not number.accepts("abc")
