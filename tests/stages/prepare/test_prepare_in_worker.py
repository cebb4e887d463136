"""Helpers of a real worker process over the real channel.

Faults pinned: Ready before the helpers are; a prompt that is prepared holds up the steps, a cancel or a shutdown; a helper that
/debug/state does not know; one that outlives its worker or the server.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnistage.wire.messages import CLIENT, Cancel, CancelDone, Control, ControlDone, Emitted, StageDone, Submit
from omnistage.wire.worker import Heartbeat, Ready, Shutdown
from tests.fakes import request_of
from tests.stages.prepare.family import entry
from tests.stages.test_worker_process import WHERE, Server, end, start


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = start(entry(model_path=str(tmp_path)))
    try:
        started.until(Ready)
        yield started
    finally:
        end(started)


def submit(text: str, request_id: str, order: int = 0) -> Submit:
    request = request_of(text, request_id)
    return Submit(**WHERE, stage_id=0, request=request, attempt=1, order=(0, order), active_targets=(CLIENT,))


def helpers_of(server: Server) -> list[dict[str, Any]]:
    server.say(Control(**WHERE, call_id="look", stage_id=0, name="debug_state"))
    done = server.until(ControlDone)
    return list(done.result["stage"]["helpers"].values())


def assert_gone(pids: list[int]) -> None:
    ends_s = time.monotonic() + 3.0
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < ends_s:
        time.sleep(0.02)
    assert not left


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_steps_go_on_while_a_prompt_is_prepared(server: Server) -> None:
    """Fault: a long prompt stops the answers of all others; its cancel waits until it is prepared."""
    server.say(submit("p-where one", "warm"))
    server.until(StageDone)
    server.say(submit("p-hang", "long", 1))
    (helper,) = helpers_of(server)
    assert helper["prepares"] == ["long"]
    server.say(submit("p-where one", "next", 2))  # waits for the helper
    server.say(Cancel(**WHERE, request_id="long", attempt=1, stage_id=0))
    assert server.until(CancelDone, deadline_s=2).request_id == "long"
    assert helpers_of(server)[0]["prepares"] == []
    server.say(Shutdown())
    assert server.worker.wait(5) == 0
    assert_gone([helper["pid"]])


def test_kept_inputs_pass_a_prompt_that_is_prepared(server: Server) -> None:
    """Fault: the step thread waits for a helper; a hit waits for one; times and hits are not told."""
    server.say(submit("one two", "first"))
    first = server.until(StageDone)
    server.received.clear()
    server.say(submit("p-hang", "long", 1))
    server.say(submit("one two", "again", 2))
    done = server.until(StageDone, deadline_s=3)
    assert done.request_id == "again"
    assert [item.ref.metadata["text"] for item in server.received if isinstance(item, Emitted) and item.ref] == [
        "one",
        " two",
    ]
    assert 0.0 < first.times.prepare_s <= first.times.queued_s
    assert done.times.prepare_s == 0.0
    while (beat := server.until(Heartbeat)).gauges[0]["prepared_hits_total"] < 1:
        assert beat.step_age_s == {0: 0.0}


@pytest.mark.parametrize("how", ["worker killed", "server gone"])
def test_no_helper_outlives_its_worker(server: Server, how: str) -> None:
    """Fault: kill -9 of a worker, or of the server, leaves the helper that hangs."""
    server.say(submit("p-hang", "long"))
    pids = [helper["pid"] for helper in helpers_of(server)]
    if how == "worker killed":
        server.worker.kill()
    else:
        server.life_line.close()
    server.worker.wait(5)
    assert_gone(pids)


def test_a_worker_is_ready_when_its_helpers_are(tmp_path: Path) -> None:
    """Fault: the first request after Ready waits for a process to start."""
    server = start(entry(model_path=str(tmp_path), processor="tests.stages.prepare.family:load_late"))
    try:
        ready = server.until(Ready)
        assert "loaded" in ready.notes[0]
        assert [helper["state"] for helper in helpers_of(server)] == ["ready"]
    finally:
        end(server)
