"""The control plane's sockets: a driver listens, every worker connects; messages of wire.messages in msgpack.

    u64 length, little-endian, then the message; the first message of a connection is the worker's identity

Stream sockets of one host, without a thread in between: a message wakes the process that it is for and nobody else, and what a
process sent before it died is still there to be read. Nothing polls: each channel offers one descriptor (`fileno`), an epoll over
its sockets, that is readable while something waits to be read, to be accepted or to leave. Nothing waits either: what a socket
does not take leaves later, from within `receive`. Bounds: BATCH messages per `receive`, QUEUE messages that wait to leave per peer.
"""

from __future__ import annotations

import itertools
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from omnistage.wire.worker import FromWorker, ToWorker

BATCH = 256
QUEUE = 65536
TOGETHER_NBYTES = 16 * 1024
"""What is sent at once: the reader reads on while the next messages are made."""
LAST_WORDS_S = 1.0
"""How long a worker that ends tries to get rid of what it has said."""

_CHUNK_NBYTES = 256 * 1024
_BACKLOG = 1024
_HEAD = struct.Struct("<Q")
_PEER = struct.Struct("3i")  # pid, uid, gid


class _LineState:
    """One connection: what has come of the next message, and what has not left yet. `identity` is None until it has come."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self.identity: str | None = None
        self.is_open = True
        self.waiting: deque[memoryview] = deque()
        self._partial = bytearray()

    def read(self, into: memoryview) -> int | None:
        """Bytes that were read; 0 at the end of the connection, None if there is nothing now."""
        try:
            return self.socket.recv_into(into)
        except BlockingIOError:
            return None
        except OSError:  # reset: the peer died with something unread
            return 0

    def split(self, data: bytes) -> list[memoryview]:
        """The messages that are whole with `data`."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._wanted():
                return []
            data, self._partial = bytes(self._partial), bytearray()
        whole, view, at = [], memoryview(data), 0
        while at + _HEAD.size <= len(data):
            body = at + _HEAD.size
            end = body + _HEAD.unpack_from(data, at)[0]
            if end > len(data):
                break
            whole.append(view[body:end])
            at = end
        if at < len(data):
            self._partial += view[at:]
        return whole

    def _wanted(self) -> int:
        """Bytes of the message that has come in part, its head included; of the head alone while that is not whole."""
        is_known = len(self._partial) >= _HEAD.size
        return _HEAD.size + (_HEAD.unpack_from(self._partial)[0] if is_known else 0)

    def write(self, messages: Sequence[bytes]) -> bool:
        """In one system call, where the socket takes them: each of several would wake the peer. False if QUEUE messages wait
        already. What is for a peer that is gone is dropped: its death is told elsewhere."""
        if len(self.waiting) >= QUEUE:
            return False
        framed = [part for message in messages for part in (_HEAD.pack(len(message)), message)]
        sent = 0 if self.waiting else self._sent(framed[:BATCH])
        if sent < sum(map(len, framed)):
            self.waiting.append(memoryview(b"".join(framed))[sent:])
        return True

    def flush(self) -> None:
        """Sends what waits, as far as the socket takes it."""
        while self.waiting:
            together = list(itertools.islice(self.waiting, BATCH))
            sent = self._sent(together)
            if not sent:
                return
            while self.waiting and sent >= len(self.waiting[0]):
                sent -= len(self.waiting.popleft())
            if sent:
                self.waiting[0] = self.waiting[0][sent:]

    def _sent(self, buffers: list[Any]) -> int:
        try:
            return self.socket.sendmsg(buffers)
        except BlockingIOError:
            return 0
        except OSError:
            self.waiting.clear()
            return sum(len(buffer) for buffer in buffers)


