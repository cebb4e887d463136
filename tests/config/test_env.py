"""The environment's meaning."""

from pathlib import Path

import pytest

from omnistage.config.env import cache_dir


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMNISTAGE_CACHE": "/a/b"}, "/a/b"),
        ({"OMNISTAGE_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"OMNISTAGE_CACHE": "~/c"}, "/home/u/c"),
        ({"OMNISTAGE_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/omnistage"),
        ({"XDG_CACHE_HOME": ""}, "/home/u/.cache/omnistage"),
        ({}, "/home/u/.cache/omnistage"),
    ],
)
def test_the_cache_is_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    """Fault: the order of the three places, or an empty variable taken for the current folder."""
    for name in ("OMNISTAGE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/u"} | environment).items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path(expected)
