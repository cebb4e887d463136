"""What every route shares: the engine, the figures, what the server was told at its start. And how a body is read.

Knows no route, and not the framework of routes, which is imported when stages are on their way (serve.load).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from starlette.requests import Request

from omnistage.core.errors import ModelNotFoundError, PayloadTooLargeError, UnsupportedByModelError, shortened
from omnistage.core.output import OmniRequestOutput
from omnistage.engine.admission import Ask
from omnistage.engine.async_omni_engine import AsyncOmniEngine
from omnistage.engine.records import RequestRecord
from omnistage.obs.metrics import RequestFigures, ServerMetrics
from omnistage.serve.allowed import Allowed
from omnistage.serve.attachments import Attachments

MAX_BODY_NBYTES = 32 * 2**20

Outputs = AsyncGenerator[OmniRequestOutput, None]


@dataclass(frozen=True, slots=True)
class Serving:
    """`created` is the Unix time of the start; `api_key` None lets everyone in; `debug` opens /debug/state; `attachments` reads
    what requests point to."""

    engine: AsyncOmniEngine
    created: int
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    api_key: str | None = None
    max_body_nbytes: int = MAX_BODY_NBYTES
    debug: bool = False
    attachments: Attachments = field(default_factory=lambda: Attachments(Allowed()))

    @property
    def model_name(self) -> str:
        return self.engine.model.name

    def require_model(self, name: str | None) -> None:
        """Raises ModelNotFoundError for any other model than the one that is served; None stands for that one."""
        if name is not None and name != self.model_name:
            message = f"model: {shortened(repr(name))} is not served here; accepted: {self.model_name}"
            raise ModelNotFoundError(message, field="model")

    def require_endpoint(self, path: str) -> None:
        """Raises UnsupportedByModelError where the model that is served is none for the endpoint `path`."""
        accepted = self.engine.model.endpoints
        if accepted and path not in accepted:
            message = f"{path} cannot serve the model {self.model_name!r}; it is served at {', '.join(accepted)}"
            raise UnsupportedByModelError(message)

    def require_maker(self, path: str, modality: str) -> None:
        """Raises UnsupportedByModelError where no stage makes what the endpoint `path` answers with."""
        made = self.engine.model.modalities
        if modality not in made:
            message = (
                f"{path} cannot serve the model {self.model_name!r}: it makes {', '.join(made)}, and no {modality}"
            )
            raise UnsupportedByModelError(message)

    async def begun(self, ask: Ask) -> tuple[OmniRequestOutput, Outputs]:
        """The first part of the answer, and those that follow. What the request points to is read before."""
        engine = self.engine
        outputs = engine.generate(await self.attachments.attached(engine.model, ask, engine.media_nbytes))
        del ask
        return await anext(outputs), outputs

    async def read_body(self, request: Request) -> bytes:
        """The whole body, at most `max_body_nbytes`: nothing beyond is held. Raises PayloadTooLargeError."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self.max_body_nbytes:
                raise PayloadTooLargeError(f"the body is larger than {self.max_body_nbytes} bytes")
        return bytes(body)


def figures_of(record: RequestRecord) -> RequestFigures:
    """An ended request as metrics count it."""
    usage = record.usage
    return RequestFigures(
        outcome=record.outcome,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        audio_seconds=usage.audio_seconds,
        images=usage.images,
        first_text_s=record.first_text_s,
        first_audio_s=record.first_audio_s,
        end_s=record.end_s,
        tpot_s=record.tpot_s,
        token_gaps=tuple(record.token_gaps),
        rtf=record.rtf,
    )
