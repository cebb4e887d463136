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
from omnistage.modeling.kernels.frames import MultiplierWeights, Places, WindowWeights
from omnistage.modeling.kernels.waves import TorchWaves, chosen_waves
from omnistage.modeling.linear import PlainLinear
from omnistage.modeling.protocols import Interrupted
from omnistage.modeling.streaming import StreamState, shape_key, split_states, stack_states
from omnistage.modeling.tensors import TorchSource, dtype_of
from omnistage.models.qwen3_omni.settings import Code2WavSettings, code2wav_settings, read_config
from omnistage.models.qwen3_omni.waveform import KERNEL, Pause, WaveDecoder, Weights, joined, own

log = logging.getLogger(__name__)

SAMPLE_RATE_HZ = 24_000
PIECE = 32
"""Frames that go through the network at once: attention over 32 + 71 frames costs little, and memory is bounded."""


def window_weights(weights: WeightsReader, index: int, settings: Code2WavSettings) -> WindowWeights:
    """Layer `index` of the transformer."""
    name, hidden, inner = f"pre_transformer.layers.{index}", settings.hidden_size, settings.intermediate_size
    rows = {"q": settings.num_heads, "k": settings.num_kv_heads, "v": settings.num_kv_heads}
    widths = {f"{name}.self_attn.{key}_proj": heads * settings.head_dim for key, heads in rows.items()}
    qkv = weights.read_joined({f"{key}.weight": [width, hidden] for key, width in widths.items()})
    gate_up = weights.read_joined({f"{name}.mlp.{key}_proj.weight": [inner, hidden] for key in ("gate", "up")})
    output = own(weights.read(f"{name}.self_attn.o_proj.weight", [hidden, settings.num_heads * settings.head_dim]))
    qkv_bias = output_bias = None
    if settings.attention_bias:
        qkv_bias = weights.read_joined({f"{key}.bias": [width] for key, width in widths.items()})
        output_bias = own(weights.read(f"{name}.self_attn.o_proj.bias", [hidden]))
    return WindowWeights(
        norm=own(weights.read(f"{name}.input_layernorm.weight", [hidden])),
        qkv=PlainLinear(qkv, qkv_bias),
        output=PlainLinear(output, output_bias),
        scale=own(weights.read(f"{name}.self_attn_layer_scale.scale", [hidden])),
        mlp_norm=own(weights.read(f"{name}.post_attention_layernorm.weight", [hidden])),
        gate_up=PlainLinear(gate_up),
        down=PlainLinear(own(weights.read(f"{name}.mlp.down_proj.weight", [hidden, inner]))),
        mlp_scale=own(weights.read(f"{name}.mlp_layer_scale.scale", [hidden])),
        heads=settings.num_heads,
        kv_heads=settings.num_kv_heads,
        head_dim=settings.head_dim,
        window=settings.window,
        eps=settings.norm_eps,
    )


def multiplier_weights(weights: WeightsReader, index: int, ratio: int, dim: int) -> MultiplierWeights:
    """Makes `ratio` steps of each, then a ConvNeXt block."""
    steps, block = f"upsample.{index}.0.conv", f"upsample.{index}.1"
    by_ratio = own(weights.read(f"{steps}.weight", [dim, dim, ratio]).permute(2, 1, 0))  # [ratio, out, in]
    taps = weights.read(f"{block}.dwconv.conv.weight", [dim, 1, KERNEL])
    sums_in = torch.promote_types(taps.dtype, torch.float32)
    up, down = ([4 * dim, dim], f"{block}.pwconv1"), ([dim, 4 * dim], f"{block}.pwconv2")
    made, back = (
        PlainLinear(own(weights.read(f"{name}.weight", shape)), own(weights.read(f"{name}.bias", shape[:1])))
        for shape, name in (up, down)
    )
    return MultiplierWeights(
        steps=PlainLinear(by_ratio.view(ratio * dim, dim), weights.read(f"{steps}.bias", [dim]).repeat(ratio)),
        taps=own(taps[:, 0].T.to(sums_in)),
        bias=own(weights.read(f"{block}.dwconv.conv.bias", [dim]).to(sums_in)),
        norm=own(weights.read(f"{block}.norm.weight", [dim])),
        norm_bias=own(weights.read(f"{block}.norm.bias", [dim])),
        up=made,
        down=back,
        gamma=own(weights.read(f"{block}.gamma", [dim])),
        eps=1e-6,
    )


class Code2Wav:
    """A GenerationModel. `weights` are those below "code2wav." in the folder; `waves` computes convolutions."""

    def __init__(self, weights: WeightsReader, settings: Code2WavSettings, waves: TorchWaves) -> None:
        self._settings = settings
        hidden = settings.hidden_size
        self._embedding = own(weights.read("code_embedding.weight", [settings.codebook_size * settings.groups, hidden]))
        self._offsets = torch.arange(settings.groups) * settings.codebook_size
        layers, frames = range(settings.num_layers), waves.frames
        self._layers = [frames.window_layer(window_weights(weights, index, settings)) for index in layers]
        self._norm = own(weights.read("pre_transformer.norm.weight", [hidden]))
        self._multipliers = [
            frames.multiplier(multiplier_weights(weights, index, ratio, hidden))
            for index, ratio in enumerate(settings.ratios)
        ]
        self._decoder = WaveDecoder(Weights(weights, waves), settings)
        half = torch.arange(0, settings.head_dim, 2, dtype=torch.float32) / settings.head_dim
        self._frequencies = 1.0 / settings.rope_theta**half
        seen = self._norm.new_zeros(1, settings.num_kv_heads, settings.window - 1, settings.head_dim)
        self._initial = (
            torch.zeros(1, dtype=torch.int64),
            ((seen, seen),) * settings.num_layers,
            (self._norm.new_zeros(1, KERNEL - 1, hidden),) * len(settings.ratios),
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

    @torch.inference_mode()
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
        return joined(made).float(), state

    def _decode(self, codes: torch.Tensor, state: Any, pause: Pause) -> tuple[torch.Tensor, StreamState]:
        age, layer_states, multiplier_states, decoder_state = state
        frames = codes.shape[1]
        x = F.embedding(codes + self._offsets, self._embedding).mean(dim=2)
        places, layers, pasts = self._places(age, frames), [], []
        for layer, layer_state in zip(self._layers, layer_states, strict=True):
            pause()
            x, layer_state = layer(x, layer_state, places)
            layers.append(layer_state)
        x = F.rms_norm(x, self._norm.shape, self._norm, self._settings.norm_eps)
        for multiplier, past in zip(self._multipliers, multiplier_states, strict=True):
            x, past = multiplier(x, past)
            pasts.append(past)
        samples, decoder_state = self._decoder(x.transpose(1, 2), decoder_state, pause)
        return samples, (age + frames, tuple(layers), tuple(pasts), decoder_state)

    def _places(self, age: torch.Tensor, frames: int) -> Places:
        """A frame sees its own key and the `window - 1` before it, from the request's first on. Angles are computed in float32."""
        held, steps = self._settings.window - 1, torch.arange(frames)
        first = torch.maximum(steps, held - age[:, None])
        angles = (age[:, None] + steps).float()[..., None] * self._frequencies
        return Places(first, torch.cat((angles.cos(), angles.sin()), dim=-1).to(self._norm.dtype), held)

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