class _Lines:
    """The connections of one channel, and one descriptor for all of them. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._raised = False
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._lines: dict[int, _LineState] = {}
        self._listener: socket.socket | None = None
        self._whole: deque[tuple[_LineState, memoryview]] = deque()
        self._chunk = memoryview(bytearray(_CHUNK_NBYTES))

    def fileno(self) -> int:
        return self._epoll.fileno()

    def listen(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(address)
        self._listener.listen(_BACKLOG)
        self._epoll.register(self._listener, select.EPOLLIN)

    def add(self, end: socket.socket) -> _LineState:
        line = self._lines[end.fileno()] = _LineState(end)
        self._epoll.register(end, select.EPOLLIN)
        return line

    def send(self, line: _LineState, *messages: bytes) -> bool:
        with self.lock:
            if self.closed:
                return False
            had = bool(line.waiting)
            taken = line.write(messages)
            if had or line.waiting:
                self._watch(line, had)
            return taken

    def receive(self) -> list[tuple[_LineState, memoryview]]:
        """At most BATCH messages of all lines; the descriptor stays readable if there are more. Of a line that says much a chunk is
        read at a time, or as much as makes one message whole: the others wait meanwhile."""
        with self.lock:
            if self.closed:
                return []
            more = True
            while more and not self._whole:
                more = False
                for descriptor, events in self._ready():
                    more |= self._serve(descriptor, events)
            batch = [self._whole.popleft() for _ in range(min(BATCH, len(self._whole)))]
            self._raise(bool(self._whole))
            return batch

    def _ready(self) -> list[tuple[int, int]]:
        """A worker's only line is read without being asked whether it can be."""
        if self._listener is not None or len(self._lines) != 1:
            return self._epoll.poll(0)
        ((descriptor, line),) = self._lines.items()
        return [(descriptor, select.EPOLLIN | (select.EPOLLOUT if line.waiting else 0))]

    def _serve(self, descriptor: int, events: int) -> bool:
        """Does what a descriptor is ready for; True if it may be ready for more."""
        line = self._lines.get(descriptor)
        if line is None:
            return descriptor != self._wake and self._accept()
        if events & select.EPOLLOUT:
            line.flush()
            self._watch(line, True)
        if not events & ~select.EPOLLOUT:
            return False
        count = line.read(self._chunk)
        if count:
            for message in line.split(bytes(self._chunk[:count])):
                self._whole.append((line, message))
        elif count == 0:
            self._drop(line)
        return count == _CHUNK_NBYTES

    def _accept(self) -> bool:
        assert self._listener is not None
        with suppress(OSError):  # it has gone again
            end, _ = self._listener.accept()
            _, user, _ = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user == os.geteuid():  # every user of the host can see the address
                self.add(end)
            else:
                end.close()
        return True

    def _drop(self, line: _LineState) -> None:
        self._epoll.unregister(line.socket)
        del self._lines[line.socket.fileno()]
        line.waiting.clear()
        line.is_open = False
        line.socket.close()

    def _watch(self, line: _LineState, had_waiting: bool) -> None:
        """Whether it can be written to is asked while something waits to leave, and only then."""
        waits = bool(line.waiting)
        if waits != had_waiting and line.is_open:
            self._epoll.modify(line.socket, select.EPOLLIN | (select.EPOLLOUT if waits else 0))

    def _raise(self, raised: bool) -> None:
        if raised and not self._raised:
            os.eventfd_write(self._wake, 1)
        elif self._raised and not raised:
            os.eventfd_read(self._wake)
        self._raised = raised

    def close(self, linger_s: float = 0.0) -> None:
        """Idempotent. What waits has `linger_s` to leave."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            deadline = time.monotonic() + linger_s
            for line in self._lines.values():
                with suppress(OSError):
                    for rest in line.waiting:
                        line.socket.settimeout(max(0.001, deadline - time.monotonic()))
                        line.socket.sendall(rest)
                line.socket.close()
            self._lines.clear()
            if self._listener is not None:
                self._listener.close()
            self._epoll.close()
            os.close(self._wake)


class DriverChannel:
    """The driver's end. Peers are named by the identity they connect with ("process/replica/epoch/token")."""

    def __init__(self) -> None:
        self._bound: _Lines | None = None
        self._peers: dict[str, _LineState] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromWorker)
        self.malformed = 0

    def bind(self) -> str:
        """Listens at a fresh abstract address (no file, nothing to clean up) and returns it."""
        address = f"omnistage-{secrets.token_hex(16)}"
        self._bound = _Lines()
        self._bound.listen(f"\0{address}")
        return address

    @property
    def _lines(self) -> _Lines:
        assert self._bound is not None, "bind comes first"
        return self._bound

    def fileno(self) -> int:
        """Readable while messages wait."""
        return self._lines.fileno()

    def send(self, identity: str, message: ToWorker) -> bool:
        """False if there is no such peer (not yet, or no more) or it has stopped reading."""
        line = self._peers.get(identity)
        if line is None:
            return False
        if not line.is_open:
            del self._peers[identity]
            return False
        return self._lines.send(line, self._encoder.encode(message))

    def receive(self) -> list[tuple[str, FromWorker]]:
        """What has come, at most BATCH messages, without waiting. Malformed messages are counted and dropped."""
        messages: list[tuple[str, FromWorker]] = []
        for line, body in self._lines.receive():
            try:
                if line.identity is None:
                    line.identity = str(body, "utf-8")
                    self._peers[line.identity] = line
                else:
                    messages.append((line.identity, self._decoder.decode(body)))
            except (ValueError, msgspec.MsgspecError):
                self.malformed += 1
        return messages

    def close(self) -> None:
        """Idempotent; fine also without `bind`."""
        if self._bound is not None:
            self._bound.close()
            self._peers.clear()


class WorkerChannel:
    """A worker's end; `send` may be called from any thread. Raises ConnectionError where no driver listens at `address`."""

    def __init__(self, address: str, identity: str) -> None:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(f"\0{address}")
        except OSError:
            end.close()
            raise
        self._lines = _Lines()
        self._line = self._lines.add(end)
        self._lines.send(self._line, identity.encode())
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToWorker)

    def fileno(self) -> int:
        """Readable while messages wait."""
        return self._lines.fileno()

    def send(self, *messages: FromWorker) -> bool:
        """False if the driver has stopped reading (QUEUE messages wait) or the channel is closed. Of several messages that are
        ready at once the small ones leave together; a large one waits for no other."""
        held: list[bytes] = []
        for message in messages:
            held.append(self._encoder.encode(message))
            if sum(map(len, held)) >= TOGETHER_NBYTES:
                if not self._lines.send(self._line, *held):
                    return False
                held = []
        return self._lines.send(self._line, *held) if held else True

    def receive(self) -> list[ToWorker]:
        """What has come, at most BATCH messages, without waiting."""
        return [self._decoder.decode(body) for _, body in self._lines.receive()]

    def close(self) -> None:
        """Waits at most LAST_WORDS_S for what has been sent to leave."""
        self._lines.close(LAST_WORDS_S)
