"""Messages of several frames over a stream socket: whole, in order, without waiting, to the end of the other process."""

import random
import socket
import threading

import pytest

from omnistage.wire.stream import FrameStream


@pytest.fixture
def ends() -> tuple[FrameStream, FrameStream]:
    one, other = socket.socketpair()
    return FrameStream(one), FrameStream(other)


def read(end: FrameStream, count: int, other: FrameStream) -> list[list[bytes]]:
    """At least `count` messages that come while `other` goes on sending what waits."""
    messages: list[list[bytes]] = []
    while len(messages) < count:
        other.flush()
        messages += [[bytes(frame) for frame in frames] for frames in end.receive()]
    return messages


def test_messages_arrive_whole_and_in_order(ends: tuple[FrameStream, FrameStream]) -> None:
    """Fault: frames that are cut where the socket cut them, empty frames and empty messages lost, sizes mixed up."""
    chance = random.Random(7)
    sizes = (0, 0, 1, 7, 4096, 65535, 65536, 65537, 400_000)
    sent = [[chance.randbytes(chance.choice(sizes)) for _ in range(chance.choice((0, 1, 3, 300)))] for _ in range(40)]
    for frames in sent:
        ends[0].send(frames)
    assert read(ends[1], len(sent), ends[0]) == sent
    assert ends[0].waiting_nbytes == 0
    ends[0].send([b"ends in nothing", b"", b""])
    assert [[bytes(frame) for frame in frames] for frames in ends[1].receive()] == [[b"ends in nothing", b"", b""]]


def test_an_end_that_reads_nothing_holds_nobody_up(ends: tuple[FrameStream, FrameStream]) -> None:
    """Fault: a send that waits, bytes that are lost or not counted."""
    for _ in range(20):
        ends[0].send([bytes(100_000), memoryview(bytes(50))])
    assert 1_000_000 < ends[0].waiting_nbytes < 20 * (100_050 + 20)
    assert all(len(frames) == 2 for frames in read(ends[1], 20, ends[0]))
    assert ends[0].waiting_nbytes == 0


def test_what_was_sent_before_the_end_arrives(ends: tuple[FrameStream, FrameStream]) -> None:
    """Fault: the last words of a process that dies are lost; a send to it raises in whoever sends."""
    ends[0].send([b"last words"])
    ends[0].close()
    assert [bytes(frames[0]) for frames in ends[1].receive()] == [b"last words"]
    assert ends[1].ended
    ends[1].send([bytes(1_000_000)])
    assert ends[1].waiting_nbytes == 0


def test_threads_do_not_mix_their_messages(ends: tuple[FrameStream, FrameStream]) -> None:
    """Fault: a frame of one caller between those of another."""

    def send(number: int) -> None:
        for _ in range(50):
            ends[0].send([bytes([number]) * 3000, bytes([number])])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    messages = read(ends[1], 200, ends[0])
    for thread in threads:
        thread.join()
    assert len(messages) == 200 and all(set(long) == set(short) for long, short in messages)
