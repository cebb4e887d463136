"""What callers are to be told, in order and in slices."""

from typing import Any

import pytest

from omnistage.core.payload import PayloadRef
from omnistage.runtime import outbox as module
from omnistage.runtime.outbox import OutboxState, Told
from omnistage.wire.messages import Close, ControlReply, Release, Reply, Restarted


def ref(key: int, **changes: Any) -> PayloadRef:
    return PayloadRef(**{"connector": "shm", "owner": "tape/0", "epoch": 1, "key": key, **changes})


def item(seq: int, at: PayloadRef | None = None) -> Reply:
    return Reply(request_id="r", source=0, seq=seq, final_output_type="audio", ref=at, last=False)


def test_everything_is_told_once_and_in_order() -> None:
    """Fault: an end that overtakes the items before it, a release that is told before its item, a word that is told twice."""
    told: list[Told] = []
    commands: list[Told] = [
        item(0, ref(0)),
        Release(ref=ref(0)),
        ControlReply(call_id="0", results={}),
        Restarted(request_id="r", attempt=2),
        item(1),
        Close(request_id="r", outcome="finished"),
    ]
    outbox = OutboxState(told.append, slice_s=60.0)
    for command in commands:
        outbox.put(command)
    assert len(outbox) == 6
    outbox.tell_some()
    assert told == commands and len(outbox) == 0


def test_a_slice_ends_in_time_and_tells_one_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: 64 sounds that are copied before anybody looks at what workers have said, or a slice that tells nothing at all."""
    now, told = [0.0], list[Told]()
    monkeypatch.setattr(module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))

    def tell(command: Told) -> None:
        told.append(command)
        now[0] += 0.0003 if len(told) < 4 else 1.0

    outbox = OutboxState(tell, slice_s=0.0005)
    for seq in range(6):
        outbox.put(item(seq))
    left = []
    for _ in range(5):
        outbox.tell_some()
        left.append(len(outbox))
    assert left == [4, 2, 1, 0, 0]


def test_a_payload_is_to_be_read_until_its_last_item_is_told() -> None:
    """Fault: the bytes of an item are released, and written over, before they were copied."""
    outbox = OutboxState(lambda command: None, slice_s=0.0)
    assert not outbox.will_read(ref(0))
    outbox.put(item(0, ref(0)))
    outbox.put(item(1, ref(0, metadata={"other": "target"})))
    assert outbox.will_read(ref(0))
    assert not any(outbox.will_read(other) for other in (ref(1), ref(0, epoch=2), ref(0, owner="codec/0")))
    outbox.tell_some()
    assert outbox.will_read(ref(0))
    outbox.tell_some()
    assert not outbox.will_read(ref(0))


def test_an_item_without_a_payload_holds_none_back() -> None:
    """Fault: releases that wait for what is never read."""
    outbox = OutboxState(lambda command: None, slice_s=0.0)
    outbox.put(item(0))
    assert not outbox.will_read(ref(0))
