"""The record of a machine's life, with a machine that says what it is told to say."""

from pathlib import Path
from typing import Any

from omnistage.core.payload import PayloadRef
from omnistage.runtime.event_log import EventLog, first_difference, read_log
from omnistage.wire.messages import Command, Emitted, Event, Release, Reported, StartReplica, Tick, WakeAt

REF = PayloadRef("shm", "p/0", 1, 7, metadata={"text": "é"}, nbytes=3, inline=b"\x00\xff\x01")
EMITTED = Emitted(request_id="r", attempt=1, source=0, target=-1, seq=0, ref=REF, last=True)


class Parrot:
    """Asks to be woken `pause` later at every Tick, and releases every ref."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def start(self, now: float) -> list[Command]:
        return [StartReplica(process="p", replica=0, epoch=1), WakeAt(time=now + self.pause)]

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, Reported):
            return [Release(ref=item.ref) for item in event.items if isinstance(item, Emitted) and item.ref]
        return [WakeAt(time=event.now + self.pause)]

    def snapshot(self) -> dict[str, Any]:
        return {}


def record(path: Path, machine: Parrot) -> None:
    log = EventLog(path)
    log.record(1.0, None, machine.start(1.0))
    for event in (Tick(now=2.5), Reported(now=3.0, process="p", replica=0, epoch=1, items=(EMITTED,))):
        log.record(event.now, event, machine.handle(event))
    log.close()


def test_events_and_commands_survive_the_file(tmp_path: Path) -> None:
    """Fault: bytes or nested messages that do not come back as they were."""
    record(tmp_path / "log", Parrot(1.0))
    entries = list(read_log(tmp_path / "log"))
    assert [type(entry.event) for entry in entries] == [type(None), Tick, Reported]
    assert entries[2].commands == [Release(ref=REF)]


def test_replay_finds_the_first_difference(tmp_path: Path) -> None:
    """Fault: a replay that agrees with everything."""
    record(tmp_path / "log", Parrot(1.0))
    assert first_difference(tmp_path / "log", Parrot(1.0)) is None
    different = first_difference(tmp_path / "log", Parrot(2.0))
    assert different is not None and different.startswith("line 1:")
