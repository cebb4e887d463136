"""The control plane's sockets: one ROUTER in the driver, one DEALER in every worker, messages of wire.messages in msgpack.

Nothing here polls. zmq signals on its descriptor only at edges, so each channel offers a descriptor of its own (`fileno`)
that stays readable while messages wait: a nested epoll over zmq's descriptor and an eventfd that is raised whenever a send
or a full batch may have swallowed the edge. Bounds: BATCH messages per `receive`, QUEUE messages per direction and peer.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
from typing import Any

import msgspec
import zmq

from omnistage.wire.worker import FromWorker, ToWorker

BATCH = 256
QUEUE = 65536


class _Socket:
    """A zmq socket that may be used from several threads and waited for with any selector."""

    def __init__(self, kind: int) -> None:
        self._context = zmq.Context(io_threads=1)
        self.zmq: zmq.Socket[Any] = self._context.socket(kind)
        self.zmq.set_hwm(QUEUE)
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._closed = False

    def watch(self) -> None:
        """To be called once, after bind or connect."""
        self._epoll.register(self.zmq.fileno(), select.EPOLLIN)
        self._raise_if_waiting()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def send(self, frames: list[bytes]) -> bool:
        """False if the peer is unknown, its queue is full, or the socket is closed."""
        with self._lock:
            if self._closed:
                return False
            try:
                self.zmq.send_multipart(frames, zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                    return False
                raise
            finally:
                self._raise_if_waiting()
            return True

    def receive(self) -> list[list[bytes]]:
        """At most BATCH multipart messages; the descriptor stays readable if there are more."""
        batch: list[list[bytes]] = []
        with self._lock:
            if self._closed:
                return batch
            self._lower()
            while len(batch) < BATCH:
                try:
                    batch.append(self.zmq.recv_multipart(zmq.NOBLOCK))
                except zmq.Again:
                    break
            self._raise_if_waiting()
        return batch

    def close(self, linger_ms: int) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._epoll.close()
            os.close(self._wake)
            self.zmq.close(linger_ms)
        self._context.term()

    def _raise_if_waiting(self) -> None:
        if int(self.zmq.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            os.eventfd_write(self._wake, 1)

    def _lower(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return


class DriverChannel:
    """The driver's end. Peers are named by the identity they connect with ("process/replica/epoch/token")."""

    def __init__(self) -> None:
        self._bound: _Socket | None = None  # zmq's threads start with `bind`, so a driver that never runs holds nothing
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromWorker)
        self.malformed = 0

    def bind(self) -> str:
        """Binds to a fresh abstract address (no file, nothing to clean up) and returns it."""
        address = f"ipc://@omnistage-{secrets.token_hex(16)}"
        self._bound = _Socket(zmq.ROUTER)
        self._bound.zmq.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._bound.zmq.bind(address)
        self._bound.watch()
        return address

    @property
    def _socket(self) -> _Socket:
        assert self._bound is not None, "bind comes first"
        return self._bound

    def fileno(self) -> int:
        """Readable while messages wait."""
        return self._socket.fileno()

    def send(self, identity: str, message: ToWorker) -> bool:
        """False if there is no such peer (not yet, or no more) or it has stopped reading."""
        return self._socket.send([identity.encode(), self._encoder.encode(message)])

    def receive(self) -> list[tuple[str, FromWorker]]:
        """What has come, at most BATCH messages, without waiting. Malformed messages are counted and dropped."""
        messages: list[tuple[str, FromWorker]] = []
        for frames in self._socket.receive():
            try:
                identity, body = frames
                messages.append((identity.decode(), self._decoder.decode(body)))
            except (ValueError, msgspec.MsgspecError):
                self.malformed += 1
        return messages

    def close(self) -> None:
        """Idempotent; fine also without `bind`."""
        if self._bound is not None:
            self._bound.close(linger_ms=0)


class WorkerChannel:
    """A worker's end; `send` may be called from any thread."""

    def __init__(self, address: str, identity: str) -> None:
        self._socket = _Socket(zmq.DEALER)
        self._socket.zmq.setsockopt(zmq.ROUTING_ID, identity.encode())
        self._socket.zmq.connect(address)
        self._socket.watch()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToWorker)

    def fileno(self) -> int:
        """Readable while messages wait."""
        return self._socket.fileno()

    def send(self, message: FromWorker) -> bool:
        """False if the driver has stopped reading (QUEUE messages wait) or the channel is closed."""
        return self._socket.send([msgspec.msgpack.encode(message)])

    def receive(self) -> list[ToWorker]:
        """What has come, at most BATCH messages, without waiting."""
        return [self._decoder.decode(frames[-1]) for frames in self._socket.receive()]

    def close(self) -> None:
        """Waits at most a second for what has been sent to leave."""
        self._socket.close(linger_ms=1000)
