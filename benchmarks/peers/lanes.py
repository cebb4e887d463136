"""Two ways to bring an array to another process, have every byte read there, and hear that it was: a queue of
multiprocessing, and zmq without copies on either side. A lane's `send` returns the checksum that the reader sent back: the sum of
the array's words as whole numbers, which is exact and takes no longer than reading them (a sum of float32 takes three times
as long, and would be most of what is measured).
"""

from __future__ import annotations

import multiprocessing
import pickle
import secrets
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import zmq

SPAWN = multiprocessing.get_context("spawn")


def checksum(array: np.ndarray[Any, Any]) -> int:
    return int(array.view(np.int64).sum())


class QueueLane:
    """multiprocessing.Queue one way, another back: arrays are pickled by the queue, as its users have it. With `relays`
    each of so many processes takes them out of one queue and puts them into the next."""

    version = "multiprocessing"

    def __init__(self, relays: int = 0) -> None:
        self._queues: list[Any] = [SPAWN.Queue() for _ in range(relays + 1)]
        self._there, self._back = self._queues[0], SPAWN.Queue()
        self._processes: list[BaseProcess] = [
            *(SPAWN.Process(target=_relay, args=pair, daemon=True) for pair in pairwise(self._queues)),
            SPAWN.Process(target=_read_queue, args=(self._queues[-1], self._back), daemon=True),
        ]
        for process in self._processes:
            process.start()

    def send(self, array: np.ndarray[Any, Any]) -> int:
        self._there.put(array)
        return int(self._back.get(timeout=60))

    def close(self) -> None:
        self._there.put(None)
        for process in self._processes:
            process.join(10)


def _relay(taken: Any, given: Any) -> None:
    array: Any = True
    while array is not None:
        array = taken.get()
        given.put(array)


def _read_queue(there: Any, back: Any) -> None:
    while (array := there.get()) is not None:
        back.put(checksum(array))


class ZmqLane:
    """A PAIR of sockets over ipc, header and buffer as two frames, `copy=False` on both sides, kept warm."""

    version = f"pyzmq {zmq.pyzmq_version()}"

    def __init__(self) -> None:
        address = f"ipc://@omnistage-bench-{secrets.token_hex(8)}"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.RCVTIMEO, 60_000)
        self._socket.bind(address)
        self._reader: BaseProcess = SPAWN.Process(target=_read_zmq, args=(address,), daemon=True)
        self._reader.start()

    def send(self, array: np.ndarray[Any, Any]) -> int:
        header = pickle.dumps((array.dtype.str, array.shape))
        self._socket.send_multipart([header, array.data], copy=False)
        return int(self._socket.recv())

    def close(self) -> None:
        self._socket.send(b"")
        self._reader.join(10)
        self._context.destroy(0)


def _read_zmq(address: str) -> None:
    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(address)
    while frames := socket.recv_multipart(copy=False):
        if len(frames) == 1:
            return
        dtype, shape = pickle.loads(frames[0].bytes)
        array = np.frombuffer(frames[1].buffer, dtype).reshape(shape)
        socket.send(str(checksum(array)).encode())
