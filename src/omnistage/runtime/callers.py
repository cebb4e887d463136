"""What callers are told, so that a fault of theirs stays theirs, and what the log is told of the ends of their requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from omnistage.core.errors import ErrorInfo, InvalidRequestError, QueueFullError
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Sink
from omnistage.wire.messages import Close

logger = logging.getLogger(__name__)

CALLERS_FAULTS = (InvalidRequestError.code, QueueFullError.code)

ControlDone = Callable[[dict[str, Any], ErrorInfo | None], None]


def log_end(command: Close) -> None:
    """What went wrong is worth a line; what callers did wrong, or too often, only where every end is, and without the values that
    they have sent: those may be what they asked."""
    error = command.error
    trouble = command.outcome in ("failed", "timed_out") and error is not None and error.code not in CALLERS_FAULTS
    told = {"request": command.request_id, "stage": error.stage if error else None, "attempt": command.attempts}
    why = "" if error is None else f" ({error.code}): {error.field if error.code in CALLERS_FAULTS else error.message}"
    message = command.outcome + why.removesuffix(": None")
    logger.log(logging.INFO if trouble else logging.DEBUG, "request %s", message, extra=told)


def say(sink: Sink, message: ClientItem | ClientRestarted | ClientClosed) -> bool:
    """False if the sink has failed: a caller's fault must not end the others' requests."""
    try:
        sink(message)
    except Exception:
        logger.exception("the sink of a request has failed; it is given up", extra={"request": message.request_id})
        return False
    return True


def answer(done: ControlDone, results: dict[str, Any], error: ErrorInfo | None) -> None:
    """Like `say`, for the caller of a control call."""
    try:
        done(results, error)
    except Exception:
        logger.exception("the caller of a control call has failed to take its answer")
