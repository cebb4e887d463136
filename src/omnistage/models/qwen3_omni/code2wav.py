"""The codec decoder of Qwen3-Omni as a streaming model: frames of codes in, samples at 24 kHz out.

    codes -> mean of embeddings -> transformer with a sliding window -> steps of time doubled, twice -> convolutions to samples

The state of a request is a value (`modeling.streaming`): how many frames there were, the keys and values of the last
`window - 1` of them, the pasts of the convolutions. Its size does not depend on how many frames there were, so that states of
different ages stack. n frames make n * 1920 - 555 samples, in any chunks: what is missing is missing once, at the very beginning,
and no frame is decoded twice. Works through long chunks in pieces of `PIECE` frames, so that work grows as the sound does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omnistage.config.stage import GenerationStageConfig
from omnistage.core.errors import InvalidRequestError, StageFailedError
from omnistage.core.params import GenerationParams
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.kernels.waves import TorchWaves, chosen_waves
from omnistage.modeling.protocols import Interrupted
from omnistage.modeling.streaming import StreamState, shape_key, split_states, stack_states
from omnistage.modeling.tensors import TorchSource, dtype_of
from omnistage.models.qwen3_omni.settings import Code2WavSettings, code2wav_settings, read_config
from omnistage.models.qwen3_omni.waveform import KERNEL, Pause, WaveDecoder, Weights, own

log = logging.getLogger(__name__)

SAMPLE_RATE_HZ = 24_000
PIECE = 32
"""Frames that go through the network at once: attention over 32 + 71 frames costs little, and memory is bounded."""


class TransformerLayer:
    """Attention over a window of frames and a gated MLP, each scaled per channel. The state: keys and values, each
    [batch, heads, window - 1, head_dim], the newest last."""

    def __init__(self, weights: WeightsReader, index: int, settings: Code2WavSettings) -> None:
        self._settings = settings
        name, hidden, inner = f"pre_transformer.layers.{index}", settings.hidden_size, settings.intermediate_size
        rows = {"q": settings.num_heads, "k": settings.num_kv_heads, "v": settings.num_kv_heads}
        self._widths = {key: heads * settings.head_dim for key, heads in rows.items()}
        joined = {f"{name}.self_attn.{key}_proj": width for key, width in self._widths.items()}
        self._qkv = weights.read_joined({f"{key}.weight": [width, hidden] for key, width in joined.items()})
        self._gate_up = weights.read_joined(
            {f"{name}.mlp.{key}_proj.weight": [inner, hidden] for key in ("gate", "up")}
        )
        self._o = own(weights.read(f"{name}.self_attn.o_proj.weight", [hidden, self._widths["q"]]))
        self._down = own(weights.read(f"{name}.mlp.down_proj.weight", [hidden, inner]))
        self._qkv_bias = self._o_bias = None
        if settings.attention_bias:
            self._qkv_bias = weights.read_joined({f"{key}.bias": [width] for key, width in joined.items()})
            self._o_bias = own(weights.read(f"{name}.self_attn.o_proj.bias", [hidden]))
        vectors = (
            "input_layernorm.weight",
            "self_attn_layer_scale.scale",
            "post_attention_layernorm.weight",
            "mlp_layer_scale.scale",
        )
        self._norm, self._scale, self._mlp_norm, self._mlp_scale = (
            own(weights.read(f"{name}.{vector}", [hidden])) for vector in vectors
        )

    def begin(self) -> StreamState:
        shape = (1, self._settings.num_kv_heads, self._settings.window - 1, self._settings.head_dim)
        return self._norm.new_zeros(shape), self._norm.new_zeros(shape)

    def __call__(
        self, x: torch.Tensor, state: Any, rotation: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor
    ) -> tuple[torch.Tensor, StreamState]:
        """`x` [batch, frames, hidden], `mask` [batch, 1, frames, window - 1 + frames]: which keys a frame sees."""
        settings = self._settings
        normed = F.rms_norm(x, self._norm.shape, self._norm, settings.norm_eps)
        parts = torch.split(F.linear(normed, self._qkv, self._qkv_bias), list(self._widths.values()), dim=-1)
        q, k, v = (part.view(*x.shape[:2], -1, settings.head_dim).transpose(1, 2) for part in parts)
        keys, values = torch.cat((state[0], _rotated(k, rotation)), dim=2), torch.cat((state[1], v), dim=2)
        seen = F.scaled_dot_product_attention(_rotated(q, rotation), keys, values, attn_mask=mask, enable_gqa=True)
        x = x + F.linear(seen.transpose(1, 2).flatten(2), self._o, self._o_bias) * self._scale
        gate, up = F.linear(
            F.rms_norm(x, self._mlp_norm.shape, self._mlp_norm, settings.norm_eps), self._gate_up
        ).chunk(2, -1)
        frames = x.shape[1]
        return x + F.linear(F.silu(gate) * up, self._down) * self._mlp_scale, (
            keys[:, :, frames:].clone(),
            values[:, :, frames:].clone(),
        )


def _rotated(heads: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[batch, heads, frames, head_dim]; the halves of a head turn together."""
    cosine, sine = rotation
    low, high = heads.chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


