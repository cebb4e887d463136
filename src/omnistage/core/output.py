"""What callers get back. One class for every modality and for both ways of asking (whole and streamed).

Streamed outputs carry what is new (text, token ids, samples), never a snapshot; joined, they equal the whole output.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from omnistage.core.errors import ErrorInfo
from omnistage.core.payload import MultimodalPayload


class CompletionOutput(msgspec.Struct, frozen=True):
    """One choice of an AR stage. `logprobs` has one entry per token: {"token_id", "logprob", "token", "top"}, where "token" is
    its text (None without a tokenizer) and "top" the likeliest tokens as [id, logprob, text]."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    logprobs: tuple[dict[str, Any], ...] | None = None


class OmniRequestOutput(msgspec.Struct, frozen=True):
    """An output, or a part of one, of request `request_id`.

    `final_output_type`: text | audio | image | video | action | latent. `multimodal_output.tensors["audio"]` is float32
    [samples] with metadata `sample_rate` in Hz. `images` are uint8 [height, width, channels], those of a whole output in order;
    a streamed picture on its way is none of them, but stands in `multimodal_output.tensors["image"]` with metadata `partial`.
    `finished` is set on the last part of the whole request only.
    """

    request_id: str
    stage_id: int
    final_output_type: str
    finished: bool
    finish_reason: str | None = None
    outputs: tuple[CompletionOutput, ...] = ()
    multimodal_output: MultimodalPayload = msgspec.field(default_factory=MultimodalPayload)
    images: tuple[np.ndarray[Any, Any], ...] = ()
    metrics: dict[str, Any] = {}
    error: ErrorInfo | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.outputs[0].text if self.outputs else ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids if self.outputs else ()
