"""Helpers of one stage over fakes: lines of socket pairs, deaths of eventfds, a clock that is set.

Faults pinned: a helper is given a request before it has loaded or while it has one; a hit asks a helper; a helper that hangs keeps
its request; a crash loop goes on for ever; mail of a cancelled request; a helper is left behind.
"""

import contextlib
import os
import selectors
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from omnistage.config.stage import StageConfig
from omnistage.core.errors import BrokenCheckpointError, ErrorInfo, InvalidRequestError
from omnistage.core.request import Media, OmniRequest
from omnistage.modeling.protocols import StageInput
from omnistage.stages.host import Prepared
from omnistage.stages.prepare.coding import encode
from omnistage.stages.prepare.messages import Answer, FromHelper, HelperFailed, HelperReady, Prepare
from omnistage.stages.prepare.runner import MOST_STRIKES, PrepareRunner
from omnistage.wire.messages import CLIENT, Submit
from tests.fakes import request_of
from tests.stages.prepare.family import entry

WHERE: dict[str, Any] = {"process": "main", "replica": 0, "epoch": 1}


class FakeHelper:
    """`says` is heard at the next turn; `asked` are the prompts it was given."""

    def __init__(self) -> None:
        self.line, self._theirs = socket.socketpair()
        self.line.setblocking(False)
        self.pidfd = os.eventfd(0, os.EFD_NONBLOCK)
        self.pid = 2**22 + self.pidfd  # nobody's
        self.asked: list[str] = []
        self.told: list[OmniRequest] = []
        self.killed = self.closed = self.is_silent = False
        self._said: list[bytes] = []

    def say(self, message: FromHelper) -> None:
        self._said.append(msgspec.msgpack.encode(message))
        self._theirs.send(b"x")

    def send(self, data: bytes) -> None:
        self.told.append(msgspec.msgpack.decode(data[8:], type=Prepare).request)
        self.asked.append(self.told[-1].prompt.text or "")

    def flush(self) -> bool:
        return False

    def receive(self) -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            self.line.recv(100)
        said, self._said = self._said, []
        return said

    def kill(self) -> None:
        self.killed = True
        os.eventfd_write(self.pidfd, 1)

    def close(self) -> str:
        self.closed = True
        for end in (self.line, self._theirs):
            end.close()
        os.close(self.pidfd)
        return "was killed by SIGKILL"


class Stage:
    """A stage with fake helpers, of which the last started come first in `helpers`."""

    def __init__(self, **changes: Any) -> None:
        self.helpers: list[FakeHelper] = []
        self.mail: list[Prepared] = []
        self.failures: list[Exception] = []
        self.times_ready = 0
        self.now_s = 0.0
        self._selector = selectors.DefaultSelector()
        self.runner = PrepareRunner(
            entry(**changes),
            post=self.mail.append,
            failed=self.failures.append,
            readied=self._readied,
            start=self._start,
            clock=lambda: self.now_s,
        )
        self.runner.open(self._selector)

    def _start(self, config: StageConfig) -> FakeHelper:
        self.helpers.insert(0, FakeHelper())
        return self.helpers[0]

    def _readied(self) -> None:
        self.times_ready += 1

    def turn(self) -> None:
        """Everything that has happened is heard."""
        while events := self._selector.select(0):
            for key, _ in events:
                key.data()

    def says(self, helper: FakeHelper, message: FromHelper) -> None:
        helper.say(message)
        self.turn()

    def submit(self, text: str, request_id: str, order: tuple[int, int] = (0, 0), attempt: int = 1) -> None:
        request = request_of(text, request_id)
        self.runner.submit(
            Submit(**WHERE, stage_id=0, request=request, attempt=attempt, order=order, active_targets=(CLIENT,))
        )

    def dies(self, helper: FakeHelper) -> None:
        helper.kill()
        self.turn()

    def end(self) -> None:
        self.runner.close()
        self._selector.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    running = Stage()
    running.says(running.helpers[0], HelperReady())
    yield running
    running.end()
    assert all(helper.closed for helper in running.helpers)


def made(word: str, **more: Any) -> Answer:
    return Answer(value=encode([StageInput({"word": word})]), took_s=0.5, **more)


