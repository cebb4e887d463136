"""Whole walks through the machine, and that a recorded log gives the same commands."""

import msgspec

from omnistage.orchestrator.machine import Orchestrator
from omnistage.wire.messages import Command, Event
from tests.orchestrator.traces import Trace, edge, expect_empty, kinds, ref, stage


def chat() -> Trace:
    """Text streamed to the caller while it is spoken; one item of each."""
    given = Trace(stage(0, "text"), stage(1, "audio"), edge(0, 1))
    given.arrive(wants=("text", "audio"), stream=True)
    given.emit(0, -1, 0, ref(1))
    given.emit(0, 1, 0, ref(2))
    given.take(0, 0)
    given.emit(1, -1, 0, ref(3, owner="p1/0"))
    given.consume(0, 1, 0)
    given.emit(0, -1, 1, None, last=True)
    given.emit(0, 1, 1, None, last=True)
    given.done(0)
    given.take(1, 0)
    given.emit(1, -1, 1, ref(4, owner="p1/0"), last=True)
    given.done(1)
    return given


def test_a_chat_with_streamed_audio() -> None:
    """Fault: any step of the main walk is missing, doubled or out of order."""
    given = chat()
    assert [kinds(told) for told in given.told[3:]] == [
        ["Submit"],
        ["Reply", "Release"],
        ["Submit", "Feed"],
        [],
        ["Reply", "Release"],
        ["Grant", "Release"],
        ["Reply"],
        ["Feed"],
        [],
        ["Grant"],
        ["Reply", "Release"],
        ["Close"],
    ]
    expect_empty(given)


def test_a_diamond_ends_after_both_its_branches() -> None:
    """Fault: a target with two sources is started twice, or ends with one of them."""
    given = Trace(stage(0), stage(1), stage(2), stage(3, "text"), edge(0, 1), edge(0, 2), edge(1, 3), edge(2, 3))
    given.arrive()
    given.emit(0, 1, 0, ref(1), last=True)
    given.emit(0, 2, 0, ref(2), last=True)
    given.done(0)
    assert kinds(given.emit(1, 3, 0, ref(3), last=True)) == ["Submit", "Feed"]
    assert kinds(given.emit(2, 3, 0, ref(4), last=True)) == ["Feed"]
    given.done(1)
    given.done(2)
    given.emit(3, -1, 0, None, last=True)
    assert kinds(given.done(3)) == ["Close", "Release", "Release"]
    expect_empty(given)


def test_a_recorded_log_gives_the_same_commands() -> None:
    """Fault: the machine's answer depends on something else than its events."""
    given = chat()
    log = msgspec.msgpack.encode(given.events)
    again = Orchestrator(given.config)
    told = [again.start(0.0)]
    told += [again.handle(event) for event in msgspec.msgpack.decode(log, type=list[Event])]
    assert told == given.told
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=list[list[Command]]) == given.told
