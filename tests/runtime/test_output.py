"""What a worker writes, on its way to the server's stderr."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from omnistage.runtime.output import KEPT_LINES, LINE_NBYTES, WorkerOutput


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    yield ours, theirs
    os.close(ours)
    with suppress(OSError):  # a test may have closed it
        os.close(theirs)


def test_lines_are_passed_on_whole_with_the_name_of_the_worker(
    pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: halves of lines of two workers in one line."""
    output = WorkerOutput(pipe[0], "voice/0")
    os.write(pipe[1], b"first\nsec")
    assert output.pump()
    assert capsys.readouterr().err == "[voice/0] first\n"
    os.write(pipe[1], "ond \N{BELL}\n\n".encode())
    assert output.pump() and output.pump()
    assert capsys.readouterr().err == "[voice/0] second \N{BELL}\n"
    assert output.last_line == "second \N{BELL}"


def test_lines_that_nobody_reads_are_kept(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the runtime fails, and every request with it, at a worker's first line after who read the server's errors has gone."""
    read, write = os.pipe()
    os.close(read)
    closed = os.fdopen(write, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", closed)
    output = WorkerOutput(pipe[0], "voice/0")
    os.write(pipe[1], b"first\nsecond\n")
    try:
        assert output.pump() and output.last_line == "second"
    finally:
        with suppress(BrokenPipeError):
            closed.close()


def test_the_end_is_told_and_the_rest_is_read_once_the_worker_is_dead(pipe: tuple[int, int]) -> None:
    """Fault: the line that says why it died is lost, because it has no end."""
    output = WorkerOutput(pipe[0], "voice/0")
    os.write(pipe[1], b"Traceback\nValueError: no such voice")
    os.close(pipe[1])
    output.finish()
    assert output.last_line == "ValueError: no such voice"
    assert not output.pump()


def test_output_without_end_is_bounded(pipe: tuple[int, int]) -> None:
    """Fault: a worker that writes without line breaks fills the server's memory."""
    output = WorkerOutput(pipe[0], "voice/0")
    for _ in range(4):
        os.write(pipe[1], b"x" * (LINE_NBYTES // 2 + 1))
        output.pump()
    os.write(pipe[1], b"\n".join(b"%d" % number for number in range(3 * KEPT_LINES)) + b"\n")
    output.pump()
    assert len(output._lines) == KEPT_LINES and output.last_line == str(3 * KEPT_LINES - 1)
    assert len(output._unfinished) <= LINE_NBYTES


def test_a_dead_worker_whose_children_hold_the_pipe_is_not_waited_for(pipe: tuple[int, int]) -> None:
    """Fault: reading to end-of-file, which comes only when the last descendant has ended."""
    output = WorkerOutput(pipe[0], "voice/0")
    os.write(pipe[1], b"bye")
    output.finish()
    assert output.last_line == "bye"
