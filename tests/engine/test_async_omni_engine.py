"""The engine over a runtime without stages: order, acknowledgement, aborts, errors, health."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from omnistage.core.errors import (
    EngineClosedError,
    ErrorInfo,
    InvalidRequestError,
    RequestAbortedError,
    StageFailedError,
    StageUnavailableError,
    UnsupportedByModelError,
)
from omnistage.core.request import OmniRequest
from omnistage.engine.admission import Ask
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.records import RequestRecord
from omnistage.runtime.base import ClientClosed, ClientRestarted, Sink
from tests.engine.models import SPOKEN
from tests.fakes_runtime import FakeRuntime


async def test_parts_come_in_order_and_equal_the_whole() -> None:
    """Fault: streamed and whole answers differ, or the end is marked on more than the last part."""
    runtime = FakeRuntime(("a", "b", "c"))
    engine = AsyncOmniEngine(SPOKEN, runtime)
    parts = [part async for part in engine.generate(Ask("x", stream=True))]
    [whole] = [part async for part in engine.generate(Ask("x"))]
    assert "".join(part.text for part in parts) == whole.text == "abc"
    assert sum(part.multimodal_output.nbytes for part in parts) == whole.multimodal_output.nbytes == 3 * 240 * 4
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
    await asyncio.sleep(0)  # what was taken is told at the end of a turn of the loop
    assert sorted(runtime.taken) == sorted([(stage, n, 1) for stage in (0, 1) for n in (0, 1, 2)] * 2)


async def test_an_item_is_acknowledged_only_after_the_consumer_came_back() -> None:
    """Fault: a client that does not read is acknowledged for, and its window never closes."""
    runtime = FakeRuntime(("a",))
    async with aclosing(AsyncOmniEngine(SPOKEN, runtime).generate(Ask("x", stream=True))) as parts:
        await anext(parts)
        await asyncio.sleep(0)  # what was taken is told at the end of a turn of the loop
        assert runtime.taken == []
        await anext(parts)
        await asyncio.sleep(0)
        assert runtime.taken == [(0, 0, 1)]


async def test_media_of_open_requests_are_counted() -> None:
    """Fault: what is held for requests is not known, or never goes down again."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    engine = AsyncOmniEngine(replace(SPOKEN, reads=("text", "image")), runtime)
    prompt = {"prompt": "x", "multi_modal_data": {"image": [b"12345", b"123"]}}
    first, second = (engine.generate(Ask(prompt, stream=True)) for _ in range(2))
    await anext(first)
    await anext(second)
    await anext(engine.generate(Ask("x", stream=True)))
    assert engine.media_nbytes == 16
    await first.aclose()  # which lets the others go on as well
    async for _ in second:
        pass
    for _ in range(100):  # it is the runtime that says when one has ended
        await asyncio.sleep(0.01 if engine.media_nbytes else 0)
    assert engine.media_nbytes == 0


async def test_what_was_asked_is_let_go_of_while_the_answer_comes() -> None:
    """Fault: megabytes of messages are held for as long as an answer takes."""

    class Message(dict[str, str]):
        """A dict that can be watched."""

    runtime = FakeRuntime()
    runtime.gate.clear()
    message = Message(role="user", content="Hi")
    held = weakref.ref(message)
    parts = AsyncOmniEngine(SPOKEN, runtime).generate(Ask([message], stream=True))
    del message
    await anext(parts)
    gc.collect()
    assert held() is None
    await parts.aclose()


async def test_a_consumer_that_leaves_aborts_its_request() -> None:
    """Fault: the stages go on for a client that has gone."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    parts = AsyncOmniEngine(SPOKEN, runtime).generate(Ask("x", stream=True))
    await anext(parts)
    await parts.aclose()
    assert list(runtime.aborted.values()) == ["the client has gone"]


async def test_a_consumer_that_is_cancelled_aborts_its_request() -> None:
    """Fault: a cancelled task leaves its request running."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    engine = AsyncOmniEngine(SPOKEN, runtime)

    async def consume() -> None:
        async for _ in engine.generate(Ask("x")):
            pass

    task = asyncio.create_task(consume())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(runtime.aborted) == [runtime.submitted[0].request_id]


