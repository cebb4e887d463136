"""Where a runtime leaves what belongs to one request, and where the request's consumer finds it.

`put` is called in any thread and never blocks; `take` waits in the event loop that made the mailbox's bell. Text deltas that
nobody has taken yet are merged, so a slow consumer holds one item of text; media are bounded by the runtime's window,
because they are acknowledged only after they were taken. Mailboxes of one engine share a bell: what a runtime says to many of
them at once wakes the event loop once. Knows nothing of runtimes, HTTP or outputs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from omnistage.core.payload import merge
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Taken

Message = ClientItem | ClientRestarted | ClientClosed


class Parcel(msgspec.Struct, frozen=True):
    """A message with the receipts of every item that was merged into it."""

    message: Message
    receipts: tuple[Taken, ...] = ()


class BellState:
    """Calls what was rung for in the event loop that made it, which is `loop`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._rung: list[Callable[[], None]] = []

    def ring(self, call: Callable[[], None]) -> None:
        """From any thread. Raises RuntimeError where the loop has ended."""
        with self._lock:
            self._rung.append(call)
            if len(self._rung) > 1:
                return
            try:
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                self._rung.clear()
                raise

    def _answer(self) -> None:
        with self._lock:
            rung, self._rung = self._rung, []
        for call in rung:
            call()


class MailboxState:
    """The mailbox of one request. After `ClientClosed` nothing more is taken in."""

    def __init__(self, bell: BellState) -> None:
        self._bell = bell
        self._lock = threading.Lock()
        self._parcels: deque[Parcel] = deque()
        self._waiter: asyncio.Future[None] | None = None  # an Event does more than one consumer needs, for every token
        self._ended = asyncio.Event()
        self._closed = False

    def put(self, message: Message) -> None:
        """Takes a message over. Never blocks, never raises."""
        with self._lock:
            if self._closed:
                return
            self._closed = isinstance(message, ClientClosed)
            waking = not self._parcels or self._closed
            self._add(message)
        if waking:
            self._wake()

    def _add(self, message: Message) -> None:
        match message:
            case ClientItem():
                receipts = (Taken(message.request_id, message.source, message.seq, message.attempt),)
                held = self._parcels[-1] if self._parcels else None
                if held is not None and isinstance(held.message, ClientItem) and _joins(held.message, message):
                    self._parcels[-1] = Parcel(_joined(held.message, message), held.receipts + receipts)
                else:
                    self._parcels.append(Parcel(message, receipts))
            case ClientRestarted():
                self._parcels.clear()
                self._parcels.append(Parcel(message))
            case ClientClosed():
                self._parcels.append(Parcel(message))

    def _wake(self) -> None:
        try:
            self._bell.ring(self._notify)
        except RuntimeError:  # the loop has ended, and with it whoever would have taken this
            self._closed = True

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._closed:
            self._ended.set()

    async def take(self) -> Parcel:
        """The next message, for the one consumer. The runtime's deadlines bound the wait: each request ends with ClientClosed."""
        while True:
            with self._lock:
                if self._parcels:
                    return self._parcels.popleft()
                self._waiter = self._bell.loop.create_future()
            await self._waiter

    async def ended(self, timeout_s: float) -> bool:
        """Waits until the request has reached its terminal state; False if that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True


def _joins(held: ClientItem, new: ClientItem) -> bool:
    """True if `new` goes on where `held` ends: text of the same stage."""
    return held.source == new.source and held.final_output_type == new.final_output_type == "text"


def _joined(held: ClientItem, new: ClientItem) -> ClientItem:
    return replace(held, seq=new.seq, payload=merge([held.payload, new.payload]), last=new.last)
