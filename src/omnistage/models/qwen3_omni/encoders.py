"""Both encoders: of pictures and videos, and of sound. Several media are one call, and what comes of one does not depend on the
others but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from omnistage.core.errors import BrokenCheckpointError, StageFailedError
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.folder import CONFIG, Section
from omnistage.modeling.protocols import EncodedMedia, MediaInput
from omnistage.models.qwen3_omni.audio_encoder import AudioEncoder
from omnistage.models.qwen3_omni.encoder_layers import EncoderWeights
from omnistage.models.qwen3_omni.settings import audio_settings, vision_settings
from omnistage.models.qwen3_omni.vision_encoder import VisionEncoder

Encoder = TypeVar("Encoder", VisionEncoder, AudioEncoder)


class Encoders:
    """See the module. Their weights are never written to."""

    def __init__(self, vision: VisionEncoder, audio: AudioEncoder) -> None:
        self._vision = vision
        self._audio = audio

    @torch.inference_mode()
    def encode(self, inputs: Sequence[MediaInput]) -> list[EncodedMedia]:
        """See `EncodingModel`."""
        heard = [place for place, one in enumerate(inputs) if one.kind == "audio"]
        seen = [place for place, one in enumerate(inputs) if one.kind != "audio"]
        made: dict[int, EncodedMedia] = {}
        for encode, places in ((self._hear, heard), (self._see, seen)):
            if places:
                made.update(zip(places, encode([inputs[place] for place in places]), strict=True))
        return [made[place] for place in range(len(inputs))]

    def _see(self, batch: Sequence[MediaInput]) -> list[EncodedMedia]:
        pixels = torch.cat([_tensor(one.data["pixel_values"]) for one in batch])
        grids = [(int(frames), int(tall), int(wide)) for frames, tall, wide in (one.data["grid_thw"] for one in batch)]
        rows, layered = self._vision(pixels, grids)
        sizes = [one.tokens for one in batch]
        if layered is None:
            return [EncodedMedia(own) for own in torch.split(rows, sizes)]
        both = zip(torch.split(rows, sizes), torch.split(layered, sizes, dim=1), strict=True)
        return [EncodedMedia(own, more) for own, more in both]

    def _hear(self, batch: Sequence[MediaInput]) -> list[EncodedMedia]:
        made = self._audio([_tensor(one.data["input_features"]) for one in batch])
        return [EncodedMedia(rows) for rows in torch.split(made, [one.tokens for one in batch])]


def load_encoders(reader: WeightsReader, settings: Mapping[str, Any]) -> Encoders:
    """`reader` knows the thinker's tensors by their names without its prefix; `settings` is its configuration. Raises
    BrokenCheckpointError."""
    said = Section(settings, f"{reader.folder / CONFIG}: thinker_config")
    vision, audio = vision_settings(said), audio_settings(said)
    return Encoders(
        _read(reader, "visual", lambda weights: VisionEncoder(weights, vision)),
        _read(reader, "audio_tower", lambda weights: AudioEncoder(weights, audio)),
    )


def _read(reader: WeightsReader, name: str, make: Callable[[EncoderWeights], Encoder]) -> Encoder:
    weights = EncoderWeights(reader, f"{name}.")
    try:
        made = make(weights)
        weights.expect_all_read()
    except BrokenCheckpointError as error:
        raise BrokenCheckpointError(f"{name}: {error}") from None
    return made


def _tensor(array: object) -> torch.Tensor:
    if not isinstance(array, np.ndarray):
        raise StageFailedError(f"an encoder reads arrays, not {type(array).__name__}")
    return torch.from_numpy(array if array.flags.writeable else array.copy())
