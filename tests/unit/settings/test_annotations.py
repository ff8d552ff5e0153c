"""Plain values are held against the annotations of what they are given to."""

import pytest
from omegaconf import OmegaConf

from distmatch.settings import ConfigError
from distmatch.settings.annotations import shown
from distmatch.settings.checks import check_targets
from distmatch.settings.targets import find_target

NODE = {"_target_": "fake_base.Base"}


def refusal(key, value, target="Typed"):
    try:
        check_targets(OmegaConf.create({"part": {"_target_": f"fake_parts.{target}", key: value}}))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("flag", True), ("count", 3), ("share", 1), ("share", 1e-3), ("name", "3"), ("limit", None)],
        *[("limit", 2), ("style", "b"), ("style", None), ("many", [1, 2.5]), ("many", []), ("pair", [1, 2])],
        *[("by_name", {"a": 1}), ("by_name", None), ("old", "x"), ("old", 3), ("old", None), ("count2", 3)],
        *[("several", ["a", None]), ("implicit", None), ("anything", [1]), ("half", "c"), ("unknown", 1)],
        *[("flag", NODE), ("many", [NODE]), ("count", "${part.other}")],
    ],
)
def test_values_that_fit_are_accepted(tree, key, value):
    if value == "${part.other}":
        cfg = {"part": {"_target_": "fake_parts.Typed", key: value, "other": 4}}
        check_targets(OmegaConf.create(cfg))
    assert value == "${part.other}" or refusal(key, value) is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("flag", "no", "part.flag=no must be true or false"),
        ("flag", "false", "part.flag='false' must be true or false"),
        ("flag", 1, "part.flag=1 must be true or false"),
        ("flag", None, "part.flag=null must be true or false"),
        ("count", True, "part.count=true must be a whole number"),
        ("count", 2.0, "part.count=2.0 must be a whole number"),
        ("count", "3", "part.count='3' must be a whole number"),
        ("count2", "x", "part.count2=x must be a whole number"),
        ("share", True, "part.share=true must be a number"),
        ("share", float("inf"), "part.share=Infinity must be a number and finite"),
        ("share", 10**400, "must be a number"),
        ("share", [1], "part.share=[1] must be a number"),
        ("limit", "abc", "part.limit=abc must be a number or null"),
        ("name", 3, "part.name=3 must be a text; as a text it is written part.name='\"3\"'"),
        ("style", "c", "part.style=c must be one of: a, b or null"),
        ("many", 1, "part.many=1 must be a list"),
        ("many", "1,2", "part.many=1,2 must be a list"),
        ("many", [1, "a"], "part.many[1]=a must be a number"),
        ("pair", {"a": 1}, "must be a list"),
        ("pair", [1, None], "part.pair[1]=null must be a number"),
        ("by_name", [1], "part.by_name=[1] must be a mapping or null"),
        ("by_name", {"a": 0.5}, "part.by_name.a=0.5 must be a whole number"),
        ("old", 2.5, "part.old=2.5 must be a whole number or a text or null"),
        ("several", ["a", "c"], "part.several[1]=c must be one of: a, b or null"),
        ("implicit", "x", "part.implicit=x must be a whole number or null"),
    ],
)
def test_values_that_do_not_fit_are_named(tree, key, value, message):
    assert message in refusal(key, value)


def test_fields_of_a_dataclass_are_checked_too(tree):
    assert "part.flag=off must be true or false" in refusal("flag", "off", "Record")
    assert refusal("style", 3, "Record") is None
    assert "must be one of: a, 3" in refusal("style", "3", "Record")


def test_an_object_of_the_package_needs_a_target():
    kind = find_target("distmatch.losses.dmpo.DMPOLoss").kinds["base"]
    assert kind.refusal("algo.base", 3) == "algo.base=3 must be a mapping with a _target_ or null"
    assert kind.refusal("algo.base", {"_target_": "x.Y"}) is None


def test_lightnings_annotations_are_followed_too():
    kinds = find_target("lightning.pytorch.Trainer").kinds
    assert kinds["use_distributed_sampler"].refusal("trainer.use_distributed_sampler", "no")
    assert "bf16-mixed" in kinds["precision"].choices


def test_values_are_shown_as_they_are_written():
    assert [shown(v) for v in (None, True, 1.5, "a", "1", "")] == ["null", "true", "1.5", "a", "'1'", "''"]
