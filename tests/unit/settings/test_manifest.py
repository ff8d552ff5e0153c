"""Folders that appear whole: alone, twice at once, and with a manifest that somebody broke."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from distmatch.settings.errors import ConfigError
from distmatch.settings.manifest import MANIFEST, json_text, load_manifest, made_whole, numbers


def make(place: Path, text: str = '{"by": 1}') -> None:
    place.mkdir()
    (place / MANIFEST).write_text(text)


def test_a_folder_appears_at_the_end_and_nothing_else_stays(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "result"
    with made_whole(folder) as place:
        make(place)
        assert not folder.exists()
    assert load_manifest(folder) == {"by": 1}
    assert list(folder.parent.iterdir()) == [folder]


def test_work_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), made_whole(tmp_path / "result") as place:
        make(place)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_stays(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    with made_whole(folder) as ours:
        make(ours)
        with made_whole(folder) as theirs:
            make(theirs, '{"by": 2}')
    assert load_manifest(folder) == {"by": 2}
    assert list(tmp_path.iterdir()) == [folder]


def test_something_else_in_the_way_is_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(OSError, match="not empty"), made_whole(folder) as place:
        make(place)
    assert [file.name for file in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize("text", ['{"kind": ', "7", ""])
def test_a_damaged_manifest_is_named_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ConfigError, match=r"manifest.json is damaged: .*Delete the folder"):
        load_manifest(tmp_path)


def test_numbers_that_json_does_not_have_are_null_and_come_back_as_nan(tmp_path: Path) -> None:
    content = {"a": math.inf, "b": {"c": (math.nan, 1.5)}, "d": -math.inf, "e": 2, "f": "nan"}
    (tmp_path / MANIFEST).write_text(json_text(content))
    found = load_manifest(tmp_path)
    assert found == {"a": None, "b": {"c": [None, 1.5]}, "d": None, "e": 2, "f": "nan"}
    back = numbers({"a": found["a"], "e": found["e"]})
    assert math.isnan(back["a"]) and back["e"] == 2.0
