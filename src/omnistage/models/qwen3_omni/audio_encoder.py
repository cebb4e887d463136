"""The encoder of sound: log-mel features [bands, frames] to a row for every eight frames.

Sound is cut into chunks of `chunk_frames`. Three convolutions make rows of each chunk, apart from the others; positions count
within a chunk. Attention stays within a window of several chunks.

As published, the last chunk of a sound is padded to a whole one, unless it is the only one, and biases make the padding heard. Of
it the chunk's rows hear no more than what fills the last of them, so that is all a last chunk gets.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from omnistage.models.qwen3_omni.encoder_layers import (
    ACTIVATIONS,
    EncoderLayer,
    EncoderWeights,
    LayerNames,
    LayerShape,
    parts_of,
)
from omnistage.models.qwen3_omni.settings import AudioSettings

FRAMES_PER_ROW = 8
"""Each of three convolutions has a stride of two."""
CHUNKS_AT_ONCE = 4
"""Of the published sizes the first convolution makes 6 MB of a chunk in float32, and a few of them stay in a cache."""

_EPS = 1e-5
_SLOWEST = 10_000
"""The longest wave of positions, over the shortest."""
_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LAYER = LayerNames("self_attn_layer_norm", _ATTENTION, "self_attn.out_proj", "final_layer_norm", "fc1", "fc2")


class AudioEncoder:
    """See the module. `weights` are those below "audio_tower."."""

    def __init__(self, weights: EncoderWeights, settings: AudioSettings) -> None:
        width, channels = settings.width, settings.channels
        self._chunk_frames = settings.chunk_frames
        self._window_chunks = settings.window_chunks
        self.conv2d1 = weights.affine("conv2d1", shape=[channels, 1, 3, 3])
        self.conv2d2 = weights.affine("conv2d2", shape=[channels, channels, 3, 3])
        self.conv2d3 = weights.affine("conv2d3", shape=[channels, channels, 3, 3])
        self._join = weights.read("conv_out.weight", shape=[width, channels * rows_of_chunk(settings.bands)])
        self._positions = sinusoids(rows_of_chunk(settings.chunk_frames), width).to(self._join.dtype)
        shape = LayerShape(width, settings.inner, settings.heads, _EPS, settings.activation)
        self._layers = [
            EncoderLayer.read(weights, f"layers.{index}.", _LAYER, shape) for index in range(settings.num_layers)
        ]
        self._norm = weights.norm("ln_post", width, _EPS)
        self._up = weights.affine("proj1", shape=[width, width])
        self._activation = ACTIVATIONS[settings.activation]
        self._down = weights.affine("proj2", shape=[settings.rows_width, width])

    def __call__(self, sounds: Sequence[torch.Tensor]) -> torch.Tensor:
        """Features of each sound -> the rows of all, [rows, rows_width]."""
        windows = [window for sound in sounds for window in self._windows(sound)]
        lengths = [sum(rows_of_chunk(chunk.shape[1]) for chunk in window) for window in windows]
        return torch.cat([self._encode(windows[some], lengths[some]) for some, _ in parts_of(lengths)])

    def _windows(self, sound: torch.Tensor) -> list[list[torch.Tensor]]:
        """The chunks of each."""
        chunks, count = self._chunks(sound), self._window_chunks
        return [chunks[at : at + count] for at in range(0, len(chunks), count)]

    def _chunks(self, sound: torch.Tensor) -> list[torch.Tensor]:
        *whole, last = torch.split(sound, self._chunk_frames, dim=1)
        if not whole:
            return [last]
        seen = min(self._chunk_frames, FRAMES_PER_ROW * rows_of_chunk(last.shape[1]))
        return [*whole, F.pad(last, (0, seen - last.shape[1]))]

    def _rows(self, chunks: Sequence[torch.Tensor]) -> torch.Tensor:
        """[rows, width] of all chunks, in order. Those that are equally long are computed together, a few at a time."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, chunk in enumerate(chunks):
            places[chunk.shape[1]].append(place)
        made: dict[int, torch.Tensor] = {}
        for equal in places.values():
            for at in range(0, len(equal), CHUNKS_AT_ONCE):
                some = equal[at : at + CHUNKS_AT_ONCE]
                made.update(zip(some, self._convolved(torch.stack([chunks[place] for place in some])), strict=True))
        return torch.cat([made[place] for place in range(len(chunks))])

    def _convolved(self, chunks: torch.Tensor) -> torch.Tensor:
        """[chunks, bands, frames] -> [chunks, rows, width]"""
        x = chunks[:, None].to(self._join.dtype)
        for layer in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = F.gelu(F.conv2d(x, layer.weight, layer.bias, stride=2, padding=1))
        rows = F.linear(x.permute(0, 3, 1, 2).flatten(2), self._join)
        return rows + self._positions[: rows.shape[1]]

    def _encode(self, windows: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int]) -> torch.Tensor:
        """Windows that have rows of `lengths` -> their rows."""
        x = self._rows([chunk for window in windows for chunk in window])
        for layer in self._layers:
            x = layer(x, lengths)
        return self._down(self._activation(self._up(self._norm(x))))


def rows_of_chunk(frames: int) -> int:
    """What is left of `frames`, or of bands, behind the three convolutions."""
    return -(-frames // FRAMES_PER_ROW)


def sinusoids(length: int, width: int) -> torch.Tensor:
    """[length, width]: sines of the positions, then their cosines, each at width / 2 frequencies (Vaswani et al., 2017)."""
    steps = torch.arange(width // 2, dtype=torch.float32) * (-math.log(_SLOWEST) / (width // 2 - 1))
    angles = torch.arange(length)[:, None] * steps.exp()
    return torch.cat([angles.sin(), angles.cos()], dim=1)
