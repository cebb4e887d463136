"""The record of a machine's life, with a machine that says what it is told to say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import ConfigError, InvalidRequestError
from omnistage.core.payload import PayloadRef
from omnistage.core.request import Media, OmniRequest, Prompt
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import EdgePlan, OrchestratorConfig, StagePlan
from omnistage.runtime.event_log import EventLog, cut_of, read_head, read_log, replay
from omnistage.wire.messages import (
    Arrived,
    Command,
    Emitted,
    Event,
    Release,
    ReplicaUp,
    Reported,
    StartReplica,
    Submit,
    Tick,
    WakeAt,
)

CONFIG = OrchestratorConfig(
    (StagePlan(3, "thinker", "main", final_output_type="text"),), (EdgePlan(3, 4),), {"main": 2}
)
REF = PayloadRef("shm", "p/0", 1, 7, metadata={"text": "é"}, nbytes=3, inline=b"\x00\xff\x01")
EMITTED = Emitted(request_id="r", attempt=1, source=0, target=-1, seq=0, ref=REF, last=True)


class Parrot:
    """Asks to be woken `pause` later at every Tick, and releases every ref."""

    def __init__(self, pause: float, config: OrchestratorConfig = CONFIG) -> None:
        self.pause, self.config = pause, config

    def start(self, now: float) -> list[Command]:
        return [StartReplica(process="p", replica=0, epoch=1), WakeAt(time=now + self.pause)]

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, Reported):
            return [Release(ref=item.ref) for item in event.items if isinstance(item, Emitted) and item.ref]
        return [WakeAt(time=event.now + self.pause)]

    def snapshot(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record of three entries."""
    log, machine = EventLog(tmp_path / "log", CONFIG), Parrot(1.0)
    log.record(1.0, None, machine.start(1.0))
    for event in (Tick(now=2.5), Reported(now=3.0, process="p", replica=0, epoch=1, items=(EMITTED,))):
        log.record(event.now, event, machine.handle(event))
    log.close()
    return tmp_path / "log"


def of(pause: float) -> Callable[[OrchestratorConfig], Parrot]:
    return lambda config: Parrot(pause, config)


def test_events_and_commands_survive_the_file(path: Path) -> None:
    """Fault: bytes or nested messages that do not come back as they were."""
    entries = list(read_log(path))
    assert [type(entry.event) for entry in entries] == [type(None), Tick, Reported]
    assert entries[2].commands == [Release(ref=REF)]


def test_of_media_only_their_size_is_recorded_and_the_record_replays(tmp_path: Path) -> None:
    """Fault: a record fills up with videos; or it no longer replays, as the machine is told of other bytes than it was."""
    prompt = Prompt(text="a", media=(Media(kind="video", data=b"x" * 10**6, where="messages[0]"),))
    arrived = Arrived(now=1.0, request=OmniRequest(request_id="r", prompt=prompt, wants=("text",), stage_params={}))
    log, machine = EventLog(tmp_path / "log", CONFIG), Orchestrator(CONFIG)
    log.record(0.0, None, machine.start(0.0))
    up = ReplicaUp(now=0.5, process="main", replica=0, epoch=1, capacity={3: 1})
    for event in (up, arrived):
        log.record(event.now, event, machine.handle(event))
    log.close()
    assert (tmp_path / "log").stat().st_size < 10_000
    *_, last = read_log(tmp_path / "log")
    (submit,) = [command for command in last.commands if isinstance(command, Submit)]
    assert submit.request.prompt.media == (Media(kind="video", data=b"1000000 bytes", where="messages[0]"),)
    assert replay(tmp_path / "log", Orchestrator).difference is None


def test_the_head_holds_all_that_the_machine_was_made_of(path: Path) -> None:
    """Fault: a log that replays only where the deployment it was recorded with is still at hand."""
    assert read_head(path).config == CONFIG
    made: list[OrchestratorConfig] = []

    def make(config: OrchestratorConfig) -> Parrot:
        made.append(config)
        return Parrot(1.0, config)

    replay(path, make)
    assert made == [CONFIG]


