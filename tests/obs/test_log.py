"""Log lines: one per event, with the request's fields."""

import io
import logging

from omnistage.obs.log import LineFormatter, configure_logging


def test_a_line_has_the_fields_of_its_request() -> None:
    """Fault: a message that spans lines, or a line that does not say which request it is about."""
    stream = io.StringIO()
    configure_logging("info", stream)
    configure_logging("info", stream)
    logger = logging.getLogger("omnistage.test")
    logger.info("two\nlines", extra={"request": "r1", "attempt": 2})
    logger.debug("not shown")
    [line] = stream.getvalue().splitlines()
    assert line.endswith("INFO omnistage.test: two lines request=r1 attempt=2")


def test_a_traceback_is_kept() -> None:
    """Fault: an error is logged without the place where it happened."""
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError as error:
        record = logging.LogRecord("omnistage", 40, "f", 1, "broke", (), (type(error), error, error.__traceback__))
    assert "Traceback" in LineFormatter().format(record)
