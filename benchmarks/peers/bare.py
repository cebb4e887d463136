"""The least that a way through a third process can take: a number over two pairs of sockets, and nothing done with it.

`Relay` is three processes, sender, relay and receiver, that wait in `recv`. What it takes beside a load is what this machine's
processors leave for anything of that shape.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import time
from typing import Any

version = "bare relay of three processes"
_SPAWN = multiprocessing.get_context("spawn")
_MADE_NS = struct.Struct("<q")


class Relay:
    """Kept warm; `measure` may be called again and again."""

    def __init__(self) -> None:
        asked, sending = socket.socketpair()
        self._asked = asked
        into, out = socket.socketpair()
        last, receiving = socket.socketpair()
        self._ways: Any = _SPAWN.SimpleQueue()
        self._processes = [
            _SPAWN.Process(target=_send, args=(sending, into), daemon=True),
            _SPAWN.Process(target=_pass_on, args=(out, last), daemon=True),
            _SPAWN.Process(target=_receive, args=(receiving, self._ways), daemon=True),
        ]
        for process in self._processes:
            process.start()
        for end in (sending, into, out, last, receiving):
            end.close()

    def measure(self, items: int, pause_s: float) -> list[int]:
        """Nanoseconds of each item's way."""
        self._asked.send(struct.pack("<qd", items, pause_s))
        ways: list[int] = self._ways.get()
        return ways

    def close(self) -> None:
        self._asked.close()
        for process in self._processes:
            process.join(10)


def _send(asked: socket.socket, into: socket.socket) -> None:
    while wanted := asked.recv(16):
        items, pause_s = struct.unpack("<qd", wanted)
        for _ in range(items):
            time.sleep(pause_s)
            into.send(_MADE_NS.pack(time.monotonic_ns()))
        into.send(_MADE_NS.pack(0))


def _pass_on(out: socket.socket, last: socket.socket) -> None:
    while made := out.recv(_MADE_NS.size):
        last.send(made)


def _receive(receiving: socket.socket, told: Any) -> None:
    ways: list[int] = []
    while made := receiving.recv(_MADE_NS.size):
        (made_ns,) = _MADE_NS.unpack(made)
        if made_ns:
            ways.append(time.monotonic_ns() - made_ns)
        else:
            told.put(ways)
            ways = []
