"""The environment's meaning."""

from pathlib import Path

import pytest

from omnistage.config.env import cache_dir, child_environment, log_level
from omnistage.core.errors import ConfigError


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


@pytest.mark.parametrize(("value", "expected"), [(None, "info"), ("", "info"), ("DEBUG", "debug")])
def test_the_log_level_is_a_known_word(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: str) -> None:
    """Fault: an empty variable taken for a level, or a level that depends on its case."""
    monkeypatch.delenv("OMNISTAGE_LOG_LEVEL", raising=False)
    if value is not None:
        monkeypatch.setenv("OMNISTAGE_LOG_LEVEL", value)
    assert log_level() == expected


def test_another_log_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a misspelt level that turns into silence."""
    monkeypatch.setenv("OMNISTAGE_LOG_LEVEL", "chatty")
    with pytest.raises(ConfigError, match="OMNISTAGE_LOG_LEVEL: 'chatty' is not accepted; accepted: debug, info"):
        log_level()


def test_a_child_has_our_environment_and_its_own_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a stage's variable lost, or the rest of the environment."""
    monkeypatch.setenv("OMNISTAGE_TEST_A", "ours")
    monkeypatch.setenv("OMNISTAGE_TEST_B", "ours")
    child = child_environment({"OMNISTAGE_TEST_B": "its own"})
    assert (child["OMNISTAGE_TEST_A"], child["OMNISTAGE_TEST_B"]) == ("ours", "its own")


def test_a_child_logs_what_we_do_unless_somebody_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a program that is told of errors alone hears the notes of its workers, or a variable that says more is passed over."""
    monkeypatch.delenv("OMNISTAGE_LOG_LEVEL", raising=False)
    assert child_environment({}, level="error")["OMNISTAGE_LOG_LEVEL"] == "error"
    assert child_environment({"OMNISTAGE_LOG_LEVEL": "info"}, level="error")["OMNISTAGE_LOG_LEVEL"] == "info"
    monkeypatch.setenv("OMNISTAGE_LOG_LEVEL", "debug")
    assert child_environment({}, level="error")["OMNISTAGE_LOG_LEVEL"] == "debug"
