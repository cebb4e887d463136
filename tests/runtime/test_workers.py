"""The words for a worker's end."""

import pytest

from omnistage.runtime.workers import last_words


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (1, "ValueError: no", "exited with code 1: ValueError: no"),
        (0, "", "exited with code 0"),
        (-9, "", "killed by SIGKILL"),
        (-9, "WARNING a batch of 3 failed", "killed by SIGKILL"),
        (None, "", "ended, nobody saw how"),
        (-11, "Fatal Python error", "killed by SIGSEGV: Fatal Python error"),
    ],
)
def test_last_words(code: int | None, line: str, expected: str) -> None:
    """Fault: "exit code -11", or what was said of one request given as the reason to others."""
    assert last_words(code, line) == expected
