"""The connector between hosts: payloads stay with their owner, and readers fetch them over zmq, without a service between.

    owner:  try_put copies once into memory of its own; a ROUTER bound to `host` hands it out without another copy
    reader: can_read starts the fetch; get takes what has come (and waits for it, at most `wait_s`, if nobody asked before)

Each connector has one IO thread, in which all its sockets live; `arrived` is called there whenever a fetch has ended, well or
badly, so that a worker need not block: it parks the item, as it does for an arena's descriptor, and asks `can_read` again.
A fetch that fails (its peer died, does not answer, has released the payload, refuses the token) makes `can_read` true and `get`
raise ConnectorError, which names the peer. What has come and is not taken within `wait_s` is forgotten. The token keeps
strangers out; it is sent in clear, so hosts must share a network that is trusted. Sizes in bytes.
"""

from __future__ import annotations

import hmac
import itertools
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from omnistage.config.stage import EdgeId
from omnistage.connectors.base import inline_ref, lay_out, read, write
from omnistage.connectors.budget import BudgetState
from omnistage.connectors.tcp_peers import LARGEST_QUESTION_NBYTES, Answer, Ask, FetchState, Free, PeerState, Place
from omnistage.core.errors import ConnectorError, PayloadTooLargeError
from omnistage.core.payload import MultimodalPayload, PayloadRef

logger = logging.getLogger(__name__)

WAIT_S = 10.0
_CLOSE_S = 2.0
_MOST_CALLS = 4096


def _nobody() -> None:
    return


