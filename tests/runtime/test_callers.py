"""Callers that fail, and what the log says of requests' ends."""

import logging

import pytest

from omnistage.core.errors import ErrorInfo, InvalidRequestError
from omnistage.obs.log import LineFormatter
from omnistage.runtime.base import ClientClosed
from omnistage.runtime.callers import answer, log_end, say
from omnistage.wire.messages import Close

CLOSED = ClientClosed("r", "finished")


def broken(*_: object) -> None:
    raise ZeroDivisionError("the caller's own fault")


def test_a_sink_that_fails_is_given_up_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Fault: one caller's fault ends the runtime, or nobody can tell whose it was."""
    told: list[object] = []
    assert say(told.append, CLOSED) and told == [CLOSED]
    assert not say(broken, CLOSED)
    assert "request=r" in LineFormatter().format(caplog.records[-1])


def test_a_control_call_s_caller_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Fault: the runtime dies of whoever asked it something."""
    answer(broken, {}, None)
    assert "failed to take its answer" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("outcome", "error", "level"),
    [
        ("finished", None, "DEBUG"),
        ("aborted", ErrorInfo("aborted", "gone"), "DEBUG"),
        ("failed", ErrorInfo("queue_full", "too many"), "DEBUG"),
        ("failed", ErrorInfo("stage_failed", "broken", "speaker"), "INFO"),
        ("timed_out", ErrorInfo("timed_out", "too long"), "INFO"),
    ],
)
def test_an_end_in_trouble_is_a_line_with_request_stage_and_attempt(
    caplog: pytest.LogCaptureFixture, outcome: str, error: ErrorInfo | None, level: str
) -> None:
    """Fault: a failure that the log does not show, or a line for every refusal under overload."""
    caplog.set_level(logging.DEBUG, "omnistage")
    log_end(Close(request_id="r", outcome=outcome, error=error, attempts=2))  # type: ignore[arg-type]
    [record] = caplog.records
    assert record.levelname == level
    line = LineFormatter().format(record)
    stage = " stage=speaker" if error and error.stage else ""
    assert line.endswith(f" request=r{stage} attempt=2")


def test_what_a_caller_has_sent_wrongly_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Fault: a prompt in a log, by way of the message that refuses it."""
    caplog.set_level(logging.DEBUG, "omnistage")
    refused = ErrorInfo.of(InvalidRequestError.of("messages", "my secret", "less than that"))
    log_end(Close(request_id="r", outcome="failed", error=refused))
    assert caplog.records[-1].getMessage() == "request failed (invalid_request): messages"
    log_end(Close(request_id="r", outcome="failed", error=ErrorInfo("queue_full", "too many")))
    assert caplog.records[-1].getMessage() == "request failed (queue_full)"
