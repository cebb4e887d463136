"""Folders that are no models: one line each, saying what was looked for and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import eos_token_ids, read_json


def expect_broken(*words: object) -> pytest.RaisesExc[BrokenCheckpointError]:
    return pytest.raises(
        BrokenCheckpointError, check=lambda e: all(str(w) in e.message for w in words) and "\n" not in e.message
    )


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    """Fault: a traceback in place of what was looked for."""
    with expect_broken(tmp_path / "nowhere", "is no folder", "config.json"):
        read_json(tmp_path / "nowhere", "config.json")
    with expect_broken(tmp_path, "has no config.json"):
        read_json(tmp_path, "config.json")


@pytest.mark.parametrize("content", ["", "[1, 2]", "{"])
def test_a_json_file_that_is_none(tmp_path: Path, content: str) -> None:
    """Fault: half a download is read as an empty configuration."""
    (tmp_path / "config.json").write_text(content)
    with expect_broken(tmp_path / "config.json", "JSON object"):
        read_json(tmp_path, "config.json")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.json": 2}, {2}),
        ({"a.json": [1, 2], "b.json": 5}, {1, 2}),
        ({"b.json": 5}, {5}),
        ({"a.json": None, "b.json": 5}, {5}),
        ({}, set()),
    ],
)
def test_the_end_of_text_is_read_from_the_first_that_says(tmp_path: Path, files: dict, expected: set[int]) -> None:
    """Fault: config.json wins over generation_config.json; a list of ends is not read."""
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps({"eos_token_id": value}))
    assert eos_token_ids(tmp_path, "a.json", "b.json") == expected
