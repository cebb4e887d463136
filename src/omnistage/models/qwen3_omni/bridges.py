"""What travels between the stages, and what becomes of it there."""

from __future__ import annotations

import numpy as np

from omnistage.core.errors import StageFailedError
from omnistage.core.payload import MultimodalPayload
from omnistage.modeling.protocols import StageInput

FRAMES = "frames"
"""The tensor of codec frames: int32 [frames, groups]."""


def code2wav_bridge(
    state: None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[None, list[StageInput]]:
    """One input per payload with frames. Which codes there are is the model's to say."""
    if payload is None:
        return None, []
    if FRAMES not in payload.tensors:
        raise StageFailedError(f"item {seq} of stage {source} has no tensor {FRAMES}; it has {sorted(payload.tensors)}")
    frames = np.array(payload.numpy(FRAMES), np.int64)
    return None, [StageInput({FRAMES: frames}, frames.nbytes)] if len(frames) else []
