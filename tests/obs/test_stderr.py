"""What is said while nobody listens: nobody waits, little is kept, and what was lost is told."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from omnistage.obs.stderr import HELD_CHARS, UnwaitedStream

LINE = "a line of forty characters, with its end\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        with suppress(OSError):
            os.close(descriptor)


def within(call: threading.Thread, seconds: float = 20.0) -> None:
    call.start()
    call.join(seconds)
    assert not call.is_alive(), "it waits for a reader"


def test_nobody_waits_and_what_is_lost_is_told_in_its_place(pipe: tuple[int, int]) -> None:
    """Fault: a server stands still because its parent does not read its log; memory grows with it; lines are missing and nobody
    knows; they come in another order."""
    read, write = pipe
    stream = UnwaitedStream(write)
    many = 3 * HELD_CHARS // len(LINE)
    within(threading.Thread(target=lambda: [stream.write(f"{place:06d} {LINE}") for place in range(many)], daemon=True))
    assert not stream.drain(0.05)

    found: list[bytes] = []
    said = threading.Event()

    def listen() -> None:
        with open(read, "rb", closefd=False) as lines:
            for line in lines:
                found.append(line)
                if line == b"last\n":
                    said.set()

    threading.Thread(target=listen, daemon=True).start()
    assert stream.drain(20.0)
    stream.write("last\n")
    assert said.wait(20.0) and stream.drain(20.0)
    *kept, lost, last = found
    assert [int(line[:6]) for line in kept] == list(range(len(kept)))
    assert (lost, last) == (
        b"omnistage: %d lines are lost here: nobody read standard error\n" % (many - len(kept)),
        b"last\n",
    )
    assert HELD_CHARS // 2 < sum(map(len, kept)) <= HELD_CHARS + 2**16 + 2**13
    os.close(write)


def test_a_reader_that_has_gone_is_no_reason_to_stop(pipe: tuple[int, int]) -> None:
    """Fault: the writer dies of the broken pipe, and what comes later is held for ever."""
    read, write = pipe
    os.close(read)
    stream = UnwaitedStream(write)
    for _ in range(2):
        stream.write(LINE)
        assert stream.drain(20.0)


def test_a_pipe_that_does_not_block_gets_every_character(pipe: tuple[int, int]) -> None:
    """Fault: what a full pipe does not take at once is thrown away; a character that cannot be written ends the thread."""
    read, write = pipe
    os.set_blocking(write, False)
    stream = UnwaitedStream(write)
    text = "ä\udcff" + LINE * 5000
    stream.write(text)
    data = b""
    while len(data) < len(LINE) * 5000 and select.select([read], [], [], 10.0)[0]:
        data += os.read(read, 2**16)
    assert stream.drain(20.0)
    assert data == "ä\\udcff".encode() + (LINE * 5000).encode()


PROGRAM = """
import logging, sys, typer
from omnistage.obs.log import configure_logging
from omnistage.obs.stderr import never_wait_for_stderr
never_wait_for_stderr()
configure_logging()
logging.getLogger("omnistage.x").info("said at the very end")
typer.echo("told by a library that looks for a binary stream behind it", err=True)
print(sys.stderr.isatty(), sys.stderr.fileno())
"""


def test_a_program_s_last_words_come_out() -> None:
    """Fault: what was said just before the end dies with the thread; a program without standard error does not run."""
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False 2\n"
    assert done.stderr.splitlines()[1:] == ["told by a library that looks for a binary stream behind it"]
    assert done.stderr.splitlines()[0].endswith("omnistage.x: said at the very end")
    without = [
        "sh",
        "-c",
        'exec "$0" -c "$1" 2>&-',
        sys.executable,
        PROGRAM.partition("typer.echo")[0] + "print(sys.stderr)",
    ]
    assert subprocess.run(without, capture_output=True, text=True, timeout=60, check=True).stdout == "None\n"