class TcpConnector:
    """`host` is the address by which others reach this one; `token` is what all that may read share. Raises ConnectorError
    for an address that is not of this machine."""

    name = "tcp"

    def __init__(
        self,
        owner: str,
        epoch: int,
        *,
        host: str,
        token: str,
        capacity_nbytes: int,
        wait_s: float = WAIT_S,
        arrived: Callable[[], None] = _nobody,
    ) -> None:
        self._owner = owner
        self._epoch = epoch
        self._token = token
        self._wait_s = wait_s
        self._arrived = arrived
        self._lock = threading.Lock()
        self._keys = itertools.count()
        self._numbers = itertools.count()
        self._counts: Counter[str] = Counter()
        self._budget = BudgetState(capacity_nbytes)
        self._held: dict[int, bytearray] = {}
        self._fetches: dict[Place, FetchState] = {}
        self._peers: dict[str, PeerState] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._closed = False
        self._decoder: msgspec.msgpack.Decoder[Ask | Free] = msgspec.msgpack.Decoder(Ask | Free)
        self._context = zmq.Context(io_threads=1)
        self._server, self._location = _bind(self._context, host)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="omnistage-tcp", daemon=True)
        self._thread.start()

    # ---- any thread ----

    def try_put(self, payload: MultimodalPayload, *, oldest_of: EdgeId | None = None) -> PayloadRef | None:
        places, nbytes = lay_out(payload)
        key = next(self._keys)
        inline = inline_ref(payload, places, nbytes, connector=self.name, owner=self._owner, epoch=self._epoch, key=key)
        if inline is not None:
            return inline
        if nbytes > self._budget.capacity_nbytes:
            raise PayloadTooLargeError(
                f"a payload of {nbytes} bytes exceeds the connector's {self._budget.capacity_nbytes} bytes"
            )
        with self._lock:
            if not self._budget.take(key, nbytes, oldest_of):
                return None
        try:
            data = bytearray(nbytes)
            write(payload, places, memoryview(data))
        except BaseException:
            with self._lock:
                self._budget.give_back(key)
            raise
        with self._lock:
            self._held[key] = data
        metadata = dict(payload.metadata)
        return PayloadRef(self.name, self._owner, self._epoch, key, places, metadata, nbytes, None, self._location)

    def can_read(self, ref: PayloadRef) -> bool:
        """False while the bytes are on their way; asking sends for them."""
        if ref.inline is not None or self._is_mine(ref):
            return True
        fetch = self._fetch(ref)
        return fetch.ended.is_set() or time.monotonic() >= fetch.due_s

    def get(self, ref: PayloadRef) -> MultimodalPayload:
        if ref.inline is not None:
            return read(ref, memoryview(ref.inline))
        if self._is_mine(ref):
            with self._lock:
                data = self._held.get(ref.key)
            if data is None:
                raise ConnectorError(f"payload {ref.key} has been released")
            return read(ref, memoryview(data))
        return read(ref, self._take(ref))

    def release(self, ref: PayloadRef) -> None:
        if ref.inline is not None:
            return
        if ref.owner != self._owner:
            place = _place_of(ref)
            with self._lock:
                self._fetches.pop(place, None)
            self._call(lambda: self._free_there(place))
            return
        self._free(ref.owner, ref.epoch, ref.key)

    def health(self) -> dict[str, float]:
        with self._lock:
            return {
                "used_nbytes": self._budget.used_nbytes,
                "capacity_nbytes": self._budget.capacity_nbytes,
                "payloads": len(self._held),
                "fetches": len(self._fetches),
                **{name: self._counts[name] for name in ("stale_releases", "refused_peers", "malformed")},
            }

    def close(self) -> None:
        with self._lock:
            self._held.clear()
            self._budget.clear()
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def _is_mine(self, ref: PayloadRef) -> bool:
        return (ref.owner, ref.epoch) == (self._owner, self._epoch)

    def _free(self, owner: str, epoch: int, key: int) -> None:
        with self._lock:
            if (owner, epoch) != (self._owner, self._epoch) or self._held.pop(key, None) is None:
                self._counts["stale_releases"] += 1
            else:
                self._budget.give_back(key)

    def _fetch(self, ref: PayloadRef) -> FetchState:
        """The fetch of `ref`, begun now if there is none."""
        place = _place_of(ref)
        with self._lock:
            fetch = self._fetches.get(place)
            if fetch is not None:
                return fetch
            fetch = self._fetches[place] = FetchState(place, time.monotonic() + self._wait_s)
        if not self._call(lambda: self._ask(fetch)):
            fetch.end(error="this connector is closed or asked for too much at once")
        return fetch

    def _take(self, ref: PayloadRef) -> memoryview:
        """The bytes of another's payload; they are the caller's from now on. Raises ConnectorError."""
        fetch = self._fetch(ref)
        fetch.ended.wait(max(0.0, fetch.due_s - time.monotonic()))
        with self._lock:
            self._fetches.pop(fetch.place, None)
        what = f"payload {ref.key} of {ref.owner} cannot be fetched from {ref.location}"
        if fetch.data is None:
            raise ConnectorError(f"{what}: {fetch.error or f'no answer within {self._wait_s:g} s'}")
        if len(fetch.data) != ref.nbytes:
            raise ConnectorError(f"{what}: {len(fetch.data)} bytes came where {ref.nbytes} were due")
        return fetch.data

    def _call(self, call: Callable[[], None]) -> bool:
        """Has the IO thread do something. False if it does nothing more, or has too much to do."""
        with self._lock:
            if self._closed or len(self._calls) >= _MOST_CALLS:
                return False
            self._calls.append(call)
            os.eventfd_write(self._wake, 1)
            return True

    # ---- IO thread ----

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        except Exception:
            logger.exception(
                "the tcp connector of %s has failed; what it holds cannot be fetched any more", self._owner
            )
        finally:
            with self._lock:
                self._closed = True
                os.close(self._wake)
            for peer in self._peers.values():
                peer.fail("this connector is closed")
                peer.close()
            self._server.close(0)
            self._context.term()
            self._arrived()

    def _turn(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        poller.register(self._server, zmq.POLLIN)
        for peer in self._peers.values():
            poller.register(peer.socket, zmq.POLLIN)
            poller.register(peer.monitor, zmq.POLLIN)
        ready = dict(poller.poll(self._timeout_ms()))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        while self._calls and not self._closed:
            self._calls.popleft()()
        if self._server in ready:
            self._serve()
        ended = [fetch for peer in self._peers.values() if peer.socket in ready for fetch in peer.receive()]
        ended += self._lose([peer for peer in self._peers.values() if peer.monitor in ready and peer.is_lost()])
        ended += self._give_up(time.monotonic())
        if ended:
            self._arrived()

    def _timeout_ms(self) -> int | None:
        with self._lock:
            first_s = min((fetch.due_s for fetch in self._fetches.values()), default=None)
        return None if first_s is None else max(0, int((first_s - time.monotonic()) * 1000) + 1)

    def _serve(self) -> None:
        """Answers what has come."""
        while True:
            try:
                frames = self._server.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                peer, body = frames
                question = self._decoder.decode(body)
            except (ValueError, msgspec.MsgspecError):
                self._count("malformed")
                continue
            self._answer(peer, question)

    def _answer(self, peer: bytes, question: Ask | Free) -> None:
        is_known = hmac.compare_digest(question.token.encode(), self._token.encode())
        if not is_known:
            self._count("refused_peers")
        match question:
            case Ask(number=number) if not is_known:
                self._say(peer, Answer(number, "it refuses the token"))
            case Ask(number=number, place=place):
                data = self._held.get(place.key)
                if data is None or (place.owner, place.epoch) != (self._owner, self._epoch):
                    self._say(peer, Answer(number, "it is not held there any more"))
                else:
                    self._say(peer, Answer(number), data)
            case Free(place=place) if is_known:
                self._free(place.owner, place.epoch, place.key)

    def _say(self, peer: bytes, answer: Answer, *data: bytearray) -> None:
        """To a peer that may be gone: then it is dropped."""
        frames: list[Any] = [peer, msgspec.msgpack.encode(answer), *data]
        try:
            self._server.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self._count("unsent_answers")

    def _ask(self, fetch: FetchState) -> None:
        peer = self._peer(fetch.place.location)
        number = next(self._numbers)
        if peer is None:
            fetch.end(error="that is no address")
        elif not peer.send(Ask(self._token, number, fetch.place)):
            fetch.end(error="too much was asked of it at once")
        else:
            peer.asked[number] = fetch
            return
        self._arrived()

    def _free_there(self, place: Place) -> None:
        peer = self._peer(place.location)
        if peer is not None:
            peer.send(Free(self._token, place))

    def _peer(self, location: str) -> PeerState | None:
        if location not in self._peers:
            try:
                self._peers[location] = PeerState(self._context, location)
            except zmq.ZMQError:
                return None
        return self._peers[location]

    def _lose(self, lost: list[PeerState]) -> list[FetchState]:
        ended: list[FetchState] = []
        for peer in lost:
            ended += peer.receive()  # what it said last
            ended += peer.fail("it cannot be reached")
            del self._peers[peer.location]
            peer.close()
        return ended

    def _give_up(self, now_s: float) -> list[FetchState]:
        """Ends fetches that are overdue, and forgets those that nobody has taken."""
        with self._lock:
            overdue = [fetch for fetch in self._fetches.values() if fetch.due_s <= now_s]
            for fetch in overdue:
                if fetch.ended.is_set():
                    del self._fetches[fetch.place]
                fetch.due_s = now_s + self._wait_s
        unanswered = [fetch for fetch in overdue if not fetch.ended.is_set()]
        for fetch in unanswered:
            fetch.end(error=f"no answer within {self._wait_s:g} s")
            for peer in self._peers.values():
                peer.asked = {number: asked for number, asked in peer.asked.items() if asked is not fetch}
        return unanswered

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def _place_of(ref: PayloadRef) -> Place:
    return Place(ref.location, ref.owner, ref.epoch, ref.key)


def _bind(context: zmq.Context[Any], host: str) -> tuple[zmq.Socket[Any], str]:
    """A server at a port of its own, and "host:port"."""
    server = context.socket(zmq.ROUTER)
    server.setsockopt(zmq.LINGER, 0)
    server.setsockopt(zmq.MAXMSGSIZE, LARGEST_QUESTION_NBYTES)
    server.setsockopt(zmq.IPV6, int(":" in host))
    try:
        port = server.bind_to_random_port(f"tcp://[{host}]" if ":" in host else f"tcp://{host}")
    except zmq.ZMQError as error:
        server.close(0)
        context.term()
        raise ConnectorError(
            f"host {host!r}: cannot be listened at: {error}; accepted: an address of this machine"
        ) from None
    return server, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