def test_a_stage_is_ready_when_all_its_helpers_are() -> None:
    """Fault: Ready is told before a helper has loaded, or twice."""
    stage = Stage(processor_workers=2)
    for helper in stage.helpers:
        assert not stage.runner.ready
        stage.says(helper, HelperReady())
    assert stage.runner.ready
    stage.dies(stage.helpers[0])
    stage.says(stage.helpers[0], HelperReady())
    assert stage.times_ready == 1
    stage.end()


def test_a_helper_has_one_request_at_a_time_and_the_oldest_is_next(stage: Stage) -> None:
    """Fault: a helper's death is the fault of several; an urgent request waits behind a younger one."""
    helper = stage.helpers[0]
    for number, name in enumerate(("first", "second", "urgent")):
        stage.submit(name, name, (-(name == "urgent"), number))
    assert helper.asked == ["first"]
    stage.now_s = 2.0
    stage.says(helper, made("first"))
    assert helper.asked == ["first", "urgent"]
    (mail,) = stage.mail
    assert mail.prepared is not None
    assert mail.prepared.value == [StageInput({"word": "first"})]
    assert (mail.prepared.prepare_s, mail.prepared.elapsed_s) == (0.5, 2.0)
    assert stage.runner.gauges()["preparing"] == 2


def test_nothing_is_asked_of_a_helper_that_has_not_loaded() -> None:
    """Fault: a request waits in the line of a process that may never read it."""
    stage = Stage()
    stage.submit("early", "early")
    assert stage.helpers[0].asked == []
    stage.says(stage.helpers[0], HelperReady())
    assert stage.helpers[0].asked == ["early"]
    stage.end()


def test_what_may_be_kept_is_prepared_once(stage: Stage) -> None:
    """Fault: a hit asks a helper or waits for one; what depends on more than the prompt is kept."""
    helper = stage.helpers[0]
    stage.submit("again", "one")
    stage.submit("again", "two", (0, 1))
    stage.says(helper, made("again", repeatable=True))
    stage.submit("busy", "three")
    stage.submit("again", "four")
    assert helper.asked == ["again", "busy"]
    assert [mail.submit.request.request_id for mail in stage.mail] == ["one", "two", "four"]
    assert [mail.prepared.prepare_s for mail in stage.mail if mail.prepared] == [0.5, 0.0, 0.0]
    stage.says(helper, made("busy"))
    stage.submit("busy", "five")
    assert helper.asked == ["again", "busy", "busy"]
    gauges = stage.runner.gauges()
    assert (gauges["prepared_hits_total"], gauges["prepared_misses_total"]) == (2, 3)


def test_a_death_is_followed_by_another_helper_and_the_second_fails_the_request(stage: Stage) -> None:
    """Fault: requests that were in a dead helper are lost; a poison takes its neighbours along or goes on for ever."""
    stage.submit("poison", "poison")
    stage.submit("fine", "fine", (0, 1))
    for _ in range(2):
        stage.dies(stage.helpers[0])
        assert stage.helpers[0].asked == []
        stage.says(stage.helpers[0], HelperReady())
    (mail,) = stage.mail
    assert mail.error is not None
    assert (mail.submit.request.request_id, mail.error.code, mail.error.stage) == ("poison", "stage_failed", "writer")
    assert "was killed by SIGKILL, 2 times" in mail.error.message
    assert stage.helpers[0].asked == ["fine"]
    assert stage.runner.gauges()["helper_restarts_total"] == 2
    assert stage.failures == []


def test_what_a_helper_said_before_its_death_counts(stage: Stage) -> None:
    """Fault: a request that was prepared is prepared again, for the death was noticed first."""
    stage.submit("done", "done")
    stage.helpers[0]._said.append(msgspec.msgpack.encode(made("done")))  # its death is heard first
    stage.dies(stage.helpers[0])
    assert [mail.error for mail in stage.mail] == [None]
    stage.says(stage.helpers[0], HelperReady())
    assert stage.helpers[0].asked == []


def test_a_helper_that_takes_too_long_is_killed_and_its_request_fails() -> None:
    """Fault: a processor that hangs keeps its request, and all others, for ever."""
    stage = Stage(step_timeout_s=3.0)
    helper = stage.helpers[0]
    stage.says(helper, HelperReady())
    stage.submit("hang", "hang")
    stage.submit("next", "next", (0, 1))
    assert stage.runner.deadline == 3.0
    stage.runner.turn(2.9)
    assert not helper.killed
    stage.runner.turn(3.0)
    assert helper.killed
    assert [(mail.error.code, mail.error.stage) for mail in stage.mail if mail.error] == [("stage_failed", "writer")]
    assert "not prepared within 3 s (step_timeout_s)" in str(stage.mail[0].error)
    stage.turn()
    stage.says(stage.helpers[0], HelperReady())
    assert stage.helpers[0].asked == ["next"]
    assert len(stage.mail) == 1
    stage.end()


