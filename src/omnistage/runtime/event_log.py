"""A machine's life on record: its configuration, then every event with the commands it was answered by, one JSON object a line.

What was recorded replays: a fresh machine of the same configuration gives the same commands for the same events. Knows nothing
of what events mean. The file is for people who look for a fault; it holds requests in clear text, so only its owner may read it.
Of media it holds no more than how large they are. It ends, and says so in a last line, before it is larger than its bound: a
replay needs the beginning, so the beginning is what is kept. Times are seconds of the recording host's monotonic clock.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from omnistage.core.errors import ConfigError, InvalidRequestError
from omnistage.orchestrator.plan import OrchestratorConfig
from omnistage.runtime.base import Machine
from omnistage.wire.messages import Arrived, Command, Event, Submit

M = TypeVar("M")

FORMAT = 2
"""Of the file; a reader refuses any other."""

MOST_NBYTES = 2**30
"""Of a record: a server that runs for weeks must not fill the disk."""

_CUT = b'{"cut_nbytes":'

logger = logging.getLogger(__name__)


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: all that is needed to make the machine anew."""

    format: int
    config: OrchestratorConfig


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`event` None stands for the start, at `now`."""

    now: float
    event: Event | None
    commands: list[Command]


class LogCut(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of a record that has reached its bound, after `cut_nbytes`: what came later is not in it."""

    cut_nbytes: int


class EventLog:
    """Appends entries to a new file at `path`; what is recorded is in the file when `record` returns. A file that cannot be
    written any more (a full disk), or is about to be larger than `most_nbytes`, ends the record, not the runtime. Raises
    ConfigError where it cannot be made."""

    def __init__(self, path: Path, config: OrchestratorConfig, *, most_nbytes: int = MOST_NBYTES) -> None:
        try:
            self._file = open(path, "wb", buffering=0, opener=_private)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            accepted = f"a file that can be written ({error.strerror})"
            raise ConfigError.of("record_events", str(path), accepted) from None
        self._encoder = msgspec.json.Encoder(enc_hook=repr)
        self._most_nbytes = most_nbytes
        self._nbytes = 0
        self._broken = False
        self._write(LogHead(format=FORMAT, config=config))

    def record(self, now: float, event: Event | None, commands: list[Command]) -> None:
        if not self._broken:
            self._write(
                LogEntry(now=now, event=_recorded(event), commands=[_recorded(command) for command in commands])
            )

    def _write(self, line: LogHead | LogEntry) -> None:
        data = self._encoder.encode(line) + b"\n"
        if self._nbytes + len(data) > self._most_nbytes:
            logger.warning("events are recorded no longer: the record has reached its %d bytes", self._most_nbytes)
            data = self._encoder.encode(LogCut(cut_nbytes=self._nbytes)) + b"\n"
            self._broken = True
        self._nbytes += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            self._broken = True
            logger.error("events are recorded no longer: %s", error)

    def close(self) -> None:
        self._file.close()


def _recorded(message: M) -> M:
    """A message as it is recorded: of media only how large they are. No machine looks at more, so the record replays."""
    if not isinstance(message, Arrived | Submit) or not message.request.prompt.media:
        return message
    prompt = message.request.prompt
    media = tuple(msgspec.structs.replace(held, data=b"%d bytes" % len(held.data)) for held in prompt.media)
    request = msgspec.structs.replace(message.request, prompt=msgspec.structs.replace(prompt, media=media))
    return msgspec.structs.replace(message, request=request)


def read_head(path: Path) -> LogHead:
    """Raises InvalidRequestError for a file that is none of these records, and for one of another version."""
    with _opened(path) as file:
        line = file.readline()
    try:
        head = msgspec.json.decode(line, type=LogHead)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError.of("file", str(path), f"a recorded event log ({error})") from None
    if head.format != FORMAT:
        raise InvalidRequestError.of("file", f"{path} of format {head.format}", f"format {FORMAT}")
    return head


def read_log(path: Path) -> Iterator[LogEntry]:
    """The entries of a log, in order. A last line that was cut off, as its writer was killed, is left out; so is the one that
    tells of a record at its bound (`cut_of`)."""
    decoder = msgspec.json.Decoder(LogEntry)
    with _opened(path) as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n") or line.startswith(_CUT):
                return
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise InvalidRequestError.of("file", f"{path}, line {number}", f"a recorded event ({error})") from None


def cut_of(path: Path) -> int | None:
    """After how many bytes a record has ended because it had reached its bound; None for one that is whole."""
    with _opened(path) as file:
        file.seek(0, os.SEEK_END)
        file.seek(-min(file.tell(), len(_CUT) + 32), os.SEEK_END)
        last = file.read().splitlines()[-1:]
    return msgspec.json.decode(last[0], type=LogCut).cut_nbytes if last and last[0].startswith(_CUT) else None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidRequestError.of("file", str(path), f"a file that can be read ({error.strerror})") from None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay came to: how many entries were compared, and the first that differs, in a few lines (None: none does).
    `cut_nbytes`: as `cut_of`."""

    entries: int
    difference: str | None = None
    cut_nbytes: int | None = None


def replay(path: Path, make: Callable[[OrchestratorConfig], Machine]) -> Replay:
    """Plays a log through a machine that `make` makes of the recorded configuration, up to the first difference."""
    machine = make(read_head(path).config)
    encoder = msgspec.json.Encoder()
    count = 0
    for count, entry in enumerate(read_log(path), start=1):
        commands = machine.start(entry.now) if entry.event is None else machine.handle(entry.event)
        if encoder.encode(entry.commands) != encoder.encode(commands):
            return Replay(entries=count, difference=_difference(count + 1, entry, commands))
    return Replay(entries=count, cut_nbytes=cut_of(path))


def _difference(line: int, entry: LogEntry, commands: list[Command]) -> str:
    """The event, and the first command in which the two answers part."""
    encoder = msgspec.json.Encoder()
    recorded = [encoder.encode(command).decode() for command in entry.commands]
    replayed = [encoder.encode(command).decode() for command in commands]
    same = next(
        (index for index, pair in enumerate(zip(recorded, replayed, strict=False)) if pair[0] != pair[1]),
        min(len(recorded), len(replayed)),
    )
    event = "the start" if entry.event is None else encoder.encode(entry.event).decode()
    return "\n".join(
        (
            f"line {line}: {event}",
            f"  command {same + 1} recorded: {_at(recorded, same)}",
            f"  command {same + 1} replayed: {_at(replayed, same)}",
        )
    )


def _at(commands: list[str], index: int) -> str:
    return commands[index] if index < len(commands) else "none"
