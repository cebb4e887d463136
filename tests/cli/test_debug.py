"""`omnistage debug`: a recorded life is played again, and drawn."""

from pathlib import Path

import pytest

from omnistage.cli.main import main
from omnistage.orchestrator.machine import Orchestrator
from omnistage.orchestrator.plan import OrchestratorConfig, StagePlan
from omnistage.runtime.event_log import EventLog
from omnistage.wire.messages import Arrived, ReplicaUp
from tests.fakes import request_of

CONFIG = OrchestratorConfig((StagePlan(0, "thinker", "main", final_output_type="text"),), (), {"main": 1})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The record of one request."""
    log, machine = EventLog(tmp_path / "events", CONFIG), Orchestrator(CONFIG)
    log.record(0.0, None, machine.start(0.0))
    up = ReplicaUp(now=0.5, process="main", replica=0, epoch=1, capacity={0: 1})
    for event in (up, Arrived(now=1.0, request=request_of(request_id="abc", wants=("text",)))):
        log.record(event.now, event, machine.handle(event))
    log.close()
    return tmp_path / "events"


def call(*words: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["debug", *map(str, words)])
    return ended.value.code


def test_the_same_commands_come_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a replay without a verdict."""
    assert call("replay", path) == 0
    assert capsys.readouterr().out == "3 entries, the same commands\n"


def test_a_difference_is_shown_and_is_an_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: exit code 0, or no word of what differs, where the machine decides otherwise now."""
    text = path.read_text()
    assert text.count('"attempt":1') == 1
    path.write_text(text.replace('"attempt":1', '"attempt":2'))
    assert call("replay", path) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith('line 4: {"type":"Arrived"')
    assert '"attempt":2' in said[1] and '"attempt":1' in said[2]


def test_a_record_that_was_full_is_told(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a replay, or a request without an end, that looks as if the record held all there was."""
    nbytes = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"cut_nbytes":%d}\n' % nbytes)
    assert call("replay", path) == 0
    told = f"3 entries, the same commands; the record was full after {nbytes} bytes and ends there\n"
    assert capsys.readouterr().out == told
    assert call("timeline", path, "--out", tmp_path / "a.svg") == 0
    assert "still open where the record ends" in (tmp_path / "a.svg").read_text()


def test_a_wrong_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a traceback for a misspelt name."""
    assert call("replay", tmp_path / "none") == 1
    assert capsys.readouterr().err.startswith("error: file: ")


def test_the_only_request_is_drawn_without_being_named(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: a picture that is not written, or an id that has to be looked up first."""
    assert call("timeline", path, "--out", tmp_path / "life.svg") == 0
    assert "request abc: still open" in (tmp_path / "life.svg").read_text()
    assert capsys.readouterr().out == f"wrote {tmp_path / 'life.svg'} (request abc)\n"


@pytest.mark.parametrize(
    ("name", "request_id", "field"), [("life.gif", "abc", "out"), ("life.svg", "other", "request")]
)
def test_what_cannot_be_drawn_is_told(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, request_id: str, field: str
) -> None:
    """Fault: an SVG under another name, or an empty picture for a request that there is not."""
    assert call("timeline", path, "--request", request_id, "--out", tmp_path / name) == 1
    assert capsys.readouterr().err.startswith(f"error: {field}: ")
    assert not (tmp_path / name).exists()
