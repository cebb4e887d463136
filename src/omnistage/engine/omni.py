"""`Omni`: a model for ordinary programs. Prompts in, finished outputs out, in the order of the prompts.

Keeps an event loop in a thread of its own, so it works in a script without a main guard, in a notebook and inside another
running loop. Ends by itself when the program does. Every call blocks its caller and may come from any thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from msgspec.structs import replace
from tqdm import tqdm

from omnistage.core.errors import EngineClosedError, ErrorInfo, InvalidRequestError, OmniError, StageUnavailableError
from omnistage.core.output import OmniRequestOutput
from omnistage.engine.admission import Ask, stage_params
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.compose import composed
from omnistage.engine.media import MOST_OPEN_NBYTES, read_local
from omnistage.engine.outputs import failed_output
from omnistage.engine.prompts import is_chat
from omnistage.runtime.base import Runtime, RuntimeStatus

T = TypeVar("T")

_START_TIMEOUT_S = 600.0
_CALL_TIMEOUT_S = 60.0
_JOIN_TIMEOUT_S = 5.0
_HELD_PARTS = 256
_LOOK_S = 0.05


class Omni:
    """`model` is a folder or a built-in name; `overrides` are configuration keys (`stage_0_max_num_seqs=2`).

    Returns when every stage is ready. Raises ConfigError, ModelNotFoundError, BrokenCheckpointError, and
    StageUnavailableError where a stage did not start.
    """

    def __init__(self, model: str, *, deploy_config: str | None = None, **overrides: Any) -> None:
        served, runtime = composed(model, deploy_config=deploy_config, overrides=overrides)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="omnistage-omni", daemon=True)
        self._engine = AsyncOmniEngine(served, runtime)
        self._thread.start()
        self._end = weakref.finalize(self, _finish, runtime, self._loop, self._thread)
        try:
            self._engine.start()
            _require_ready(runtime.wait_ready(_START_TIMEOUT_S))
        except BaseException:
            self.close()
            raise

    @overload
    def generate(
        self,
        prompts: object,
        sampling_params_list: object = None,
        *,
        stream: Literal[False] = False,
        use_tqdm: bool = True,
    ) -> list[OmniRequestOutput]: ...

    @overload
    def generate(
        self, prompts: object, sampling_params_list: object = None, *, stream: Literal[True], use_tqdm: bool = True
    ) -> Iterator[OmniRequestOutput]: ...

    def generate(
        self, prompts: object, sampling_params_list: object = None, *, stream: bool = False, use_tqdm: bool = True
    ) -> list[OmniRequestOutput] | Iterator[OmniRequestOutput]:
        """Answers one prompt or a list of prompts: one output each, in the order of the prompts.

        A prompt that cannot be answered yields an output with `error`; the others succeed. With `stream` an iterator of
        parts as they come; `metrics["prompt_index"]` of each part, and of each output, says whose it is. Raises
        InvalidRequestError for parameters that are wrong for every prompt.
        """
        asks = [
            Ask(prompt, sampling_params_list, stream=stream, read_media=read_local) for prompt in prompts_of(prompts)
        ]
        if not self._end.alive:
            raise EngineClosedError("this Omni is closed")
        if sampling_params_list is not None:
            stage_params(self._engine.model, asks[0])
        return self._streamed(asks) if stream else self._answered(asks, use_tqdm)

    def _answered(self, asks: list[Ask], use_tqdm: bool) -> list[OmniRequestOutput]:
        with tqdm(total=len(asks), desc="prompts", disable=not use_tqdm or len(asks) < 2) as bar:
            done = self._submit(answers(self._engine, asks, lambda: bar.update() and None))
            try:
                return done.result()
            except BaseException:  # an interrupt ends what was asked for
                done.cancel()
                raise

    def _streamed(self, asks: list[Ask]) -> Iterator[OmniRequestOutput]:
        parts: queue.SimpleQueue[OmniRequestOutput | None] = queue.SimpleQueue()
        free = asyncio.Semaphore(_HELD_PARTS)  # bounds the queue; the mailboxes behind it merge text meanwhile

        async def deliver(part: OmniRequestOutput) -> None:
            await free.acquire()
            parts.put(part)

        done = self._submit(streams(self._engine, asks, deliver))
        done.add_done_callback(lambda _: parts.put(None))
        try:
            while (part := parts.get()) is not None:
                with suppress(RuntimeError):  # closed meanwhile: what has come is still handed out
                    self._loop.call_soon_threadsafe(free.release)
                yield part
        finally:
            done.cancel()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def status(self) -> RuntimeStatus:
        """What every stage is doing."""
        return self._engine.status()

    def reset_prefix_cache(self) -> None:
        """Forgets cached prompt prefixes. Raises UnsupportedByModelError where no stage has such a cache."""
        self._submit(self._engine.control("reset_prefix_cache")).result(_CALL_TIMEOUT_S)

    def close(self) -> None:
        """Ends everything; what is still running is aborted. Idempotent."""
        self._end()

    def __enter__(self) -> Omni:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def prompts_of(value: object) -> list[object]:
    """A list of prompts: a list of chat messages is one prompt, any other list is a list of prompts."""
    if isinstance(value, list | tuple) and not is_chat(value):
        if not value:
            raise InvalidRequestError.of("prompts", value, "a prompt or a list of prompts that is not empty")
        return list(value)
    return [value]


async def answers(engine: AsyncOmniEngine, asks: list[Ask], answered: Callable[[], None]) -> list[OmniRequestOutput]:
    """Whole outputs in the order of `asks`. No more requests are open at once than the engine will queue."""
    free = asyncio.Semaphore(engine.model.max_queued_requests)

    async def answer(index: int, ask: Ask) -> OmniRequestOutput:
        async with free:
            await _room(engine)
            try:
                output = await _only(engine.generate(ask))
            except OmniError as error:
                output = failed_output(str(index), ErrorInfo.of(error))
            answered()
            return _numbered(output, index)

    return await asyncio.gather(*(answer(index, ask) for index, ask in enumerate(asks)))


async def streams(
    engine: AsyncOmniEngine, asks: list[Ask], deliver: Callable[[OmniRequestOutput], Awaitable[None]]
) -> None:
    """Parts of all answers as they come; returns after the last."""
    free = asyncio.Semaphore(engine.model.max_queued_requests)

    async def answer(index: int, ask: Ask) -> None:
        async with free:
            await _room(engine)
            try:
                async for part in engine.generate(ask):
                    await deliver(_numbered(part, index))
            except OmniError as error:
                await deliver(_numbered(failed_output(str(index), ErrorInfo.of(error)), index))

    await asyncio.gather(*(answer(index, ask) for index, ask in enumerate(asks)))


async def _room(engine: AsyncOmniEngine) -> None:
    """Returns when the media of open requests leave room for more."""
    while engine.media_nbytes > MOST_OPEN_NBYTES:  # noqa: ASYNC110 - requests end in the runtime's threads
        await asyncio.sleep(_LOOK_S)


async def _only(outputs: AsyncIterator[OmniRequestOutput]) -> OmniRequestOutput:
    [output] = [output async for output in outputs]
    return output


def _numbered(output: OmniRequestOutput, index: int) -> OmniRequestOutput:
    return replace(output, metrics={**output.metrics, "prompt_index": index})


def _require_ready(status: RuntimeStatus) -> None:
    """A stage is ready with its first replica; the state of the whole waits for all of them."""
    if status.reason or any(state != "ready" for state in status.stages.values()):
        raise StageUnavailableError(f"the stages did not start: {status.trouble}")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    waiting = asyncio.all_tasks(loop)
    for task in waiting:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
    loop.close()


def _finish(runtime: Runtime, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Runs on `close`, when the Omni is collected, or when the interpreter ends: whichever comes first, once."""
    runtime.close(0.0)
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(_JOIN_TIMEOUT_S)
