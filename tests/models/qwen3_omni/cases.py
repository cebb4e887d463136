"""Questions with every kind of media, as a caller writes them, and what goes to the reference for each."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from omnistage.config.stage import ARStageConfig
from omnistage.core.request import OmniRequest
from omnistage.engine.admission import Ask, admit
from omnistage.engine.compose import resolved, served_model
from omnistage.modeling.protocols import ProcessedPrompt
from omnistage.models.qwen3_omni.processor import load_processor

AUDIO_RATE_HZ = 16_000
_CHANCE = np.random.default_rng(0)
IMAGE = Image.fromarray((_CHANCE.random((96, 64, 3)) * 255).astype("uint8"))
SECOND_IMAGE = Image.fromarray((_CHANCE.random((64, 128, 3)) * 255).astype("uint8"))
AUDIO = (_CHANCE.standard_normal(2 * AUDIO_RATE_HZ) * 0.1).astype("float32")
VIDEO = (_CHANCE.random((4, 64, 64, 3)) * 255).astype("uint8")


def film() -> bytes:
    """An MP4 of one second: eight pictures and a tone."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        pictures = container.add_stream("mpeg4", rate=8)
        pictures.width = pictures.height = 64
        pictures.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=AUDIO_RATE_HZ)
        for index in range(8):
            picture = np.roll(VIDEO[index % 4], index, axis=0)
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(pictures.encode(None))
        tone = np.sin(np.arange(AUDIO_RATE_HZ) * 0.1).astype("float32")[None] * 0.3
        frame = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
        frame.sample_rate = AUDIO_RATE_HZ
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    return file.getvalue()


def user(*parts: Any) -> dict[str, Any]:
    """A turn of text and media: texts as they are, media as (kind, value)."""
    said = [{"type": "text", "text": p} if isinstance(p, str) else {"type": p[0], p[0]: p[1]} for p in parts]
    return {"role": "user", "content": said}


SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
CASES: Mapping[str, dict[str, Any]] = {
    "text": {"messages": [SYSTEM, user("Hello! What is in the picture?")]},
    "image": {"messages": [user(("image", IMAGE), "What is in the picture?")]},
    "audio": {"messages": [user(("audio", AUDIO), "What does it sound like?")]},
    "video": {"messages": [user(("video", (VIDEO, 2.0)), "What is in the video?")]},
    "image and audio": {"messages": [SYSTEM, user(("image", IMAGE), "and", ("audio", AUDIO), "What is it?")]},
    "two images": {"messages": [user(("image", IMAGE), ("image", SECOND_IMAGE), "What is the difference?")]},
    "audio in video": {
        "messages": [user(("video", film()), "What is it?")],
        "mm_processor_kwargs": {"use_audio_in_video": True},
    },
    "several turns": {
        "messages": [
            user(("image", IMAGE), "Hello"),
            {"role": "assistant", "content": "Hi there"},
            user("and", ("audio", AUDIO), "how does it sound?"),
        ]
    },
}


REFERENCE: Mapping[str, dict[str, Any]] = {"audio in video": {"audio_in_video": True}}
"""What the reference is told of a case besides."""


def admitted(folder: Path, prompt: object) -> OmniRequest:
    """A prompt as the engine would hand it on."""
    return admit(served_model(resolved(str(folder))), Ask(prompt))


def prepared(folder: Path, prompt: object) -> ProcessedPrompt:
    """A prompt as the thinker's helper prepares it."""
    thinker = resolved(str(folder)).stages[0]
    assert isinstance(thinker, ARStageConfig)
    return load_processor(thinker)(admitted(folder, prompt))
