"""What every runtime does alike: each test runs with the stages in this process and in processes of their own."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.runtime.base import ClientClosed, ReplicaStatus, Runtime, RuntimeStatus
from tests.runtime.harness import Caller, driver, eventually, inline, remote, request, stage, steps, two_stages

Start = Callable[..., Runtime]

FORMS: dict[str, Start] = {"inline": inline, "driver": driver, "remote": remote}
EVERY_FORM = pytest.mark.parametrize("start", FORMS, indirect=True)
"""A driver process starts slowly: what does not depend on it is not tried again with one."""


@pytest.fixture(params=["inline", "driver"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Makes a runtime of the given stages, ready, and closes it."""
    made: list[Runtime] = []

    def begin(*stages: Any, comes_up: bool = True, **limits: Any) -> Runtime:
        runtime = FORMS[request.param](*stages, **limits)
        made.append(runtime)
        runtime.start()
        assert (runtime.wait_ready(15.0).state == "ready") is comes_up
        return runtime

    yield begin
    for runtime in made:
        runtime.close(0.0)


@EVERY_FORM
def test_whole_and_streamed_answers_of_two_stages_are_equal(start: Start, tmp_path: Path) -> None:
    """Fault: a snapshot taken for a delta, an item lost or doubled between two stages. The items are too large for inline."""
    runtime = start(*two_stages(tmp_path))
    streamed = Caller(runtime, request("streamed", items=5, samples=30000))
    assert streamed.end().outcome == "finished"
    whole = Caller(runtime, request("whole", items=5, samples=30000, stream=False))
    assert whole.end().outcome == "finished"
    expected = np.tile(np.arange(30000, dtype=np.float32) * 2, 5)
    np.testing.assert_array_equal(streamed.samples(1), expected)
    np.testing.assert_array_equal(whole.samples(1), expected)
    assert [item.seq for item in streamed.items] == list(range(len(streamed.items)))
    assert [item.last for item in streamed.items].count(True) == 1 and streamed.items[-1].last
    assert streamed.after_closed == whole.after_closed == 0


def test_stages_of_one_process_hand_over_by_reference(start: Start, tmp_path: Path) -> None:
    """Fault: what stays in a worker is looked for in an arena, or its release goes to nobody."""
    runtime = start(*two_stages(tmp_path, process="counter"))
    caller = Caller(runtime, request("r", items=5, samples=30000))
    assert caller.end().outcome == "finished"
    np.testing.assert_array_equal(caller.samples(1), np.tile(np.arange(30000, dtype=np.float32) * 2, 5))
    tables = ("open", "refs_held", "slots")
    assert eventually(lambda: not any(runtime._machine.snapshot()[table] for table in tables))  # type: ignore[attr-defined]


def test_items_outlive_the_request_and_the_runtime(start: Start, tmp_path: Path) -> None:
    """Fault: a caller is handed a view of memory that a later request overwrites."""
    runtime = start(*two_stages(tmp_path))
    first = Caller(runtime, request("first", items=2, samples=30000))
    first.end()
    other = Caller(runtime, request("other", items=4, samples=20000))
    other.end()
    runtime.close(0.0)
    np.testing.assert_array_equal(first.samples(1), np.tile(np.arange(30000, dtype=np.float32) * 2, 2))


def test_a_stage_feeds_two_and_only_those_that_are_wanted_run(start: Start, tmp_path: Path) -> None:
    """Fault: fan-out that mixes its branches up, or a branch that runs although nobody wants what it makes."""
    runtime = start(
        stage(0, "counter", tmp_path, targets=(1, 2)),
        stage(1, "voice", tmp_path, sources=(0,), extras={"factor": 2}),
        stage(2, "picture", tmp_path, sources=(0,), extras={"factor": 3}, final_output_type="image"),
    )
    both = Caller(runtime, request("both", items=3, samples=30000, wants=("audio", "image")))
    assert both.end().outcome == "finished"
    counted = np.tile(np.arange(30000, dtype=np.float32), 3)
    np.testing.assert_array_equal(both.samples(1), counted * 2)
    np.testing.assert_array_equal(both.samples(2), counted * 3)
    one = Caller(runtime, request("one", items=3, wants=("image",)))
    assert one.end().outcome == "finished"
    assert steps(tmp_path, "voice", "one") == 0 and steps(tmp_path, "picture", "one") == 3


@EVERY_FORM
def test_an_abort_in_mid_stream_stops_every_stage_within_a_step(start: Start, tmp_path: Path) -> None:
    """Fault: cancel reaches the front only, and the stages work on for nobody."""
    runtime = start(*two_stages(tmp_path))
    caller = Caller(runtime, request("long", items=200, pause_s=0.05))
    caller.next()
    caller.next()
    runtime.abort("long", "the caller left")
    made = steps(tmp_path, "counter", "long")
    closed = caller.end(2.0)
    assert closed.outcome == "aborted" and closed.error is not None and "the caller left" in closed.error.message
    following = Caller(runtime, request("next", items=1))
    assert following.end(2.0).outcome == "finished"
    assert steps(tmp_path, "counter", "long") <= made + 2
    assert steps(tmp_path, "voice", "long") <= steps(tmp_path, "counter", "long")
    assert runtime.status().open_requests == 0