def test_a_helper_that_never_loads_is_killed() -> None:
    """Fault: a restarted helper that hangs in its loader keeps every request for ever."""
    stage = Stage(start_timeout_s=5.0)
    assert stage.runner.deadline == 5.0
    stage.runner.turn(5.0)
    assert stage.helpers[0].killed
    stage.end()


def test_helpers_that_end_before_they_are_ready_end_the_stage() -> None:
    """Fault: a crash loop of helpers behind a stage that says it is ready."""
    stage = Stage()
    stage.says(stage.helpers[0], HelperReady())
    stage.dies(stage.helpers[0])
    for _ in range(MOST_STRIKES):
        assert stage.failures == []
        stage.dies(stage.helpers[0])
    assert len(stage.helpers) == 1 + MOST_STRIKES
    assert "before it was ready, 3 times" in str(stage.failures[0])
    stage.end()


def test_a_processor_that_cannot_be_loaded_is_the_stages_failure() -> None:
    """Fault: the cause, and that trying again is hopeless, are lost on the way."""
    stage = Stage()
    error = BrokenCheckpointError("no tokenizer")
    stage.says(stage.helpers[0], HelperFailed(error=ErrorInfo.of(error)))
    assert [(type(found), str(found)) for found in stage.failures] == [(BrokenCheckpointError, "no tokenizer")]
    stage.end()


def test_media_end_where_they_are_prepared(stage: Stage) -> None:
    """Fault: the bytes of every open request's videos lie in the stage until it has ended, or never reach the helper."""
    request = request_of("one", "r")
    prompt = msgspec.structs.replace(request.prompt, media=(Media(kind="video", data=b"x" * 10**6),))
    request = msgspec.structs.replace(request, prompt=prompt)
    stage.runner.submit(Submit(**WHERE, stage_id=0, request=request, attempt=1, order=(0, 0), active_targets=(CLIENT,)))
    assert stage.helpers[0].told[0] == request
    stage.says(stage.helpers[0], made("one"))
    (mail,) = stage.mail
    assert mail.submit.request.prompt == msgspec.structs.replace(prompt, media=())


def test_a_refusal_keeps_its_kind_and_field(stage: Stage) -> None:
    """Fault: what the caller did wrong becomes a fault of the stage."""
    stage.submit("bad", "bad")
    error = ErrorInfo.of(InvalidRequestError.of("prompt", "bad", "good"), stage="writer")
    stage.says(stage.helpers[0], Answer(error=error))
    assert [mail.error for mail in stage.mail] == [error]
    assert (error.code, error.field) == ("invalid_request", "prompt")


def test_a_cancel_is_obeyed_at_once_wherever_the_request_is(stage: Stage) -> None:
    """Fault: a cancelled request reaches the stage, or is prepared."""
    helper = stage.helpers[0]
    stage.submit("inside", "inside")
    stage.submit("waiting", "waiting", (0, 1))
    stage.submit("other", "other", (0, 2))
    stage.runner.cancel("inside", 1)
    stage.runner.cancel("waiting", 1)
    assert stage.runner.gauges()["preparing"] == 1
    stage.says(helper, made("inside"))
    assert helper.asked == ["inside", "other"]
    assert stage.mail == []


def test_what_is_no_answer_is_the_end_of_its_helper(stage: Stage) -> None:
    """Fault: garbage from a broken helper ends the worker."""
    stage.submit("fine", "fine")
    helper = stage.helpers[0]
    helper._said.append(b"\xc1garbage")
    helper._theirs.send(b"x")
    stage.turn()
    assert helper.killed
    stage.says(stage.helpers[0], HelperReady())
    assert stage.helpers[0].asked == ["fine"]


def test_helpers_are_described_with_what_they_have(stage: Stage) -> None:
    """Fault: a process that nobody can find."""
    stage.submit("long", "long")
    described = stage.runner.debug_state()["helpers"]
    assert described["0"] == {"pid": stage.helpers[0].pid, "state": "ready", "prepares": ["long"]}