async def test_an_abort_is_acknowledged_and_reaches_the_consumer() -> None:
    """Fault: abort returns before the request has ended, or its consumer waits forever."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    engine = AsyncOmniEngine(SPOKEN, runtime)
    parts = engine.generate(Ask("x", stream=True))
    first = await anext(parts)
    assert await engine.abort(first.request_id)
    with pytest.raises(RequestAbortedError):
        [part async for part in parts]
    assert not await engine.abort(first.request_id)
    assert not await engine.abort("unknown")


async def test_what_failed_is_raised_by_name_and_stage() -> None:
    """Fault: a stage's failure looks like a short answer."""
    runtime = FakeRuntime()
    runtime.error = ErrorInfo("stage_failed", "the voice broke", "speaker")
    with pytest.raises(StageFailedError, match="the voice broke") as caught:
        [part async for part in AsyncOmniEngine(SPOKEN, runtime).generate(Ask("x"))]
    assert caught.value.stage == "speaker"


async def test_a_request_that_began_again_counts_from_there() -> None:
    """Fault: the whole answer holds words of an attempt that was lost."""

    class Restarting(FakeRuntime):
        def submit(self, request: OmniRequest, sink: Sink) -> None:
            def relay(message: object) -> None:
                if isinstance(message, ClientClosed):
                    sink(ClientRestarted(request.request_id, 2))
                    super(Restarting, self).submit(request, sink)
                else:
                    sink(message)  # type: ignore[arg-type]

            super().submit(request, relay)

    [output] = [output async for output in AsyncOmniEngine(SPOKEN, Restarting()).generate(Ask("x"))]
    assert output.text == "Hello world."


async def test_a_refused_request_never_reaches_the_runtime() -> None:
    """Fault: something is started for a request that is wrong."""
    runtime = FakeRuntime()
    with pytest.raises(InvalidRequestError):
        [part async for part in AsyncOmniEngine(SPOKEN, runtime).generate(Ask(""))]
    assert runtime.submitted == []


async def test_each_admitted_request_is_recorded_once() -> None:
    """Fault: metrics that lie: a request counted twice or not at all, times that are missing or negative."""
    records: list[RequestRecord] = []
    engine = AsyncOmniEngine(SPOKEN, FakeRuntime(), observer=records.append)
    _ = [part async for part in engine.generate(Ask("x"))]
    _ = [part async for part in engine.generate(Ask("x", wants=("text",), stream=True))]
    assert [record.outcome for record in records] == ["finished", "finished"]
    assert records[0].first_audio_s is not None
    assert records[1].first_audio_s is None
    assert all(record.first_text_s is not None and 0 <= record.first_text_s <= record.end_s for record in records)
    assert records[0].usage.completion_tokens == 2


async def test_health_is_the_truth() -> None:
    """Fault: a degraded engine says that it is well."""
    runtime = FakeRuntime()
    engine = AsyncOmniEngine(SPOKEN, runtime)
    engine.check_health()
    runtime.state = "degraded"
    with pytest.raises(StageUnavailableError, match="the engine is degraded: thinker is degraded"):
        engine.check_health()


async def test_a_control_call_answers_or_says_why_not() -> None:
    """Fault: a control call that no stage can carry out is answered with success."""
    engine = AsyncOmniEngine(SPOKEN, FakeRuntime())
    assert await engine.control("reset_prefix_cache") == {"0/0": True}
    with pytest.raises(UnsupportedByModelError, match="no sleep"):
        await engine.control("sleep")


async def test_a_control_call_that_one_stage_knows_has_succeeded() -> None:
    """Fault: a stage that has no cache makes resetting the caches of the others fail, or hides that they failed."""

    class Partly(FakeRuntime):
        code = "unsupported"

        def control(self, name: str, arguments: Mapping[str, Any], done: Callable[..., None]) -> None:
            done({"0/0": True, "1/0": None}, ErrorInfo(self.code, "speaker"))

    runtime = Partly()
    engine = AsyncOmniEngine(SPOKEN, runtime)
    assert await engine.control("reset_prefix_cache") == {"0/0": True, "1/0": None}
    runtime.code = "stage_failed"
    with pytest.raises(StageFailedError):
        await engine.control("reset_prefix_cache")


async def test_a_closed_engine_refuses() -> None:
    """Fault: a request that comes after the end waits forever."""
    runtime = FakeRuntime()
    engine = AsyncOmniEngine(SPOKEN, runtime)
    await engine.close(3.0)
    assert runtime.closed_with == 3.0
    outputs: AsyncIterator[object] = engine.generate(Ask("x"))
    with pytest.raises(EngineClosedError):
        await anext(outputs)