def test_a_stage_that_raises_fails_its_request_and_no_other(start: Start, tmp_path: Path) -> None:
    """Fault: one bad item ends the engine, or the request hangs until its deadline."""
    runtime = start(*two_stages(tmp_path, extras={"fail_at": 2}))
    bad, good = Caller(runtime, request("bad", items=4)), Caller(runtime, request("good", items=2))
    closed = bad.end(5.0)
    assert closed.outcome == "failed" and closed.error is not None
    assert closed.error.stage == "voice" and "this item cannot be made" in closed.error.message
    assert good.end(5.0).outcome == "finished"


def test_a_request_id_that_is_open_is_refused(start: Start, tmp_path: Path) -> None:
    """Fault: two callers under one id get each other's items."""
    runtime = start(*two_stages(tmp_path))
    first = Caller(runtime, request("same", items=3, pause_s=0.1))
    second = Caller(runtime, request("same", items=1))
    closed = second.end(5.0)
    assert closed.error is not None and closed.error.code == "invalid_request" and closed.error.field == "request_id"
    assert first.end(5.0).outcome == "finished"


def test_a_sink_that_raises_harms_its_own_request_only(start: Start, tmp_path: Path) -> None:
    """Fault: a caller's exception ends the runtime's thread."""
    runtime = start(*two_stages(tmp_path))

    def faulty(message: object) -> None:
        raise RuntimeError("the caller's own fault")

    runtime.submit(request("faulty", items=3), faulty)
    assert Caller(runtime, request("good", items=3)).end(5.0).outcome == "finished"
    assert eventually(lambda: runtime.status().open_requests == 0)


def test_a_control_call_that_no_stage_knows_is_answered(start: Start, tmp_path: Path) -> None:
    """Fault: a control call that waits for ever."""
    answers: queue.Queue[Any] = queue.Queue()
    start(*two_stages(tmp_path)).control("fly", {}, lambda results, error: answers.put((results, error)))
    _results, error = answers.get(timeout=5.0)
    assert error is not None and error.code == "unsupported"


@EVERY_FORM
def test_a_stage_that_cannot_be_loaded_says_why_and_its_requests_fail(start: Start, tmp_path: Path) -> None:
    """Fault: health lies, callers hang. What needs the healthy stage alone is served."""
    runtime = start(
        stage(0, "counter", tmp_path),
        stage(1, "voice", tmp_path, loader="tests.runtime.family:load_broken", final_output_type="image"),
        comes_up=False,
        strikes=1,
    )
    assert eventually(lambda: runtime.status().stages == {"counter": "ready", "voice": "down"})
    assert runtime.status().state == "degraded"
    note = next(replica.note for replica in runtime.status().replicas if replica.process == "voice")
    assert note == f"stage voice: no weights in {tmp_path}"
    closed = Caller(runtime, request("needs-it", wants=("image",))).end(5.0)
    assert closed.error is not None and closed.error.code == "stage_unavailable" and note in closed.error.message
    assert Caller(runtime, request("needs-it-not")).end(5.0).outcome == "finished"


@EVERY_FORM
def test_closing_ends_open_requests_and_refuses_new_ones(start: Start, tmp_path: Path) -> None:
    """Fault: a caller that waits for a runtime that is gone."""
    runtime = start(*two_stages(tmp_path))
    caller = Caller(runtime, request("open", items=500, pause_s=0.02))
    caller.next()
    runtime.close(0.0)
    assert caller.end(1.0).outcome in ("aborted", "failed")
    told: list[Any] = []
    runtime.submit(request("late"), told.append)
    assert len(told) == 1 and isinstance(told[0], ClientClosed) and told[0].error is not None
    assert told[0].error.code == "closed"
    runtime.abort("open", "again")
    runtime.close(0.0)
    assert runtime.status().state == "stopped"


@EVERY_FORM
def test_closing_with_time_lets_open_requests_end(start: Start, tmp_path: Path) -> None:
    """Fault: a shutdown that cuts answers off although it was given time to drain."""
    runtime = start(*two_stages(tmp_path))
    caller = Caller(runtime, request("open", items=10, pause_s=0.03))
    caller.next()
    closing = threading.Thread(target=runtime.close, args=(10.0,))
    closing.start()
    assert caller.end(5.0).outcome == "finished"
    closing.join(5.0)
    assert not closing.is_alive() and runtime.status().state == "stopped"


def test_what_is_not_ready_is_told_in_one_phrase() -> None:
    """Fault: a stage that did not start without its name or its reason, or notes of those that are well."""
    replicas = (ReplicaStatus("main", 0, "ready", note="loaded"), ReplicaStatus("voice", 0, "down", note="no weights"))
    status = RuntimeStatus("degraded", {"thinker": "ready", "voice": "down"}, replicas)
    assert status.trouble == "voice is down (no weights)"
    assert replace(status, reason="the driver died").trouble == "the driver died"
    assert RuntimeStatus("stopped", {}).trouble == "stopped"
