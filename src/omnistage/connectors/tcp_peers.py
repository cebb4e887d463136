"""What the tcp connector says over its sockets, and the readers' side of them: one DEALER for each peer, and its fetches.

    reader --Ask--> owner --Answer (, bytes)--> reader        reader --Free--> owner

Lives in the connector's IO thread. A peer that is lost, or cannot be reached, fails what was asked of it at once; a fetch that
gets no answer fails at its deadline. Times are seconds of time.monotonic.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

LARGEST_QUESTION_NBYTES = 4096
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Place(msgspec.Struct, frozen=True):
    """Which payload of whom; `location` is "host:port" of its owner."""

    location: str
    owner: str
    epoch: int
    key: int


class Ask(msgspec.Struct, frozen=True, tag=True):
    """`number` comes back with the answer."""

    token: str
    number: int
    place: Place


class Free(msgspec.Struct, frozen=True, tag=True):
    """Nobody reads the payload any more."""

    token: str
    place: Place


class Answer(msgspec.Struct, frozen=True):
    """Followed by the payload's bytes, unless `error` says why there are none."""

    number: int
    error: str = ""


@dataclass(slots=True)
class FetchState:
    """One payload on its way here. `ended`: `data` or `error` is set, and does not change any more."""

    place: Place
    due_s: float
    ended: threading.Event = field(default_factory=threading.Event)
    data: memoryview | None = None
    error: str = ""

    def end(self, data: memoryview | None = None, error: str = "") -> None:
        self.data, self.error = data, error
        self.ended.set()


class PeerState:
    """The connection to one owner and what was asked of it, by number."""

    def __init__(self, context: zmq.Context[Any], location: str) -> None:
        """Raises zmq.ZMQError for what is no address."""
        self.location = location
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.monitor = self.socket.get_monitor_socket(_LOST)
        self.asked: dict[int, FetchState] = {}
        try:
            self.socket.connect(f"tcp://{location}")
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, message: Ask | Free) -> bool:
        """False if its queue is full."""
        try:
            self.socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[FetchState]:
        """Ends the fetches whose answers have come."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                answer = msgspec.msgpack.decode(frames[0].buffer, type=Answer)
            except msgspec.MsgspecError:
                continue  # whoever listens there speaks another language: what was asked fails at its deadline
            fetch = self.asked.pop(answer.number, None)
            if fetch is None:
                continue  # it was given up
            if answer.error or len(frames) != 2:
                fetch.end(error=answer.error or "its answer holds no payload")
            else:
                fetch.end(data=memoryview(frames[1].buffer).toreadonly())
            yield fetch

    def is_lost(self) -> bool:
        """True if its monitor has told of a connection that broke or was refused."""
        lost = False
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            lost = True
        return lost

    def fail(self, error: str) -> list[FetchState]:
        """Ends everything that was asked of it."""
        failed = list(self.asked.values())
        self.asked.clear()
        for fetch in failed:
            fetch.end(error=error)
        return failed

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
