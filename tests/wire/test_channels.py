"""The control plane's sockets, in one process."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence

import msgspec
import pytest

from omnistage.wire import channels
from omnistage.wire.channels import BATCH, TOGETHER_NBYTES, DriverChannel, WorkerChannel
from omnistage.wire.messages import Cancel
from omnistage.wire.worker import FromWorker, Heartbeat, Hello, Shutdown, ToWorker

CANCEL = Cancel(process="p", replica=0, epoch=1, request_id="r", attempt=1, stage_id=0)


def connect(identity: str = "p/0/1/t") -> tuple[DriverChannel, WorkerChannel]:
    driver = DriverChannel()
    worker = WorkerChannel(driver.bind(), identity)
    worker.send(Hello(process="p", replica=0, epoch=1, pid=1))
    assert waits_for(driver)
    return driver, worker


def waits_for(channel: DriverChannel | WorkerChannel, timeout_s: float = 5.0) -> bool:
    return bool(select.select([channel], [], [], timeout_s)[0])


def drain(driver: DriverChannel, worker: WorkerChannel, count: int) -> list[tuple[str, FromWorker]]:
    messages: list[tuple[str, FromWorker]] = []
    while len(messages) < count and select.select([driver.fileno(), worker.fileno()], [], [], 5.0)[0]:
        messages += driver.receive()
        if waits_for(worker, 0):  # as its loop does: nobody else tells it that there is something to do
            assert worker.receive() == []  # what the socket did not take leaves in here
    return messages


def test_messages_go_both_ways_and_the_descriptors_tell() -> None:
    """Fault: a message waits unseen although the descriptor is quiet."""
    driver, worker = connect()
    [(identity, hello)] = driver.receive()
    assert identity == "p/0/1/t" and isinstance(hello, Hello)
    assert not waits_for(driver, 0)
    assert driver.send(identity, CANCEL)
    assert waits_for(worker)
    assert worker.receive() == [CANCEL]
    assert not waits_for(worker, 0)
    driver.close()
    worker.close()


def test_a_flood_is_taken_in_bounded_batches_and_nothing_is_lost() -> None:
    """Fault: the edge of the last messages is swallowed and they wait for ever."""
    driver, worker = connect()
    driver.receive()
    beats = [Heartbeat(step_age_s={0: float(index)}) for index in range(3 * BATCH + 7)]
    for beat in beats:
        assert worker.send(beat)
    time.sleep(0.05)
    first = driver.receive()
    assert len(first) <= BATCH
    rest = drain(driver, worker, len(beats) - len(first))
    assert [message for _, message in first + rest] == beats
    driver.close()
    worker.close()


def test_a_send_does_not_swallow_the_edge_of_what_came_in() -> None:
    """Fault: a send from another thread takes away what tells the reader that something has come."""
    driver, worker = connect()
    driver.receive()
    stop = threading.Event()

    def talk() -> None:
        while not stop.is_set():
            worker.send(Heartbeat(step_age_s={}))
            time.sleep(0.0002)

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        for _ in range(300):
            assert driver.send("p/0/1/t", CANCEL)
            assert waits_for(worker, 2.0)
            got = worker.receive()
            assert got in ([CANCEL], []) or set(map(type, got)) == {Cancel}
            while not got and waits_for(worker, 2.0):
                got = worker.receive()
            assert got
            driver.receive()
    finally:
        stop.set()
        talker.join()
        driver.close()
        worker.close()


def test_a_large_message_arrives_whole_in_its_place() -> None:
    """Fault: a message that comes in several pieces is cut, or what waits behind it overtakes it."""
    driver, worker = connect()
    driver.receive()
    large = Hello(process="p" * 2**20, replica=0, epoch=1, pid=1)
    words: list[FromWorker] = [Heartbeat(step_age_s={0: 1.0}), large, Heartbeat(step_age_s={0: 2.0})]
    for word in words:
        assert worker.send(word)
    assert [message for _, message in drain(driver, worker, len(words))] == words
    assert not waits_for(worker, 0)  # nothing is left that would wait to leave
    driver.close()
    worker.close()


def test_what_is_ready_at_once_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: every message of a step wakes the driver; or the first of many large ones waits until the last is made."""
    driver, worker = connect()
    driver.receive()
    writes: list[int] = []
    write = worker._line.write

    def counted(messages: Sequence[bytes]) -> bool:
        writes.append(len(messages))
        return write(messages)

    monkeypatch.setattr(worker._line, "write", counted)
    small: list[FromWorker] = [Heartbeat(step_age_s={0: float(index)}) for index in range(5)]
    large: list[FromWorker] = [Hello(process="p" * TOGETHER_NBYTES, replica=0, epoch=1, pid=1)] * 2
    assert worker.send(*small, *large, *small) and writes == [6, 1, 5]
    assert [message for _, message in drain(driver, worker, 12)] == [*small, *large, *small]
    driver.close()
    worker.close()


def test_what_a_worker_said_last_outlives_it_and_its_place_is_free() -> None:
    """Fault: the last words of the dead are lost, or its descriptor keeps the driver awake for ever."""
    driver, worker = connect()
    driver.receive()
    assert worker.send(Heartbeat(step_age_s={0: 3.0}))
    worker.close()
    assert waits_for(driver)
    assert [message for _, message in driver.receive()] == [Heartbeat(step_age_s={0: 3.0})]
    driver.receive()
    assert not waits_for(driver, 0)
    assert not driver.send("p/0/1/t", CANCEL)
    driver.close()


def test_a_worker_that_reads_nothing_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: what is for a worker that is stuck is kept without end."""
    monkeypatch.setattr(channels, "QUEUE", 3)
    driver, worker = connect()
    driver.receive()
    sent = 0
    while driver.send("p/0/1/t", CANCEL):
        sent += 1
        assert sent < 100_000
    got: list[ToWorker] = []
    while len(got) < sent and waits_for(worker):
        got += worker.receive()
        driver.receive()
    assert got == [CANCEL] * sent
    assert driver.send("p/0/1/t", CANCEL)
    driver.close()
    worker.close()


def test_an_unknown_peer_is_told_apart() -> None:
    """Fault: a command to a dead worker is queued for ever."""
    driver, worker = connect()
    assert not driver.send("nobody", Shutdown())
    driver.close()
    assert not driver.send("p/0/1/t", Shutdown())
    worker.close()
    assert not worker.send(Heartbeat(step_age_s={}))
    assert worker.receive() == [] and driver.receive() == []


def test_a_channel_that_was_never_bound_holds_nothing() -> None:
    """Fault: a driver that is made and never started blocks its process when it is collected."""
    threads = threading.active_count()
    driver = DriverChannel()
    driver.close()
    assert threading.active_count() == threads
    del driver


def test_a_malformed_message_is_dropped_and_counted() -> None:
    """Fault: one bad frame ends the driver."""
    driver, worker = connect()
    driver.receive()
    for words in (b"\xc1", b""):
        worker._lines.send(worker._line, words)
    worker.send(Heartbeat(step_age_s={}))
    got = drain(driver, worker, 1)
    assert [type(message) for _, message in got] == [Heartbeat]
    assert driver.malformed == 2
    driver.close()
    worker.close()


def test_every_message_type_survives_the_wire() -> None:
    """Fault: a union member that msgpack cannot tell apart."""
    for kind in (CANCEL, Shutdown()):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(kind), type=Cancel | Shutdown) == kind
