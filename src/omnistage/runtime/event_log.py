"""A machine's life on record: every event with the commands it was answered by, one JSON object a line.

What was recorded replays: a fresh machine of the same configuration gives the same commands for the same events. Knows nothing
of what events mean. The file is for people who look for a fault; it holds requests in clear text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from omnistage.runtime.base import Machine
from omnistage.wire.messages import Command, Event


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`event` None stands for the start, at `now`."""

    now: float
    event: Event | None
    commands: list[Command]


class EventLog:
    """Appends entries to a new file at `path`; what is recorded is in the file when `record` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def record(self, now: float, event: Event | None, commands: list[Command]) -> None:
        entry = LogEntry(now=now, event=event, commands=commands)
        self._file.write(self._encoder.encode(entry) + b"\n")

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> Iterator[LogEntry]:
    """The entries of a log, in order."""
    decoder = msgspec.json.Decoder(LogEntry)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)


def first_difference(path: Path, machine: Machine) -> str | None:
    """Replays a log through a fresh machine; None if every answer is the recorded one, else one line that says where not."""
    encoder = msgspec.json.Encoder()
    for number, entry in enumerate(read_log(path), start=1):
        commands = machine.start(entry.now) if entry.event is None else machine.handle(entry.event)
        recorded, replayed = encoder.encode(entry.commands), encoder.encode(commands)
        if recorded != replayed:
            return f"line {number}: {type(entry.event).__name__} gave {replayed.decode()}, recorded {recorded.decode()}"
    return None
