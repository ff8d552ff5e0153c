"""Unknown names are named, listed and corrected."""

from pathlib import Path

import pytest

from distmatch.settings import ConfigError, check
from distmatch.settings.compose import compose

ROOT = Path(__file__).parents[3]


def refusal(tree, *overrides):
    with pytest.raises(ConfigError) as caught:
        check(compose(tree, overrides))
    return str(caught.value)


def test_the_defaults_are_accepted(tree):
    cfg = compose(tree, [])
    check(cfg)
    assert cfg.choices.algo == "dmpo"
    assert cfg.choices.task == "np_tiny"
    assert "hydra" not in cfg


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algo=dmpoo", ["algo=dmpoo", "dmpo, grpo", "Did you mean algo=dmpo?"]),
        ("task=tps", ["task=tps", "np_tiny, tsp", "Did you mean task=tsp?"]),
        ("model=tinny", ["model=tinny", "tiny", "Did you mean model=tiny?"]),
        ("sampler=vlm", ["sampler=vlm", "hf"]),
        ("experiment=best", ["experiment=best", "(nothing)"]),
        ("algoo=dmpo", ["algoo", "Did you mean algo=dmpo?", "sampler"]),
        ("algo.weigth=1", ["algo has no key 'weigth'", "base, weight", "Did you mean algo.weight=1?"]),
        ("algo.temperature=2", ["parameter of fake_parts.DMPO", "write +algo.temperature=2"]),
        ("algo.temprature=2", ["no key 'temprature'", "Did you mean +algo.temperature=2?"]),
        (
            "+algo.wieght=2",
            ["algo.wieght is not a parameter of fake_parts.DMPO", "Did you mean algo.weight?"],
        ),
        ("lr=0.1", ["lr: there is no such setting", "Did you mean module.lr=0.1?"]),
        ("data.groupsize=2", ["data has no key 'groupsize'", "Did you mean data.group_size=2?"]),
        ("trainr.max_epochs=2", ["Did you mean trainer.max_epochs=2?"]),
        ("trainer.max_epoch=2", ["no key 'max_epoch'", "Did you mean trainer.max_epochs=2?"]),
        ("trainer.max_steps=2", ["write +trainer.max_steps=2"]),
        ("seed.x=2", ["seed is the value 0"]),
        ("algo.weight.x=2", ["algo.weight is the value 0.5"]),
        ("seed=1,2", ["several values", "add -m"]),
        ("algo", ["'algo' sets nothing: write algo=<value>"]),
        ("model.path=[a", ["is not a setting of the form key=value", "quotes"]),
        ("data.max_tokens=???", ["data.max_tokens must be given"]),
        ("data.max_tokens='${nothing.here}'", ["nothing.here"]),
        ("algo._target_=fake_parts.DMPOO", ["fake_parts has no 'DMPOO'", "Did you mean DMPO?"]),
        ("algo._target_=no_such.Thing", ["no module 'no_such'"]),
        ("algo._target_=Thing", ["not a dotted path"]),
        ("algo._target_=3", ["algo._target_=3 must be a dotted path"]),
        (
            "+model.stile=natural",
            ["model.stile is not a parameter of fake_parts.build", "path, style, weights, window"],
        ),
        ("+task.weights=[1]", ["task.weights is not a parameter of fake_parts.Mixture", "seed, tasks"]),
    ],
)
def test_unknown_names_are_named_listed_and_corrected(tree, override, words):
    message = refusal(tree, override)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo.weight=1"], "write +algo.weight=1"),
        (["algo.wieght=1"], "Did you mean +algo.weight=1?"),
        (["+algo.wieght=1"], "Did you mean +algo.weight?"),
    ],
)
def test_a_parameter_of_a_custom_loss_needs_a_plus(tree, overrides, words):
    (tree.folder / "algo" / "custom.yaml").write_text("_target_: ???\n")
    assert words in refusal(tree, "algo=custom", "algo._target_=fake_parts.DMPO", *overrides)


def test_a_key_of_a_custom_loss_without_a_target(tree):
    (tree.folder / "algo" / "custom.yaml").write_text("_target_: ???\n")
    assert "algo has no key 'weight'" in refusal(tree, "algo=custom", "algo.weight=1")


def test_a_plus_for_a_key_that_exists_is_explained_or_harmless(tree):
    try:
        cfg = compose(tree, ["+algo.weight=2"])
    except ConfigError as error:
        assert "write algo.weight=2" in str(error)
    else:
        assert cfg.algo.weight == 2


def test_loggers_are_a_mapping_of_nodes(tree):
    assert list(compose(tree, []).logger) == ["tensorboard"]
    assert list(compose(tree, ["logger=wandb"]).logger) == ["tensorboard", "wandb"]
    assert not compose(tree, ["logger=none"]).get("logger")


def test_parameters_of_a_target_can_be_added(tree):
    cfg = compose(tree, ["+algo.temperature=2"])
    check(cfg)
    assert cfg.algo.temperature == 2
