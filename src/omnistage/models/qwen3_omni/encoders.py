"""The encoders of pictures, videos and sound: transformers' modules with the checkpoint's weights. Several media are one call.

What comes of a medium does not depend on the others but for rounding: attention stays within a frame or a window of sound. The one
exception is kept apart: sound shorter than a window is padded to the longest of its call, and the convolutions see the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoderConfig,
    Qwen3OmniMoeVisionEncoderConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
    Qwen3OmniMoeVisionRotaryEmbedding,
    SinusoidsPositionEmbedding,
)

from omnistage.core.errors import BrokenCheckpointError, StageFailedError
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.protocols import EncodedMedia, MediaInput

VISION, AUDIO = "visual.", "audio_tower."


class Encoders:
    """Both encoders. Their weights are never written to."""

    def __init__(self, vision: Qwen3OmniMoeVisionEncoder, audio: Qwen3OmniMoeAudioEncoder) -> None:
        self._vision = vision
        self._audio = audio
        self._merged = vision.config.spatial_merge_size**2
        self._window = 2 * audio.config.n_window

    @torch.inference_mode()
    def encode(self, inputs: Sequence[MediaInput]) -> list[EncodedMedia]:
        """See `EncodingModel`."""
        made: dict[int, EncodedMedia] = {}
        for kind, places in self._calls(inputs):
            batch = [inputs[place] for place in places]
            made.update(zip(places, self._hear(batch) if kind == "audio" else self._see(batch), strict=True))
        return [made[place] for place in range(len(inputs))]

    def _calls(self, inputs: Sequence[MediaInput]) -> Iterator[tuple[str, list[int]]]:
        """Which of them are one call."""

        def key(place: int) -> tuple[str, int]:
            one = inputs[place]
            if one.kind != "audio":
                return "vision", 0
            return "audio", min(self._window, one.data["input_features"].shape[1])

        for (kind, _), places in groupby(sorted(range(len(inputs)), key=key), key):
            yield kind, list(places)

    def _see(self, batch: Sequence[MediaInput]) -> list[EncodedMedia]:
        pixels = torch.cat([_tensor(one.data["pixel_values"]) for one in batch]).to(self._vision.dtype)
        grid = torch.tensor([[int(side) for side in one.data["grid_thw"]] for one in batch])
        sizes = (grid.prod(-1) // self._merged).tolist()
        made = self._vision(pixels, grid_thw=grid)
        rows = torch.split(made.pooler_output, sizes)
        if not made.deepstack_features:
            return [EncodedMedia(own) for own in rows]
        layered = torch.split(torch.stack(made.deepstack_features), sizes, dim=1)
        return [EncodedMedia(own, more) for own, more in zip(rows, layered, strict=True)]

    def _hear(self, batch: Sequence[MediaInput]) -> list[EncodedMedia]:
        features = [_tensor(one.data["input_features"]) for one in batch]
        lengths = torch.tensor([one.shape[1] for one in features])
        made = self._audio(torch.cat(features, dim=1).to(self._audio.dtype), feature_lens=lengths).last_hidden_state
        return [EncodedMedia(rows) for rows in torch.split(made, [one.tokens for one in batch])]


def load_encoders(reader: WeightsReader, settings: Mapping[str, Any]) -> Encoders:
    """`reader` knows the thinker's tensors by their names without its prefix; `settings` is its configuration. Raises
    BrokenCheckpointError."""
    vision_config = Qwen3OmniMoeVisionEncoderConfig(**settings["vision_config"])
    audio_config = Qwen3OmniMoeAudioEncoderConfig(**settings["audio_config"])
    with torch.device("meta"):  # nothing is drawn that the checkpoint's weights replace
        vision, audio = Qwen3OmniMoeVisionEncoder(vision_config), Qwen3OmniMoeAudioEncoder(audio_config)
    vision.rotary_pos_emb = Qwen3OmniMoeVisionRotaryEmbedding(vision_config)  # what follows from the sizes alone
    audio.positional_embedding = SinusoidsPositionEmbedding(audio_config.max_source_positions, audio_config.d_model)
    _assign(vision, reader, VISION)
    _assign(audio, reader, AUDIO)
    return Encoders(vision.eval(), audio.eval())


def _assign(module: torch.nn.Module, reader: WeightsReader, prefix: str) -> None:
    weights = {name.removeprefix(prefix): reader.read_any(name) for name in reader.names(prefix)}
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        said = " ".join(str(error).split())
        raise BrokenCheckpointError(f"{reader.folder}: {prefix.rstrip('.')}: {said}") from None
    module.requires_grad_(False)


def _tensor(array: object) -> torch.Tensor:
    if not isinstance(array, np.ndarray):
        raise StageFailedError(f"an encoder reads arrays, not {type(array).__name__}")
    return torch.from_numpy(array if array.flags.writeable else array.copy())