class Upsampler:
    """Makes `ratio` steps of each, then a ConvNeXt block. The state is the past of its depthwise convolution, [batch, 6, dim]."""

    def __init__(self, weights: WeightsReader, index: int, ratio: int, dim: int) -> None:
        steps, block = f"upsample.{index}.0.conv", f"upsample.{index}.1"
        by_ratio = own(weights.read(f"{steps}.weight", [dim, dim, ratio]).permute(2, 1, 0))  # [ratio, out, in]
        self._steps = by_ratio.view(ratio * dim, dim)
        self._steps_bias = weights.read(f"{steps}.bias", [dim]).repeat(ratio)
        taps = weights.read(f"{block}.dwconv.conv.weight", [dim, 1, KERNEL])
        self._sums_in = torch.promote_types(taps.dtype, torch.float32)
        self._taps = list(own(taps.permute(2, 1, 0).to(self._sums_in)))  # [1, dim] each
        self._depthwise_bias = own(weights.read(f"{block}.dwconv.conv.bias", [dim]).to(self._sums_in))
        self._norm = own(weights.read(f"{block}.norm.weight", [dim]))
        self._norm_bias = own(weights.read(f"{block}.norm.bias", [dim]))
        self._up = own(weights.read(f"{block}.pwconv1.weight", [4 * dim, dim]))
        self._up_bias = own(weights.read(f"{block}.pwconv1.bias", [4 * dim]))
        self._down = own(weights.read(f"{block}.pwconv2.weight", [dim, 4 * dim]))
        self._down_bias = own(weights.read(f"{block}.pwconv2.bias", [dim]))
        self._gamma = own(weights.read(f"{block}.gamma", [dim]))
        self._dim = dim

    def begin(self) -> torch.Tensor:
        return self._gamma.new_zeros(1, KERNEL - 1, self._dim)

    def __call__(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, steps, dim] -> [batch, steps * ratio, dim]"""
        x = F.linear(x, self._steps, self._steps_bias).view(x.shape[0], -1, self._dim)
        held = torch.cat((state, x), dim=1)
        spread = self._depthwise(held.to(self._sums_in)).to(x.dtype)
        normed = F.layer_norm(spread, self._norm.shape, self._norm, self._norm_bias, 1e-6)
        made = F.linear(F.gelu(F.linear(normed, self._up, self._up_bias)), self._down, self._down_bias)
        return x + made * self._gamma, held[:, 1 - KERNEL :].clone()

    def _depthwise(self, held: torch.Tensor) -> torch.Tensor:
        """Few steps of many channels: seven products cost less than a convolution that knows groups."""
        steps = held.shape[1] - KERNEL + 1
        made = torch.addcmul(self._depthwise_bias, held[:, :steps], self._taps[0])
        for start, tap in enumerate(self._taps[1:], start=1):
            made.addcmul_(held[:, start : start + steps], tap)
        return made


class Code2Wav:
    """A GenerationModel. `weights` are those below "code2wav." in the folder; `waves` computes convolutions."""

    def __init__(self, weights: WeightsReader, settings: Code2WavSettings, waves: TorchWaves) -> None:
        self._settings = settings
        hidden = settings.hidden_size
        self._embedding = own(weights.read("code_embedding.weight", [settings.codebook_size * settings.groups, hidden]))
        self._offsets = torch.arange(settings.groups) * settings.codebook_size
        self._layers = [TransformerLayer(weights, index, settings) for index in range(settings.num_layers)]
        self._norm = own(weights.read("pre_transformer.norm.weight", [hidden]))
        self._upsamplers = [Upsampler(weights, i, ratio, hidden) for i, ratio in enumerate(settings.ratios)]
        self._decoder = WaveDecoder(Weights(weights, waves), settings)
        self._initial = (
            torch.zeros(1, dtype=torch.int64),
            tuple(layer.begin() for layer in self._layers),
            tuple(upsampler.begin() for upsampler in self._upsamplers),
            self._decoder.begin(),
        )
        self._interrupted = threading.Event()

    # ---- of the protocol -------------------------------------------------------------------------------------------

    def begin(self, request: OmniRequest, params: GenerationParams) -> StreamState:
        """The voice is the talker's to choose, and so is the pace."""
        if params.speed != 1.0:
            raise InvalidRequestError.of("speed", params.speed, "1.0: this model speaks at its own pace")
        return self._initial

    def batch_key(self, chunk: Mapping[str, Any], state: StreamState) -> object:
        return len(chunk["frames"]), shape_key(state)

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return len(chunk["frames"])

    def run(self, batch: Sequence[tuple[Mapping[str, Any], Any]]) -> list[tuple[MultimodalPayload | None, Any]]:
        """A few requests at a time, as many as have PIECE frames together: what more of them compute with does not fit into a
        cache, and costs more memory and more time. Raises StageFailedError for frames that the folder's codebooks do not have."""
        for chunk, state in batch:
            self._check(chunk["frames"], int(state[0]))
        at_once = max(1, PIECE // max(1, len(batch[0][0]["frames"])))
        try:
            parts = [self._run(batch[at : at + at_once]) for at in range(0, len(batch), at_once)]
        finally:
            self._interrupted.clear()
        return list(chain.from_iterable(parts))

    def _run(self, batch: Sequence[tuple[Mapping[str, Any], Any]]) -> list[tuple[MultimodalPayload | None, Any]]:
        codes = torch.from_numpy(np.stack([chunk["frames"] for chunk, _ in batch])).long()
        audio, state = self.decode(codes, stack_states([state for _, state in batch]), self._pause)
        made = [MultimodalPayload({"audio": TorchSource(row)}, {"sample_rate": SAMPLE_RATE_HZ}) for row in audio]
        return list(zip(made, split_states(state, len(batch)), strict=True))

    def interrupt(self) -> None:
        self._interrupted.set()

    # ---- the network -----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def decode(self, codes: torch.Tensor, state: Any, pause: Pause = lambda: None) -> tuple[torch.Tensor, StreamState]:
        """Codes [batch, frames, groups] -> float32 samples [batch, any number] and the state behind them."""
        made = []
        for piece in torch.split(codes, PIECE, dim=1):
            samples, state = self._decode(piece, state, pause)
            made.append(samples)
        return torch.cat(made, dim=1).float(), state

    def _decode(self, codes: torch.Tensor, state: Any, pause: Pause) -> tuple[torch.Tensor, StreamState]:
        age, layer_states, upsampler_states, decoder_state = state
        frames = codes.shape[1]
        x = F.embedding(codes + self._offsets, self._embedding).mean(dim=2)
        rotation, mask = self._rotation(age, frames), self._mask(age, frames)
        layers, upsamplers = [], []
        for layer, layer_state in zip(self._layers, layer_states, strict=True):
            pause()
            x, layer_state = layer(x, layer_state, rotation, mask)
            layers.append(layer_state)
        x = F.rms_norm(x, self._norm.shape, self._norm, self._settings.norm_eps)
        for upsampler, past in zip(self._upsamplers, upsampler_states, strict=True):
            x, past = upsampler(x, past)
            upsamplers.append(past)
        samples, decoder_state = self._decoder(x.transpose(1, 2), decoder_state, pause)
        return samples, (age + frames, tuple(layers), tuple(upsamplers), decoder_state)

    def _rotation(self, age: torch.Tensor, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, each [batch, 1, frames, head_dim / 2], computed in float32."""
        half = torch.arange(0, self._settings.head_dim, 2, dtype=torch.float32) / self._settings.head_dim
        frequencies = 1.0 / self._settings.rope_theta**half
        angles = (age[:, None] + torch.arange(frames)).float()[:, None, :, None] * frequencies
        return angles.cos().to(self._norm.dtype), angles.sin().to(self._norm.dtype)

    def _mask(self, age: torch.Tensor, frames: int) -> torch.Tensor:
        """True where a frame sees a key: its own, or one of the `window - 1` before it, from the request's first on."""
        held = self._settings.window - 1
        key, query = torch.arange(-held, frames), torch.arange(frames)[:, None]  # counted from the first new frame
        near = (key <= query) & (key > query - self._settings.window)
        there = key >= -age[:, None]
        return near & there[:, None, None, :]

    def _pause(self) -> None:
        if self._interrupted.is_set():
            raise Interrupted

    def _check(self, frames: np.ndarray[Any, Any], age: int) -> None:
        groups, size = self._settings.groups, self._settings.codebook_size
        if frames.ndim != 2 or frames.shape[1] != groups:
            raise StageFailedError(f"codec frames of shape {list(frames.shape)}; accepted: [frames, {groups}]")
        wrong = np.argwhere((frames < 0) | (frames >= size))
        if len(wrong):
            frame, group = (int(place) for place in wrong[0])
            code = int(frames[frame, group])
            raise StageFailedError(
                f"codec frame {age + frame}: code {code} of group {group} is in no codebook; accepted: 0 to {size - 1}"
            )


def load(config: GenerationStageConfig) -> Code2Wav:
    """Raises BrokenCheckpointError for a folder that has no codec decoder."""
    folder = Path(config.model_path)
    settings = code2wav_settings(read_config(folder))
    waves = chosen_waves()
    log.info("sound is computed with %s", waves.name)
    return Code2Wav(WeightsReader(folder, dtype_of(config.dtype), "code2wav."), settings, waves)
