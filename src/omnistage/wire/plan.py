"""What a worker process is told at its start: which stages it runs, as which replica, and where its driver is.

Travels as JSON on the worker's standard input, which is at end-of-file after it. The two descriptors are inherited under the
numbers that stand here. Knows nothing of how a worker is started or of what it does.

`life_line` is one end of an AF_UNIX socketpair. End-of-file on it means that the server is gone: the worker exits. Arena
descriptors of other replicas arrive on it (connectors.descriptors) with the header {"owner": "process/replica", "epoch": n},
and {"owner", "epoch", "gone": true} without a descriptor when nobody will read that arena again; with a "key" they stand for
one segment of its owner (connectors.segments). The worker itself sends the descriptors of its segments up, as {"key": n}.
`arena` is the worker's own.
"""

from __future__ import annotations

import msgspec

from omnistage.config.stage import StageConfig


class TcpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker hands over payloads by tcp (connectors.tcp): `token` is what all workers of one server share."""

    host: str
    token: str
    capacity_nbytes: int


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`address` and `identity` are what the worker connects its channel with; `heartbeat_s` is the time between heartbeats.
    `arena_oversize_nbytes` bounds its segments; `tcp` is None where none of its payloads comes or goes so."""

    process: str
    replica: int
    epoch: int
    stages: tuple[StageConfig, ...]
    address: str
    identity: str
    life_line: int
    arena: int | None = None
    arena_oversize_nbytes: int = 0
    tcp: TcpPlan | None = None
    heartbeat_s: float = 1.0

    @property
    def owner(self) -> str:
        """The name of this replica in payload refs."""
        return f"{self.process}/{self.replica}"

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> WorkerPlan:
        return msgspec.json.decode(data, type=cls)
