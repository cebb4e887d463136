"""Messages of several frames over a stream socket between two processes of one host.

    u32 number of frames, u64 length of each, then their bytes, all little-endian

Neither end ever waits: what the socket does not take is kept, in order, and leaves with `flush` when it is writable again; the
sender bounds how much that may become (`waiting_nbytes`). A large frame is read straight into memory of its own, so its bytes
are copied into the socket and out of it, and no further. The end of the other process, however it came, is the end of the
stream, after everything it has sent. Knows nothing of what travels.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview

SENT_AT_ONCE = 256
"""Frames per system call."""
READS = 64
"""Reads per `receive`; the socket stays readable if there is more."""
_CHUNK_NBYTES = 64 * 1024
_COUNT = struct.Struct("<I")


class FrameStream:
    """One end; owns its socket. `send` and `flush` may be called from any thread, `receive` from one."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()
        self._waiting_nbytes = 0
        self._incoming = _IncomingState()
        self._chunk = memoryview(bytearray(_CHUNK_NBYTES))
        self.ended = False
        """Everything that the other end has sent was received, and it is gone."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting_nbytes(self) -> int:
        """Bytes that wait until the other end has read more."""
        return self._waiting_nbytes

    def send(self, frames: Sequence[Buffer]) -> None:
        """Takes a message over; its frames must not change any more. What is sent to an end that is gone is dropped."""
        views = [memoryview(frame).cast("B") for frame in frames]
        head = struct.pack(f"<I{len(views)}Q", len(views), *(view.nbytes for view in views))
        with self._lock:
            for view in (memoryview(head), *views):
                if view.nbytes:
                    self._waiting.append(view)
                    self._waiting_nbytes += view.nbytes
            self._write()

    def flush(self) -> None:
        """Sends of what waits as much as the socket takes at once: an other end that reads as fast must not keep this one here."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        try:
            sent = self._socket.sendmsg(itertools.islice(self._waiting, SENT_AT_ONCE))
        except BlockingIOError:
            return
        except OSError:  # the other end is gone, which `receive` tells
            self._waiting.clear()
            self._waiting_nbytes = 0
            return
        self._waiting_nbytes -= sent
        while sent:
            view = self._waiting.popleft()
            if view.nbytes > sent:
                self._waiting.appendleft(view[sent:])
                return
            sent -= view.nbytes

    def receive(self) -> list[list[bytearray]]:
        """The messages that are whole, without waiting. Sets `ended` when no more can come."""
        for _ in range(READS):
            direct = self._incoming.room.nbytes >= _CHUNK_NBYTES
            into = self._incoming.room if direct else self._chunk
            try:
                received = self._socket.recv_into(into)
            except BlockingIOError:
                break
            except OSError:  # reset: it died with something unread
                received = 0
            if received == 0:
                self.ended = True
                break
            if direct:
                self._incoming.filled(received)
            else:
                self._incoming.take(into[:received])
        return self._incoming.whole()

    def close(self) -> None:
        """What waits is dropped. Idempotent."""
        with self._lock:
            self._waiting.clear()
            self._waiting_nbytes = 0
            self._socket.close()


class _IncomingState:
    """A message in the making, and those that are whole. `room` is what the next bytes of the stream go into: a number of
    frames, their lengths, or the frame itself; it is never empty."""

    def __init__(self) -> None:
        self._whole: list[list[bytearray]] = []
        self._begin()

    def _begin(self) -> None:
        self._lengths: deque[int] | None = None
        self._frames: list[bytearray] = []
        self._expect(_COUNT.size)

    def _expect(self, nbytes: int) -> None:
        self._piece = bytearray(nbytes)
        self.room = memoryview(self._piece)

    def take(self, view: memoryview) -> None:
        while view.nbytes:
            taken = min(view.nbytes, self.room.nbytes)
            self.room[:taken] = view[:taken]
            self.filled(taken)
            view = view[taken:]

    def filled(self, nbytes: int) -> None:
        """`nbytes` more of `room` are there."""
        self.room = self.room[nbytes:]
        while not self.room.nbytes:
            self._next_piece()

    def _next_piece(self) -> None:
        """`room` is full; what follows may be an empty frame, and full at once."""
        if self._lengths is None:
            if len(self._piece) == _COUNT.size:
                self._expect_lengths()
                return
            self._lengths = deque(struct.unpack(f"<{len(self._piece) // 8}Q", self._piece))
        else:
            self._frames.append(self._piece)
        if self._lengths:
            self._expect(self._lengths.popleft())
        else:
            self._whole.append(self._frames)
            self._begin()

    def _expect_lengths(self) -> None:
        [count] = _COUNT.unpack(self._piece)
        self._expect(8 * count)

    def whole(self) -> list[list[bytearray]]:
        whole, self._whole = self._whole, []
        return whole
