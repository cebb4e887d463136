"""What carries a worker's payloads to and from other processes, as its plan has it.

Shared memory always; tcp where an edge goes by it, as a maker of its connector: it is given what to call when bytes have come.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from omnistage.config.stage import arena_edges
from omnistage.connectors.base import OmniConnector
from omnistage.connectors.segments import publisher
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.tcp import TcpConnector
from omnistage.wire.plan import WorkerPlan

Fetching = Callable[[Callable[[], None]], OmniConnector]
"""`fetching(arrived)`: a connector whose readers fetch, and which calls `arrived`, in any thread, when a fetch has ended."""


class ArenaConnector(OmniConnector, Protocol):
    """A connector whose readers attach other replicas' arenas, and their segments by `key`."""

    def attach(self, owner: str, epoch: int, descriptor: int, key: int | None = None) -> None: ...

    def detach(self, owner: str, epoch: int, key: int | None = None) -> None: ...


def shm_connector(plan: WorkerPlan, life_line: socket.socket) -> ShmConnector:
    """Descriptors of its segments go up the life line."""
    return ShmConnector(
        plan.owner,
        plan.epoch,
        plan.arena,
        edges=arena_edges(plan.stages),
        oversize_nbytes=plan.arena_oversize_nbytes,
        publish=publisher(life_line),
    )


def tcp_fetching(plan: WorkerPlan) -> Fetching | None:
    """None where nothing comes or goes by tcp."""
    tcp = plan.tcp
    if tcp is None:
        return None
    return lambda arrived: TcpConnector(
        plan.owner,
        plan.epoch,
        host=tcp.host,
        token=tcp.token,
        capacity_nbytes=tcp.capacity_nbytes,
        arrived=arrived,
    )
