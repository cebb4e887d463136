"""`AsyncOmni`: a model for asyncio programs. A thin, documented face of the engine.

The stages load in the background: a request that comes earlier waits for the stages that it needs. Belongs to the event
loop that makes the first call. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from omnistage.core.output import OmniRequestOutput
from omnistage.engine.admission import Ask
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.compose import composed
from omnistage.engine.media import read_local


class AsyncOmni:
    """`model` is a folder or a built-in name; `overrides` are configuration keys (`stage_0_max_num_seqs=2`).

    Raises ConfigError, ModelNotFoundError and BrokenCheckpointError at once, before anything is started.
    """

    def __init__(self, model: str, *, deploy_config: str | None = None, **overrides: Any) -> None:
        served, runtime = composed(model, deploy_config=deploy_config, overrides=overrides)
        self._engine = AsyncOmniEngine(served, runtime)
        self._engine.start()

    async def generate(
        self, prompt: object, sampling_params_list: object = None, *, stream: bool = True, priority: int = 0
    ) -> AsyncIterator[OmniRequestOutput]:
        """Parts of the answer as they come, the last one `finished`; without `stream` one whole output.

        Raises the request's error. Leaving the iterator early aborts the request.
        """
        ask = Ask(prompt, sampling_params_list, priority=priority, stream=stream, read_media=read_local)
        outputs = self._engine.generate(ask)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    async def abort(self, request_id: str) -> bool:
        """Ends the request with this `request_id` (every output carries it); True once it has ended, False if unknown."""
        return await self._engine.abort(request_id)

    async def check_health(self) -> None:
        """Raises StageUnavailableError, with the reason, unless every stage is ready."""
        self._engine.check_health()

    async def reset_prefix_cache(self) -> None:
        """Forgets cached prompt prefixes. Raises UnsupportedByModelError where no stage has such a cache."""
        await self._engine.control("reset_prefix_cache")

    async def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """Lets open requests end for at most `drain_timeout_s`, then ends everything. Idempotent."""
        await self._engine.close(drain_timeout_s)

    async def __aenter__(self) -> AsyncOmni:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()