def test_replay_finds_the_first_difference(path: Path) -> None:
    """Fault: a replay that agrees with everything, or that does not say where it parted."""
    assert replay(path, of(1.0)).difference is None
    assert replay(path, of(1.0)).entries == 3
    said = replay(path, of(2.0)).difference
    assert said is not None
    line, recorded, replayed = said.splitlines()
    assert line.startswith("line 2: the start")
    assert (recorded.strip(), replayed.strip()) == (
        'command 2 recorded: {"type":"WakeAt","time":2.0}',
        'command 2 replayed: {"type":"WakeAt","time":3.0}',
    )


def test_commands_that_are_missing_or_too_many_are_a_difference(path: Path) -> None:
    """Fault: only the commands that both answers have are compared."""

    class Silent(Parrot):
        def handle(self, event: Event) -> list[Command]:
            return []

    said = replay(path, lambda _: Silent(1.0)).difference
    assert said is not None and said.startswith("line 3:") and said.endswith("command 1 replayed: none")


def test_a_last_line_that_was_cut_off_is_left_out(path: Path) -> None:
    """Fault: the record of a server that was killed cannot be read, which is when it is wanted."""
    path.write_bytes(path.read_bytes()[:-5])
    assert len(list(read_log(path))) == 2


def test_what_is_no_record_is_told(path: Path, tmp_path: Path) -> None:
    """Fault: a traceback for a wrong file, or another version's record that is taken for one of this."""
    (tmp_path / "other").write_text("hello\n")
    (tmp_path / "later").write_bytes(path.read_bytes().replace(b'"format":2', b'"format":3'))
    lines = path.read_bytes().splitlines(keepends=True)
    (tmp_path / "broken").write_bytes(lines[0] + b"{}\n" + lines[1])
    for name, match in (
        ("missing", "a file that can be read"),
        ("other", "a recorded event log"),
        ("later", "format 2"),
        ("broken", "line 2"),
    ):
        with pytest.raises(InvalidRequestError, match=match):
            replay(tmp_path / name, of(1.0))
    with pytest.raises(ConfigError, match=r"record_events: .* is not accepted"):
        EventLog(tmp_path / "no" / "folder", CONFIG)


def test_a_record_ends_at_its_bound_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fault: a server that runs for long fills the disk, or a record that is cut looks like one that is whole."""
    log, machine = EventLog(tmp_path / "log", CONFIG, most_nbytes=2000), Parrot(1.0)
    log.record(1.0, None, machine.start(1.0))
    for count in range(200):
        tick = Tick(now=2.0 + count)
        log.record(tick.now, tick, machine.handle(tick))
    log.close()
    assert 1800 < (tmp_path / "log").stat().st_size < 2050
    assert len([record for record in caplog.records if "has reached its 2000 bytes" in record.message]) == 1
    played = replay(tmp_path / "log", of(1.0))
    assert played.difference is None and 5 < played.entries == len(list(read_log(tmp_path / "log"))) < 30
    assert played.cut_nbytes is not None and 1800 < played.cut_nbytes <= 2000


def test_a_whole_record_is_not_cut(path: Path) -> None:
    """Fault: every record is said to be cut, also the one whose writer was killed."""
    assert cut_of(path) is None
    assert replay(path, of(1.0)).cut_nbytes is None
    path.write_bytes(path.read_bytes()[:-5])
    assert cut_of(path) is None
    path.write_bytes(b"")
    assert cut_of(path) is None


def test_nobody_else_may_read_it(path: Path) -> None:
    """Fault: what people have asked lies open to every user of the machine."""
    assert path.stat().st_mode & 0o077 == 0


def test_a_full_disk_ends_the_record_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Fault: a file that is there for debugging brings the server down."""
    log = EventLog(Path("/dev/full"), CONFIG)
    log.record(1.0, None, [])
    log.record(2.0, None, [])
    log.close()
    assert [record.message for record in caplog.records if "recorded no longer" in record.message] == [
        "events are recorded no longer: [Errno 28] No space left on device"
    ]
