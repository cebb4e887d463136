"""Brings descriptors of shared memory to the workers that read it, over their life lines.

A worker gets the arenas of its upstream processes when it starts and when they do. A segment comes up the life line of the worker
that made it, before the report that names it, and goes to a reader just before the first item that lies in it. Readers are told
when memory is gone, so that they forget it. Knows no processes: a worker that takes no descriptors is somebody else's affair.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from omnistage.connectors.descriptors import receive_descriptor, send_descriptor
from omnistage.connectors.segments import segment_of
from omnistage.core.payload import PayloadRef
from omnistage.runtime.arenas import ArenaCache
from omnistage.runtime.plan import ProcessPlan

Incarnation = tuple[str, int]
"""(owner, epoch)"""


@dataclass(frozen=True, slots=True)
class _Line:
    plan: ProcessPlan
    life_line: socket.socket


class HandOver:
    """`mute(incarnation, why)` is told of a worker that takes no descriptors any more."""

    def __init__(self, arenas: ArenaCache, mute: Callable[[Incarnation, str], None]) -> None:
        self._arenas = arenas
        self._mute = mute
        self._lines: dict[Incarnation, _Line] = {}

    def join(self, plan: ProcessPlan, worker: Incarnation, life_line: socket.socket, arena: int) -> None:
        """A worker has been started: it gets the arenas it reads from, and those that read from it get its own."""
        self._lines[worker] = _Line(plan, life_line)
        for owner, epoch, descriptor in self._arenas.of_processes(plan.upstream):
            self._hand(worker, {"owner": owner, "epoch": epoch, "gone": False}, descriptor)
        for reader in self._readers(plan.name):
            self._hand(reader, {"owner": worker[0], "epoch": worker[1], "gone": False}, arena)

    def leave(self, worker: Incarnation) -> None:
        """It is dead, and everything it has said was read; what it emitted stays until it is released."""
        line = self._lines.pop(worker, None)
        if self._arenas.died(*worker) and line is not None:
            self._tell_gone(self._readers(line.plan.name), worker)

    def reported(self, refs: Iterable[PayloadRef]) -> None:
        """Takes over the memory of what a worker has emitted."""
        for ref in refs:
            if segment_of(ref) is not None and not self._arenas.has_segment(ref):
                self._collect((ref.owner, ref.epoch))
            self._arenas.reported(ref)

    def bring(self, reader: Incarnation, ref: PayloadRef | None) -> None:
        """`reader` is about to be told to read `ref`."""
        descriptor = None if ref is None else self._arenas.lend_segment(ref, reader)
        if ref is not None and descriptor is not None:
            header = {"owner": ref.owner, "epoch": ref.epoch, "key": ref.key, "gone": False}
            self._hand(reader, header, descriptor)

    def released(self, ref: PayloadRef) -> None:
        """Nobody reads `ref` any more."""
        readers = self._arenas.readers_of(ref)
        is_gone = self._arenas.released(ref)
        owner = ref.owner, ref.epoch
        key = segment_of(ref)
        if key is not None:
            self._tell_gone(readers, owner, key)
        elif is_gone:
            self._tell_gone(self._readers(ref.owner.rpartition("/")[0]), owner)

    def _collect(self, worker: Incarnation) -> None:
        """Takes the descriptors of segments that the worker has sent so far."""
        line = self._lines.get(worker)
        if line is None:
            return
        while True:
            try:
                received = receive_descriptor(line.life_line)
            except (BlockingIOError, ConnectionError):
                return
            if received is None:
                return
            header, descriptor = received
            if descriptor is not None:
                self._arenas.keep_segment(*worker, int(header["key"]), descriptor)

    def _readers(self, process: str) -> list[Incarnation]:
        return [worker for worker, line in self._lines.items() if process in line.plan.upstream]

    def _tell_gone(self, readers: Iterable[Incarnation], owner: Incarnation, key: int | None = None) -> None:
        header = {"owner": owner[0], "epoch": owner[1], "gone": True}
        for reader in readers:
            self._hand(reader, header if key is None else header | {"key": key}, None)

    def _hand(self, reader: Incarnation, header: dict[str, object], descriptor: int | None) -> None:
        line = self._lines.get(reader)
        if line is None:
            return
        try:
            send_descriptor(line.life_line, header, descriptor)
        except OSError as error:
            self._mute(reader, f"takes no descriptors any more ({os.strerror(error.errno or 0)})")
