"""One line per event on stderr: time, level, logger, message, then the fields of the request it is about.

    2026-05-04 10:11:12.345 INFO omnistage.serve: request ended request=3f2a stage=speaker attempt=1

Fields are given as `extra={"request": ..., "stage": ..., "attempt": ...}`. Knows nothing of what is logged.
"""

from __future__ import annotations

import logging
import time
from typing import TextIO

FIELDS = ("request", "stage", "attempt")
LEVELS = ("debug", "info", "warning", "error")
ROOT = "omnistage"


class LineFormatter(logging.Formatter):
    """Formats a record as one line: line breaks inside a message become spaces, a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        message = " ".join(record.getMessage().splitlines())
        known = record.__dict__
        fields = "".join(f" {name}={known[name]}" for name in FIELDS if known.get(name) is not None)
        line = f"{moment}.{int(record.msecs):03d} {record.levelname} {record.name}: {message}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def logged_level() -> str:
    """The least of LEVELS that this process logs."""
    effective = logging.getLogger(ROOT).getEffectiveLevel()
    numbers = logging.getLevelNamesMapping()
    return next((level for level in LEVELS if numbers[level.upper()] >= effective), LEVELS[-1])


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Sends what this package logs to `stream` (stderr by default). Calling it again replaces the earlier setting."""
    logger = logging.getLogger(ROOT)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
