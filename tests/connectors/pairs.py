"""Every connector as a sender and a receiver: what the contract suite runs over. A new adapter joins by a line in CONNECTORS."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from omnistage.config.stage import arena_nbytes
from omnistage.connectors.base import OmniConnector
from omnistage.connectors.inproc import InprocConnector
from omnistage.connectors.memory import create_arena
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.tcp import TcpConnector
from omnistage.core.payload import MultimodalPayload, Tensor

CAPACITY = 4 * 2**20
EDGES = ((0, 1), (0, 2))
HOSTS = ("127.0.0.2", "127.0.0.3")


@dataclass
class Pair:
    """A sender and a receiver, which may be the same connector."""

    sender: OmniConnector
    receiver: OmniConnector

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def make_inproc() -> Pair:
    connector = InprocConnector("a/0", 1, capacity_nbytes=CAPACITY, verify=True)
    return Pair(connector, connector)


def make_shm() -> Pair:
    descriptor = create_arena(arena_nbytes(CAPACITY, len(EDGES)))
    sender, receiver = ShmConnector("a/0", 1, descriptor, edges=EDGES, poison=True), ShmConnector("b/0", 1)
    receiver.attach("a/0", 1, descriptor)
    os.close(descriptor)
    return Pair(sender, receiver)


def make_named_shm() -> Pair:
    """As on a kernel without memory files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNISTAGE_NAMED_MEMORY", "1")
        return make_shm()


def make_segments() -> Pair:
    """Shared memory without an arena: every payload has memory of its own."""
    receiver = ShmConnector("b/0", 1)

    def publish(key: int, descriptor: int) -> bool:
        receiver.attach("a/0", 1, descriptor, key)
        return True

    return Pair(ShmConnector("a/0", 1, oversize_nbytes=CAPACITY, publish=publish, poison=True), receiver)


def make_tcp() -> Pair:
    sender, receiver = (
        TcpConnector(owner, 1, host=host, token="secret", capacity_nbytes=CAPACITY, wait_s=5.0)
        for owner, host in zip(("a/0", "b/0"), HOSTS, strict=True)
    )
    return Pair(sender, receiver)


CONNECTORS: dict[str, Callable[[], Pair]] = {
    "inproc": make_inproc,
    "shm": make_shm,
    "shm-named": make_named_shm,
    "shm-segments": make_segments,
    "tcp": make_tcp,
}


def payload_of(*arrays: np.ndarray, **metadata: object) -> MultimodalPayload:
    return MultimodalPayload({f"t{index}": Tensor.of(array) for index, array in enumerate(arrays)}, metadata)


def big(nbytes: int, fill: int = 7) -> MultimodalPayload:
    return payload_of(np.full(nbytes, fill, np.uint8))
