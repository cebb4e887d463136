"""What the references of Qwen3-Omni's preprocessing are made of, and what the tests give to our own: made here, never stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omnistage.core.request import Media, Prompt
from omnistage.core.spec import TensorSpec
from omnistage.modeling.patches import Pixels

FOLDER = Path(__file__).parent / "qwen3_omni"
MEDIA, PROMPTS = FOLDER / "media.safetensors", FOLDER / "prompts.safetensors"
Bytes = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.float32]

PIXELS = Pixels(16, 2, 2, 32 * 32, 64 * 64, (0.48, 0.45, 0.40), (0.26, 0.25, 0.27), 1 / 255)
"""Small bounds, so that what is stored is small; uneven colours, so that channels cannot be mixed up."""
RATE = 16_000


def picture(height: int, width: int, seed: int = 0) -> Bytes:
    """Noise over slopes: [height, width, 3]."""
    noise = np.random.default_rng(seed).integers(0, 160, (height, width, 3))
    down, across = np.linspace(0, 60, height)[:, None, None], np.linspace(0, 30, width)[None, :, None]
    return (noise + down + across).astype(np.uint8)


def film(frames: int, height: int, width: int, seed: int = 0) -> Bytes:
    return np.stack([picture(height, width, seed + frame) for frame in range(frames)])


def noise(count: int, seed: int = 0) -> Samples:
    return (np.random.default_rng(seed).standard_normal(count) * 0.1).astype(np.float32)


PICTURES = {
    "noise": picture(100, 60),
    "whole": picture(64, 64, 1),
    "dot": picture(1, 1, 2),
    "line": picture(1, 200, 3),
    "tall": picture(500, 33, 4),
    "small": picture(20, 30, 5),
}
FILMS = {
    "still": film(1, 70, 50),
    "odd": film(5, 50, 90, 10),
    "even": film(4, 64, 64, 20),
    "large": film(2, 300, 200, 30),
}
SAMPLED = (film(23, 40, 40, 40), 10.0, 2.0)
"""A film, its frames per second, and how many of them are read."""
SOUNDS = {
    "second": noise(RATE),
    "odd": noise(11_757, 1),
    "shortest": noise(201, 2),
    "silence": np.zeros(4_000, np.float32),
    "slopes": (noise(20_000, 3) * np.linspace(0, 1, 20_000)).astype(np.float32),
}
LENGTHS = (1, 2, 7, 8, 9, 13, 50, 99, 100, 101, 107, 108, 200, 250, 3000, 12_345)
"""Frames of sound, of which the encoder makes rows."""
TOTALS = ((4, 25.0), (50, 25.0), (51, 25.0), (101, 29.97), (300, 24.0), (9001, 30.0), (65, 4.0), (2, 1.0), (1000, 2.0))
"""Frames of a video and their rate, of which some are read."""


@dataclass(frozen=True)
class Case:
    """A conversation. Contents hold texts and media; a media item is (kind, array) or ("spoken", film, sound)."""

    turns: tuple[tuple[str, tuple[Any, ...]], ...]
    fps: float | None = None

    @property
    def with_sound(self) -> bool:
        return any(part[0] == "spoken" for _, content in self.turns for part in content if not isinstance(part, str))

    def parts(self) -> list[Any]:
        """Media in order."""
        return [part for _, content in self.turns for part in content if not isinstance(part, str)]


def _user(*content: Any) -> tuple[str, tuple[Any, ...]]:
    return "user", content


_SYSTEM = ("system", ("You are a helpful assistant.",))
_ANSWER = ("assistant", ("Hi there.",))
_IMAGE, _WIDE = ("image", picture(96, 64, 50)), ("image", picture(40, 120, 51))
_SOUND, _LONG = ("audio", noise(2 * RATE, 52)), ("audio", noise(2 * RATE, 53))
_FILM, _SLOW = ("video", film(4, 64, 64, 54)), ("video", film(3, 48, 80, 58))
_SPOKEN = ("spoken", film(4, 64, 64, 60), noise(3 * RATE, 61))
_BRIEF = ("spoken", film(6, 64, 64, 64), noise(3 * RATE, 65))
_CHATTY = ("spoken", film(2, 64, 64, 70), noise(3 * RATE, 71))

CASES: dict[str, Case] = {
    "text": Case((_SYSTEM, _user("Hello"))),
    "no_system": Case((_user("Hello"),)),
    "image": Case((_SYSTEM, _user(_IMAGE, "What is it?"))),
    "audio": Case((_SYSTEM, _user(_SOUND, "What is it?"))),
    "video": Case((_SYSTEM, _user(_FILM, "What is it?"))),
    "odd_video": Case((_SYSTEM, _user("What is it?", _SLOW))),
    "fast_video": Case((_SYSTEM, _user(_FILM, "What is it?")), fps=2.0),
    "two_images": Case((_user(_IMAGE, "and", _WIDE, "differ"),)),
    "adjacent": Case((_user(_IMAGE, _WIDE, _SOUND, _FILM),)),
    "two_sounds": Case((_user(_SOUND, "and", _LONG),)),
    "two_videos": Case((_user(_FILM, "and", _SLOW),)),
    "image_and_sound": Case((_SYSTEM, _user(_IMAGE, _SOUND, "Describe"))),
    "sound_and_image": Case((_SYSTEM, _user("Hear", _SOUND, "see", _IMAGE))),
    "everything": Case((_SYSTEM, _user(_SOUND, "a", _FILM, "b", _IMAGE, "c", _LONG, "d", _WIDE))),
    "turns": Case((_SYSTEM, _user("Hello"), _ANSWER, _user(_IMAGE, "Describe"))),
    "media_in_turns": Case((_SYSTEM, _user(_IMAGE, "?"), _ANSWER, _user(_SOUND, "?"), _ANSWER, _user(_FILM, "?"))),
    "spoken": Case((_SYSTEM, _user(_SPOKEN, "What is said?"))),
    "brief_sound": Case((_SYSTEM, _user(_BRIEF, "What is said?"))),
    "long_sound": Case((_user(_CHATTY),)),
    "spoken_twice": Case((_SYSTEM, _user(_SPOKEN, "and", _BRIEF)), fps=2.0),
    "spoken_then_image": Case((_SYSTEM, _user(_SPOKEN, "and", _IMAGE))),
    "image_then_spoken": Case((_SYSTEM, _user(_IMAGE, "and", _SPOKEN))),
    "spoken_and_sound": Case((_SYSTEM, _user(_LONG, "and", _SPOKEN, "and", _SOUND))),
    "spoken_in_turns": Case((_SYSTEM, _user(_SPOKEN, "?"), _ANSWER, _user(_WIDE, "?"))),
}


def media_of(kind: str, array: npt.NDArray[Any], rate: float | None = None) -> Media:
    spec = TensorSpec(array.dtype.name, tuple(array.shape))
    return Media(kind=kind, data=array.tobytes(), array=spec, rate=rate, where=kind)  # type: ignore[arg-type]


def prompt_of(case: Case) -> Prompt:
    """As the engine would have it: the sounds of videos are items that no part names."""
    media: list[Media] = []
    heard: list[Media] = []
    messages = []
    for role, content in case.turns:
        parts: list[dict[str, Any]] = []
        for part in content:
            if isinstance(part, str):
                parts.append({"type": "text", "text": part})
                continue
            kind = "video" if part[0] == "spoken" else part[0]
            parts.append({"type": kind, "media": len(media)})
            media.append(media_of(kind, part[1]))
            heard += [media_of("audio", part[2])] if part[0] == "spoken" else []
        messages.append({"role": role, "content": parts})
    options: dict[str, Any] = {"use_audio_in_video": True} if case.with_sound else {}
    options |= {} if case.fps is None else {"fps": case.fps}
    return Prompt(messages=tuple(messages), media=(*media, *heard), mm_processor_kwargs=options)
