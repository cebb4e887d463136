"""A model that reads media and says what it was shown, one word a step. It looks at bytes, not into files.

`description` tells what it will say of a file. Files whose bytes are an order are obeyed while they are prepared:

    exit    the process dies at once          hang    nothing comes of it
    fill    asks for gigabytes                bad     the file is refused, by its name
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

from omnistage.config.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media, OmniRequest, Prompt
from omnistage.modeling.protocols import StageInput

MODULE = "tests.media.family"


def description(kind: str, data: bytes) -> str:
    return f"{kind}-{len(data)}-{hashlib.sha256(data).hexdigest()[:8]}"


def seen(media: Media) -> str:
    """The word for one of them."""
    match media.data:
        case b"exit":
            os._exit(3)
        case b"hang":
            time.sleep(60)
        case b"fill":
            return str(len(bytes(8 * 2**30)))
        case b"bad":
            raise InvalidRequestError(f"{media.where}: is no {media.kind}; accepted: a whole one", field=media.where)
    shape = "" if media.array is None else "x".join(map(str, media.array.shape)) + f"@{media.rate}"
    return f"{description(media.kind, media.data)}{shape and f'-{shape}'}"


class Reader:
    """A GenerationProcessor: the words of the prompt in order, one for each of the media among them."""

    def __call__(self, request: OmniRequest) -> list[StageInput]:
        prompt = request.prompt
        for name in prompt.mm_processor_kwargs.keys() - {"use_audio_in_video"}:
            raise InvalidRequestError.unknown(f"mm_processor_kwargs.{name}", ["mm_processor_kwargs.use_audio_in_video"])
        words = [word for message in prompt.messages or () for word in self._words(message["content"], prompt)]
        words += (prompt.text or "").split() + [seen(media) for media in prompt.media if prompt.messages is None]
        options = [f"{name}={value}" for name, value in prompt.mm_processor_kwargs.items()]
        return [StageInput({"word": word}) for word in [*words, *options]]

    def _words(self, content: str | list[dict[str, Any]], prompt: Prompt) -> list[str]:
        if isinstance(content, str):
            return content.split()
        return [
            word
            for part in content
            for word in (part["text"].split() if part["type"] == "text" else [seen(prompt.media[part["media"]])])
        ]

    def depends_on_prompt_alone(self, prompt: Prompt) -> bool:
        return True


def load_reader(config: Any) -> Reader:
    return Reader()


PIPELINE = PipelineConfig(
    model_type="media",
    model_arch="no weights",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="writer",
            execution_type=ExecutionType.LLM_GENERATION,
            loader="tests.fakes:load_choices",
            processor=f"{MODULE}:load_reader",
            final_output=True,
            final_output_type="text",
        ),
    ),
    reads=("text", "image", "audio", "video"),
)
