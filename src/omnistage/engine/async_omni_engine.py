"""One model that is being served, for an asyncio program: requests in, outputs out, aborts, health, an orderly end.

Holds a runtime and what is known of its model (`compose.composed` makes both). Brings what the runtime says in its own
threads to the event loop. Ends a request in the runtime as soon as nobody reads it any more. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from omnistage.core.errors import (
    EngineClosedError,
    ErrorInfo,
    OmniError,
    RequestAbortedError,
    StageFailedError,
    StageUnavailableError,
    UnsupportedByModelError,
)
from omnistage.core.output import OmniRequestOutput
from omnistage.core.request import OmniRequest, without_media
from omnistage.engine import inspection
from omnistage.engine.admission import Ask, admit
from omnistage.engine.mailbox import BellState, MailboxState, Message, Parcel
from omnistage.engine.outputs import last_part, part_of, whole
from omnistage.engine.records import RecordState, RequestRecord, request_metrics
from omnistage.engine.served import ServedModel
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Runtime, RuntimeStatus, Taken

_ABORT_TIMEOUT_S = 10.0
_CONTROL_TIMEOUT_S = 35.0
_SETTLED_TIMEOUT_S = 86_400.0  # longer than any stage may take to start
_RETRY_AFTER_S = 5.0


Observer = Callable[[RequestRecord], None]


class AsyncOmniEngine:
    """All methods belong to one event loop, but for `status`. `observer` is told of each admitted request once, when it
    has ended for its consumer."""

    def __init__(self, model: ServedModel, runtime: Runtime, *, observer: Observer | None = None) -> None:
        self.model = model
        self._runtime = runtime
        self._observer = observer
        self._open: dict[str, MailboxState] = {}
        self._media: dict[str, int] = {}
        self._bell: BellState | None = None
        self._taken: list[Taken] = []
        self._closed = False

    def start(self) -> None:
        """Starts the stages without waiting for them; requests may come at once."""
        self._runtime.start()

    async def generate(self, ask: Ask) -> AsyncGenerator[OmniRequestOutput, None]:
        """The answer to `ask`: with `ask.stream` parts as they come, else one whole output.

        Raises the request's error as the named exception. Closing the iterator early aborts the request.
        """
        if self._closed:
            raise EngineClosedError("the engine is closed")
        request, stream = admit(self.model, ask), ask.stream
        parts = self._parts(request)
        del ask, request  # media may be megabytes, and the answer may take its time
        try:
            if stream:
                async for part in parts:
                    if part is not None:
                        yield part
            else:
                yield await _gathered(parts)
        finally:
            await parts.aclose()

    async def _parts(self, request: OmniRequest) -> AsyncGenerator[OmniRequestOutput | None, None]:
        """Parts of the answer; None says that the parts before it are void."""
        record = RecordState(self.model, streamed=request.stream)
        mailbox = self._submitted(request, record)
        request = without_media(request)
        ended = False
        try:
            while not ended:
                parcel = await mailbox.take()
                ended = isinstance(parcel.message, ClientClosed)
                yield self._opened(request, parcel, record)
                self._acknowledge(parcel)
        finally:
            if not ended:
                self._runtime.abort(request.request_id, "the client has gone")
            if self._observer is not None:
                self._observer(record.end(None))

    def _submitted(self, request: OmniRequest, record: RecordState) -> MailboxState:
        self._bell = self._bell or BellState()
        mailbox = MailboxState(self._bell)
        self._open[request.request_id] = mailbox
        if request.prompt.media:
            self._media[request.request_id] = sum(len(media.data) for media in request.prompt.media)
        self._runtime.submit(request, _Watch(self, request.request_id, mailbox, record).take)
        return mailbox

    def _opened(self, request: OmniRequest, parcel: Parcel, record: RecordState) -> OmniRequestOutput | None:
        match parcel.message:
            case ClientItem() as item:
                part = part_of(item)
                record.handed(part)
                return part
            case ClientRestarted():
                return None
            case ClientClosed() as closed:
                measured = request_metrics(self.model, record.end(closed), closed)
                if closed.outcome != "finished":
                    raise _error_of(closed)
                return last_part(self.model, request, closed, measured)

    def _acknowledge(self, parcel: Parcel) -> None:
        """With what the others take in this turn of the event loop: the runtime is told once of all of it."""
        if parcel.receipts and not self._taken:
            asyncio.get_running_loop().call_soon(self._tell_taken)
        self._taken += parcel.receipts

    def _tell_taken(self) -> None:
        taken, self._taken = self._taken, []
        self._runtime.took(taken)

    def _ended(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._media.pop(request_id, None)

    @property
    def media_nbytes(self) -> int:
        """Bytes of the media of all open requests: each is held until it has ended, for it might have to begin again."""
        return sum(list(self._media.values()))  # a copy, as requests end in other threads

    async def abort(self, request_id: str, reason: str = "aborted by the caller") -> bool:
        """Ends a request and waits until it has ended. False if there is no such open request."""
        mailbox = self._open.get(request_id)
        if mailbox is None:
            return False
        self._runtime.abort(request_id, reason)
        return await mailbox.ended(_ABORT_TIMEOUT_S)

    def status(self) -> RuntimeStatus:
        return self._runtime.status()

    async def settled(self) -> RuntimeStatus:
        """Waits until every stage is ready, one is down for good, or the engine is closed."""
        return await asyncio.to_thread(self._runtime.wait_ready, _SETTLED_TIMEOUT_S)

    async def stopped(self) -> RuntimeStatus:
        """Waits until the engine has stopped; `reason` says why where nobody asked it to."""
        return await asyncio.to_thread(self._runtime.wait_stopped, _SETTLED_TIMEOUT_S)

    def check_health(self) -> None:
        """Raises StageUnavailableError, with the reason, unless every stage is ready."""
        status = self.status()
        if status.state != "ready":
            message = f"the engine is {status.state}: {status.trouble}"
            raise StageUnavailableError(message, retry_after_s=_RETRY_AFTER_S)

    async def debug_state(self) -> dict[str, Any]:
        """What every process holds at this moment (engine.inspection)."""
        return await inspection.debug_state(self.model, self._runtime, list(self._open))

    async def control(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Asks every stage to carry out a control call. Results by "stage_id/replica", None of a stage that does not know
        the call. Raises what went wrong, and UnsupportedByModelError where no stage knows it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[dict[str, Any], ErrorInfo | None]] = loop.create_future()

        def settle(results: dict[str, Any], error: ErrorInfo | None) -> None:
            if not answer.done():
                answer.set_result((results, error))

        def done(results: dict[str, Any], error: ErrorInfo | None) -> None:
            loop.call_soon_threadsafe(settle, results, error)

        self._runtime.control(name, arguments or {}, done)
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                results, error = await answer
        except TimeoutError:
            raise StageUnavailableError(f"{name}: no answer within {_CONTROL_TIMEOUT_S:.0f} s") from None
        carried_out = any(result is not None for result in results.values())
        if error is not None and not (carried_out and error.code == UnsupportedByModelError.code):
            raise error.to_exception()
        return results

    async def close(self, drain_timeout_s: float = 0.0) -> None:
        """Lets open requests end for at most `drain_timeout_s`, then ends everything. Idempotent."""
        self._closed = True
        await asyncio.to_thread(self._runtime.close, drain_timeout_s)


class _Watch:
    """Stands between a runtime and a mailbox: notes what comes, and that the request has ended. Called in any thread."""

    def __init__(self, engine: AsyncOmniEngine, request_id: str, mailbox: MailboxState, record: RecordState) -> None:
        self._engine = engine
        self._request_id = request_id
        self._mailbox = mailbox
        self._record = record

    def take(self, message: Message) -> None:
        match message:
            case ClientClosed():
                self._engine._ended(self._request_id)
            case _:
                self._record.came(message)
        self._mailbox.put(message)


async def _gathered(parts: AsyncIterator[OmniRequestOutput | None]) -> OmniRequestOutput:
    held: list[OmniRequestOutput] = []
    async for part in parts:
        if part is None:
            held.clear()
        else:
            held.append(part)
    return whole(held)


def _error_of(closed: ClientClosed) -> OmniError:
    if closed.error is not None:
        return closed.error.to_exception()
    match closed.outcome:
        case "aborted":
            return RequestAbortedError("the request was aborted")
        case outcome:
            return StageFailedError(f"the request has {outcome.replace('_', ' ')} without a reason")
