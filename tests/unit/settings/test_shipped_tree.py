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


@pytest.mark.parametrize("choice", [f"{g}={o}" for g in SHIPPED.groups() for o in SHIPPED.options(g)])
def test_every_shipped_option_takes_its_keys(choice):
    try:
        cfg = compose(SHIPPED, [choice])
    except ConfigError as error:
        assert "must be given" in str(error)  # such as algo=custom
        return
    check_targets(cfg)
