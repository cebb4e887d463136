"""A worker as it is, but for its channel: what leaves for the driver may get lost or come twice.

A request whose prompt has the word "!lose" loses the first item that an inner edge carries in a message, one with "!double" says
every item twice. Only what travels inside the message is lost: an item in an arena that nobody was told of would be this
channel's leak, not the server's. Started as `python -m tests.faults.worker`, with a plan on standard input like any worker.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omnistage.stages import worker
from omnistage.wire.channels import WorkerChannel
from omnistage.wire.messages import CLIENT, Emitted, Submit
from omnistage.wire.worker import FromWorker, StepReport, ToWorker
from tests.faults.family import words_of

MOST_MARKED = 1000


class FaultyChannel(WorkerChannel):
    """See the module. `receive` learns which requests are marked, `send` is where it happens."""

    def __init__(self, address: str, identity: str) -> None:
        super().__init__(address, identity)
        self._losing: dict[str, bool] = {}
        self._doubling: dict[str, bool] = {}

    def receive(self) -> list[ToWorker]:
        messages = super().receive()
        for message in messages:
            if isinstance(message, Submit):
                words = words_of(message.request)
                for marked, word in ((self._losing, "!lose"), (self._doubling, "!double")):
                    if word in words and len(marked) < MOST_MARKED:
                        marked[message.request.request_id] = True
        return messages

    def send(self, *messages: FromWorker) -> bool:
        return super().send(*map(self._faulty, messages))

    def _faulty(self, message: FromWorker) -> FromWorker:
        if not isinstance(message, StepReport) or not (self._losing or self._doubling):
            return message
        items = [twice for item in message.items for twice in self._meddled(item)]
        return msgspec.structs.replace(message, items=tuple(items))

    def _meddled(self, item: Any) -> list[Any]:
        if not isinstance(item, Emitted):
            return [item]
        in_message = item.ref is None or item.ref.inline is not None
        if in_message and item.target != CLIENT and self._losing.pop(item.request_id, False):
            return []
        return [item, item] if item.request_id in self._doubling else [item]


if __name__ == "__main__":
    worker.WorkerChannel = FaultyChannel  # type: ignore[attr-defined]
    worker.main()
