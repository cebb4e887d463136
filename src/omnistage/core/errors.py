"""Every error omnistage raises on purpose, and the form in which one crosses a process border.

    OmniError                          code                status (mapped once, in serve)
    ├── InvalidRequestError            invalid_request     400   field, value, accepted
    ├── ConfigError                    config              (start)   key, value, accepted
    ├── ModelNotFoundError             model_not_found     404   what was looked for, and where
    ├── BrokenCheckpointError          broken_checkpoint   (start)
    ├── FetchError                     fetch               (cli)
    ├── UnsupportedByModelError        unsupported         501
    ├── QueueFullError                 queue_full          429   retry_after_s
    ├── StageUnavailableError          stage_unavailable   503   stage, retry_after_s
    ├── StageFailedError               stage_failed        500   stage
    ├── RequestTimeoutError            timed_out           504
    ├── RequestAbortedError            aborted             499
    ├── ClientTooSlowError             client_too_slow     (stream)
    ├── PayloadTooLargeError           payload_too_large   413   the edge or field that overflowed
    ├── ConnectorError                 connector           500   a payload that cannot be read any more
    └── EngineClosedError              closed              503

Knows nothing of HTTP, stages or processes. Messages are single lines and name the offending value and what is accepted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

import msgspec


class OmniError(Exception):
    """Base of all errors raised on purpose. `stage`, `field` and `retry_after_s` are None where they mean nothing."""

    code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidRequestError(OmniError):
    """A field of a request is out of range, of the wrong type, unknown, or names something absent."""

    code = "invalid_request"

    @classmethod
    def of(cls, field: str, value: object, accepted: str) -> InvalidRequestError:
        """`field` as the caller wrote it; `accepted` says what would have been right ("an integer >= 1")."""
        return cls(f"{field}: {_shown(value)} is not accepted; accepted: {accepted}", field=field)

    @classmethod
    def no_text(cls, field: str) -> InvalidRequestError:
        """JSON and command lines can spell halves of characters, which no encoding can write."""
        return cls(f"{field}: holds a lone surrogate, half a character; accepted: Unicode text", field=field)

    @classmethod
    def unknown(cls, field: str, known: Iterable[str]) -> InvalidRequestError:
        name = shortened(field)
        return cls(f"{name}: unknown field{did_you_mean(field, known)}", field=name)


class ConfigError(OmniError):
    """A pipeline, a deploy file, a command-line flag or an environment variable is wrong."""

    code = "config"

    @classmethod
    def of(cls, key: str, value: object, accepted: str) -> ConfigError:
        return cls(f"{key}: {_shown(value)} is not accepted; accepted: {accepted}", field=key)

    @classmethod
    def unknown(cls, key: str, known: Iterable[str]) -> ConfigError:
        return cls(f"{key}: unknown key{did_you_mean(key, known)}", field=key)


class ModelNotFoundError(OmniError):
    code = "model_not_found"


class BrokenCheckpointError(OmniError):
    code = "broken_checkpoint"


class FetchError(OmniError):
    code = "fetch"


class UnsupportedByModelError(OmniError):
    code = "unsupported"


class QueueFullError(OmniError):
    code = "queue_full"


class StageUnavailableError(OmniError):
    code = "stage_unavailable"


class StageFailedError(OmniError):
    code = "stage_failed"


class RequestTimeoutError(OmniError):
    code = "timed_out"


class RequestAbortedError(OmniError):
    code = "aborted"


class ClientTooSlowError(OmniError):
    code = "client_too_slow"


class PayloadTooLargeError(OmniError):
    code = "payload_too_large"


class ConnectorError(OmniError):
    code = "connector"


class EngineClosedError(OmniError):
    code = "closed"


_LONGEST_NAME = 64  # nothing longer is near to a name of ours, and comparing takes as long as it is

_BY_CODE: dict[str, type[OmniError]] = {
    error.code: error
    for error in (
        InvalidRequestError,
        ConfigError,
        ModelNotFoundError,
        BrokenCheckpointError,
        FetchError,
        UnsupportedByModelError,
        QueueFullError,
        StageUnavailableError,
        StageFailedError,
        RequestTimeoutError,
        RequestAbortedError,
        ClientTooSlowError,
        PayloadTooLargeError,
        ConnectorError,
        EngineClosedError,
    )
}


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as a value: what travels between processes and stands in an output's `error`."""

    code: str
    message: str
    stage: str | None = None
    field: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: BaseException, *, stage: str | None = None) -> ErrorInfo:
        """A foreign exception becomes `stage_failed` (with a stage) or `internal`, its type named in the message."""
        if isinstance(error, OmniError):
            return cls(error.code, error.message, error.stage or stage, error.field, error.retry_after_s)
        code = StageFailedError.code if stage else OmniError.code
        return cls(code, f"{type(error).__name__}: {error}".splitlines()[0], stage)

    def to_exception(self) -> OmniError:
        kind = _BY_CODE.get(self.code, OmniError)
        return kind(self.message, stage=self.stage, field=self.field, retry_after_s=self.retry_after_s)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for a near miss, else `; accepted: a, b, c`."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6) if len(word) <= _LONGEST_NAME else []
    return f"; did you mean {near[0]!r}?" if near else f"; accepted: {', '.join(names)}"


def shortened(text: str, most: int = 120) -> str:
    """`text`, cut to `most` characters: what callers wrote is repeated to them, but not at any length."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _shown(value: object) -> str:
    return shortened(repr(value))
