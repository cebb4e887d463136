"""The readers' side of tcp, against a peer that is written out here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from omnistage.connectors.tcp_peers import Answer, Ask, FetchState, Free, PeerState, Place

DEADLINE_S = 5


class World:
    """A peer, and the owner that it is connected to: a bare ROUTER."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.owner = self.context.socket(zmq.ROUTER)
        port = self.owner.bind_to_random_port("tcp://127.0.0.2")
        self.place = Place(f"127.0.0.2:{port}", "a/0", 1, 7)
        self.peer = PeerState(self.context, self.place.location)
        self.fetch = FetchState(self.place, time.monotonic() + DEADLINE_S)

    def ask(self, number: int = 3) -> None:
        assert self.peer.send(Ask("secret", number, self.place))
        self.peer.asked[number] = self.fetch

    def hears(self) -> tuple[bytes, Any]:
        assert self.owner.poll(DEADLINE_S * 1000)
        identity, body = self.owner.recv_multipart()
        return identity, msgspec.msgpack.decode(body, type=Ask | Free)

    def receive(self) -> list[FetchState]:
        assert self.peer.socket.poll(DEADLINE_S * 1000)
        return list(self.peer.receive())


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.context.destroy(0)


def test_an_answer_ends_what_was_asked(world: World) -> None:
    """Fault: bytes that are copied on their way, or belong to another question."""
    world.ask()
    identity, question = world.hears()
    assert question == Ask("secret", 3, world.place)
    for answer in (Answer(2), Answer(3)):
        world.owner.send_multipart([identity, msgspec.msgpack.encode(answer), bytes([answer.number]) * 100_000])
    ended: list[FetchState] = []
    while not ended:
        ended += world.receive()
    assert ended == [world.fetch] and world.fetch.ended.is_set() and not world.peer.asked
    assert world.fetch.data is not None and world.fetch.data.readonly
    assert world.fetch.data.tobytes() == b"\3" * 100_000


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([msgspec.msgpack.encode(Answer(3, "it is not held there any more"))], "it is not held there any more"),
        ([msgspec.msgpack.encode(Answer(3))], "its answer holds no payload"),
    ],
)
def test_a_refusal_says_why(world: World, frames: list[bytes], error: str) -> None:
    """Fault: a fetch that ends without bytes and without a reason."""
    world.ask()
    identity, _ = world.hears()
    world.owner.send_multipart([identity, *frames])
    assert world.receive() == [world.fetch]
    assert (world.fetch.data, world.fetch.error) == (None, error)


def test_another_language_is_passed_over(world: World) -> None:
    """Fault: whoever listens at a wrong port ends the reader's IO thread."""
    world.ask()
    identity, _ = world.hears()
    world.owner.send_multipart([identity, b"\xc1HTTP/1.1 400"])
    assert world.receive() == [] and not world.fetch.ended.is_set()


def test_a_broken_connection_is_told_once(world: World) -> None:
    """Fault: a peer that is gone looks like one that is slow."""
    world.ask()
    world.hears()
    assert not world.peer.is_lost()
    world.owner.close(0)
    deadline = time.monotonic() + DEADLINE_S
    while not world.peer.is_lost():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert world.peer.fail("it cannot be reached") == [world.fetch]
    assert world.fetch.error == "it cannot be reached" and world.peer.fail("again") == []


def test_what_is_no_address_is_an_error_and_leaves_nothing(world: World) -> None:
    """Fault: a socket and its monitor for every corrupt reference."""
    with pytest.raises(zmq.ZMQError):
        PeerState(world.context, "nowhere")
    world.peer.close()
    world.owner.close(0)
    world.context.term()
