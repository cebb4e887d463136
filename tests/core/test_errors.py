"""The error tree and its form on the wire."""

from __future__ import annotations

import pytest

from omnistage.core.errors import (
    ConfigError,
    ErrorInfo,
    InvalidRequestError,
    OmniError,
    QueueFullError,
    StageFailedError,
    did_you_mean,
)


def all_kinds(base: type[OmniError] = OmniError) -> list[type[OmniError]]:
    """The kinds that cross a process border; a layer above may have kinds of its own that never do."""
    kinds = [base, *(kind for child in base.__subclasses__() for kind in all_kinds(child))]
    return [kind for kind in kinds if kind.__module__ == base.__module__]


@pytest.mark.parametrize("kind", all_kinds())
def test_every_error_survives_the_wire(kind: type[OmniError]) -> None:
    """Fault: an error turns into another kind, or loses its field, in a process border."""
    error = kind("what", stage="thinker", field="seed", retry_after_s=2.0)
    again = ErrorInfo.of(error).to_exception()
    assert type(again) is kind
    assert (str(again), again.stage, again.field, again.retry_after_s) == ("what", "thinker", "seed", 2.0)


def test_codes_are_distinct() -> None:
    """Fault: two errors that clients cannot tell apart."""
    codes = [kind.code for kind in all_kinds()]
    assert len(set(codes)) == len(codes)


def test_a_foreign_exception_becomes_one_line() -> None:
    """Fault: a traceback, or an empty message, reaches the client."""
    info = ErrorInfo.of(RuntimeError("out of\nmemory"), stage="talker")
    assert info == ErrorInfo("stage_failed", "RuntimeError: out of", "talker")
    assert isinstance(info.to_exception(), StageFailedError)
    assert ErrorInfo.of(KeyError("x")).code == "internal"
    assert ErrorInfo.of(QueueFullError("full"), stage="talker").stage == "talker"
    assert type(ErrorInfo("from the future", "m").to_exception()) is OmniError


def test_messages_name_value_and_accepted() -> None:
    """Fault: an endless value is printed whole."""
    assert str(InvalidRequestError.of("n", 0, "1 to 128")) == "n: 0 is not accepted; accepted: 1 to 128"
    assert len(str(ConfigError.of("devices", "x" * 10_000, "cpu"))) < 250
    assert str(ConfigError.unknown("max_num_seq", ["max_num_seqs"])) == (
        "max_num_seq: unknown key; did you mean 'max_num_seqs'?"
    )
    assert did_you_mean("zzz", ["b", "a"]) == "; accepted: a, b"


def test_an_endless_name_is_compared_with_nothing_and_not_repeated() -> None:
    """Fault: minutes go into finding out what a name of megabytes is near to, while nobody else is answered."""
    assert did_you_mean("ab" * 10_000_000, ["abab"]) == "; accepted: abab"
    assert len(str(InvalidRequestError.unknown("x" * 10_000, ["a"]))) < 200
