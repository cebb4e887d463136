"""The mailbox between a runtime's thread and the event loop."""

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.engine.mailbox import BellState, MailboxState
from omnistage.engine.outputs import part_of
from omnistage.runtime.base import ClientClosed, ClientItem, ClientRestarted, Taken


def text(seq: int, words: str, index: int = 0) -> ClientItem:
    payload = MultimodalPayload(metadata={"choices": [{"index": index, "text": words, "token_ids": [seq]}]})
    return ClientItem("r", 0, seq, "text", payload, False)


def audio(seq: int) -> ClientItem:
    payload = MultimodalPayload({"audio": Tensor.of(np.zeros(4, np.float32))}, {"sample_rate": 24000})
    return ClientItem("r", 1, seq, "audio", payload, False)


async def test_text_that_nobody_took_is_merged_and_each_item_keeps_its_receipt() -> None:
    """Fault: a slow consumer makes the queue grow, or an item merged into another is never acknowledged."""
    mailbox = MailboxState(BellState())
    for item in (text(0, "a"), text(1, "b"), audio(0), text(2, "c"), text(3, "x", index=1)):
        mailbox.put(item)
    parcels = [await mailbox.take() for _ in range(3)]
    parts = [part_of(parcel.message) for parcel in parcels if isinstance(parcel.message, ClientItem)]
    assert [[choice.text for choice in part.outputs] for part in parts] == [["ab"], [], ["c", "x"]]
    assert parts[0].token_ids == (0, 1)
    assert [parcel.receipts for parcel in parcels[:2]] == [
        (Taken("r", 0, 0, 1), Taken("r", 0, 1, 1)),
        (Taken("r", 1, 0, 1),),
    ]


async def test_a_restart_voids_what_came_before() -> None:
    """Fault: items of a lost attempt are joined with those of the next."""
    mailbox = MailboxState(BellState())
    mailbox.put(text(0, "lost"))
    mailbox.put(ClientRestarted("r", 2))
    mailbox.put(text(0, "kept"))
    assert (await mailbox.take()).message == ClientRestarted("r", 2)
    assert (await mailbox.take()).message == text(0, "kept")


async def test_a_waiting_consumer_is_woken_from_another_thread() -> None:
    """Fault: an item that arrives while the consumer waits is seen only with the next one."""
    mailbox = MailboxState(BellState())
    waiting = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    thread = threading.Thread(target=mailbox.put, args=(text(0, "a"),))
    thread.start()
    parcel = await asyncio.wait_for(waiting, 5)
    thread.join(5)
    assert parcel.message == text(0, "a")


async def test_what_is_said_to_many_wakes_the_loop_once_until_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a system call and a turn of the loop for every item of a batch; one that is said after the loop woke is not heard."""
    bell, loop, wakes = BellState(), asyncio.get_running_loop(), list[object]()
    mailboxes = [MailboxState(bell) for _ in range(3)]
    wake = loop.call_soon_threadsafe

    def counted(call: Callable[[], None]) -> None:
        wakes.append(call)
        wake(call)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for turn in (1, 2):
        waiting = [asyncio.create_task(mailbox.take()) for mailbox in mailboxes]
        await asyncio.sleep(0)
        for mailbox in mailboxes:
            mailbox.put(audio(turn))
        taken = await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert [parcel.message for parcel in taken] == [audio(turn)] * 3 and len(wakes) == turn


async def test_nothing_follows_the_end() -> None:
    """Fault: an item that arrives after the terminal state reaches the consumer."""
    mailbox = MailboxState(BellState())
    assert not await mailbox.ended(0.01)
    mailbox.put(ClientClosed("r", "finished"))
    mailbox.put(text(0, "late"))
    assert await mailbox.ended(5)
    assert (await mailbox.take()).message == ClientClosed("r", "finished")
    waiting = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()


def test_a_loop_that_has_ended_is_no_error_for_the_runtime() -> None:
    """Fault: a caller's loop that is gone raises in the runtime's thread and takes it down."""

    async def make() -> MailboxState:
        return MailboxState(BellState())

    mailbox = asyncio.run(make())
    mailbox.put(text(0, "a"))
    mailbox.put(text(1, "b"))
    assert mailbox._closed
