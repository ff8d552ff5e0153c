"""The config tree that ships."""

from pathlib import Path

import pytest

from distmatch.settings import ConfigError, check
from distmatch.settings.checks import check_targets
from distmatch.settings.compose import Catalogue, compose

ROOT = Path(__file__).parents[3]


SHIPPED = Catalogue(ROOT / "configs", "train")


def test_the_shipped_defaults_are_accepted():
    check(compose(SHIPPED, []))
    check(compose(SHIPPED, ["debug=smoke"]))


@pytest.mark.parametrize("data", [["data=proposals"], ["data=stored_rollouts", "data.path=runs/one"]])
def test_a_smoke_run_leaves_stored_answers_their_groups_of_one(data):
    cfg = compose(SHIPPED, ["algo=sft", *data, "debug=smoke"])
    check(cfg)
    assert cfg.data.group_size == 1


@pytest.mark.parametrize("choice", [f"{g}={o}" for g in SHIPPED.groups() for o in SHIPPED.options(g)])
def test_every_shipped_option_takes_its_keys(choice):
    try:
        cfg = compose(SHIPPED, [choice])
    except ConfigError as error:
        assert "must be given" in str(error)  # such as algo=custom
        return
    check_targets(cfg)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.mask_truncated=no", "true or false"),
        ("algo.length_normalize=3", "true or false"),
        ("algo.base.scale_rewards=x", "true or false"),
        ("reward.clip_quality=1", "true or false"),
        ("module.log_entropy=yes", "true or false"),
        ("algo.weight=abc", "a number"),
        ("algo.temperature=[1]", "a number"),
        ("algo.base.clip_low=null", "a number"),
        ("task.weights=1", "a mapping or null"),
        ("model.weights=1", "a text"),
        ("module.betas=1", "a list"),
        ("callbacks.diagnosis.patience=x", "a whole number"),
    ],
)
def test_a_value_of_another_kind_is_refused(override, words):
    with pytest.raises(ConfigError) as caught:
        check(compose(SHIPPED, [override]))
    assert str(caught.value).startswith(f"{override} must be {words}")
