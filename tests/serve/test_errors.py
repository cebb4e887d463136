"""Every error has a status, a shape, and, where it helps, a time to come back."""

import pytest

from omnistage.core import errors as core
from omnistage.core.errors import OmniError, QueueFullError, StageFailedError
from omnistage.serve.errors import STATUS_OF, InvalidKeyError, error_object, headers_of, status_of

OF_A_START = {"ConfigError", "BrokenCheckpointError", "FetchError"}


def test_every_error_a_request_can_meet_has_its_status() -> None:
    """Fault: a new error goes out as 500 because nobody has thought of it."""
    kinds = {kind for kind in vars(core).values() if isinstance(kind, type) and issubclass(kind, OmniError)}
    missing = {kind.__name__ for kind in kinds if kind not in STATUS_OF} - OF_A_START
    assert missing == {"OmniError"}
    assert status_of(OmniError("x")) == 500


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (core.InvalidRequestError("x"), "invalid_request_error"),
        (InvalidKeyError("x"), "authentication_error"),
        (QueueFullError("x"), "rate_limit_error"),
        (StageFailedError("x"), "server_error"),
    ],
)
def test_types_are_those_of_openai(error: OmniError, kind: str) -> None:
    """Fault: clients that look at the type cannot tell whose fault it was."""
    assert error_object(error)["error"]["type"] == kind


def test_when_to_come_back() -> None:
    """Fault: zero seconds, or a fraction, which the header does not know."""
    assert headers_of(QueueFullError("x", retry_after_s=0.0)) == {"Retry-After": "1"}
    assert headers_of(QueueFullError("x", retry_after_s=4.2)) == {"Retry-After": "5"}
    assert headers_of(StageFailedError("x")) == {}
    assert headers_of(InvalidKeyError("x")) == {"WWW-Authenticate": "Bearer"}


def test_a_stage_is_named_once_and_only_where_one_failed() -> None:
    """Fault: the same refusal reads differently over HTTP and in Python, or a stage is named twice."""
    messages = [
        error_object(error)["error"]["message"]
        for error in (
            StageFailedError("broke", stage="speaker"),
            StageFailedError("speaker died", stage="speaker"),
            core.InvalidRequestError("prompt: too long", stage="thinker"),
        )
    ]
    assert messages == ["broke (stage speaker)", "speaker died", "prompt: too long"]
