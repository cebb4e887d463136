"""What a worker writes to its stdout and stderr: passed on to the server's stderr with a prefix, the last lines kept.

Never waits for the worker. Bounds: KEPT_LINES lines, LINE_NBYTES bytes of one line (longer ones are broken).
"""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import suppress

KEPT_LINES = 20
LINE_NBYTES = 4096
_CHUNK_NBYTES = 65536
_REST_CHUNKS = 16


class WorkerOutput:
    """Lines of one worker; `descriptor` is non-blocking and belongs to someone else."""

    def __init__(self, descriptor: int, prefix: str) -> None:
        self._descriptor = descriptor
        self._prefix = prefix
        self._unfinished = b""
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def pump(self) -> bool:
        """Reads what there is, at most one chunk; False at end-of-file."""
        data = self._read()
        if data:
            self._take(data)
        return data != b""

    def finish(self) -> None:
        """Reads what a dead worker left in the pipe (others may still hold its other end) and ends the last line."""
        for _ in range(_REST_CHUNKS):
            data = self._read()
            if not data:
                break
            self._take(data)
        self._take(b"\n")

    @property
    def last_line(self) -> str:
        """The last line that is not blank, or "". An exception's last line names it."""
        return next((line for line in reversed(self._lines) if line.strip()), "")

    def _read(self) -> bytes | None:
        try:
            return os.read(self._descriptor, _CHUNK_NBYTES)
        except BlockingIOError:
            return None

    def _take(self, data: bytes) -> None:
        *whole, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > LINE_NBYTES:
            whole, self._unfinished = [*whole, self._unfinished], b""
        self._pass_on([line.decode(errors="replace").rstrip() for line in whole])

    def _pass_on(self, lines: list[str]) -> None:
        kept = [line for line in lines if line]
        self._lines.extend(kept)
        if kept and sys.stderr is not None:
            with suppress(OSError):  # nobody reads it any more, which is no reason to stop
                sys.stderr.write("".join(f"[{self._prefix}] {line}\n" for line in kept))
