"""The convolutions of the codec decoder: hidden states over time to samples, chunk by chunk.

    [batch, hidden, steps] -> causal conv -> blocks (snake, transposed conv, three residual units) -> snake, conv -> samples

Each part is `(x, state) -> (out, state)` with states as `modeling.streaming` has them, so any chunking gives the same samples.
A transposed convolution has kernels of two strides and leaves its first `stride` outputs out, as the published decoder does:
output i needs inputs i - 1 and i, so a first chunk makes one step less than it has inputs, and its state begins empty.

A block works through its input in tiles whose activations stay in the cache. Knows no request and no codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.kernels.waves import Link, TorchWaves
from omnistage.modeling.streaming import StreamState, stack_states
from omnistage.models.qwen3_omni.settings import Code2WavSettings

KERNEL = 7
DILATIONS = (1, 3, 9)
TILE = 2**16
"""Values of one activation of a tile, over the batch: 256 KiB in float32, a fraction of a core's second cache."""

_NO_DIVISION_BY_ZERO = 1e-9

Pause = Callable[[], None]
"""Called between pieces of work; what it raises ends the whole."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What the parts are made of: tensors by name, and what computes with them."""

    reader: WeightsReader
    waves: TorchWaves

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        return self.reader.read(name, shape)


def own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy: what was read as it lies would keep the whole file mapped."""
    return tensor.clone(memory_format=torch.contiguous_format)


class CausalConv:
    """`[batch, in, padding + time] -> [batch, out, time]`: the input has its past in front."""

    def __init__(
        self, weights: Weights, name: str, in_dim: int, out_dim: int, kernel: int = KERNEL, dilation: int = 1
    ) -> None:
        bias = weights.read(f"{name}.conv.bias", [out_dim])
        weight = weights.read(f"{name}.conv.weight", [out_dim, in_dim, kernel])
        self.convolve = weights.waves.convolution(weight, bias, dilation)
        self.padding = (kernel - 1) * dilation
        self._empty = bias.new_zeros(1, in_dim, self.padding)

    def begin(self) -> torch.Tensor:
        return self._empty

    def __call__(self, held: torch.Tensor) -> torch.Tensor:
        return self.convolve(held, None)


class TransposedConv:
    """See the module: [batch, in, 0 or 1 + time] -> [batch, out, time * stride]; the input has its past in front."""

    padding = 1

    def __init__(self, weights: Weights, name: str, in_dim: int, out_dim: int, stride: int) -> None:
        bias = weights.read(f"{name}.conv.bias", [out_dim])
        weight = weights.read(f"{name}.conv.weight", [in_dim, out_dim, 2 * stride])
        self.convolve = weights.waves.upsampling(weight, bias)
        self._empty = bias.new_zeros(1, in_dim, 0)

    def begin(self) -> torch.Tensor:
        return self._empty

    def __call__(self, held: torch.Tensor) -> torch.Tensor:
        return self.convolve(held, None)


class Bent:
    """What snake, x + sin(x a)^2 / b with a and b per channel, makes of an input, and a convolution of it. The state is the end of
    the convolution's input; the folder has the logarithms of a and b."""

    def __init__(
        self, weights: Weights, snake: str, dim: int, by: CausalConv | TransposedConv, *, adds: bool = False
    ) -> None:
        alpha = weights.read(f"{snake}.alpha", [dim]).exp()
        by_beta = 1.0 / (weights.read(f"{snake}.beta", [dim]).exp() + _NO_DIVISION_BY_ZERO)
        self.link = Link(alpha, by_beta, by.convolve, by.padding, adds)
        self.begun = (by.begin(),) if by.padding else ()


def residual_unit(weights: Weights, name: str, dim: int, dilation: int) -> tuple[Bent, Bent]:
    """x + conv(snake(dilated conv(snake(x))))."""
    wide = CausalConv(weights, f"{name}.conv1", dim, dim, dilation=dilation)
    narrow = CausalConv(weights, f"{name}.conv2", dim, dim, kernel=1)
    return Bent(weights, f"{name}.act1", dim, wide), Bent(weights, f"{name}.act2", dim, narrow, adds=True)


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Along time."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)


class Block:
    """Some of these, one behind another. `step_values`: values of one activation that an input step becomes."""

    def __init__(self, parts: Sequence[Bent], waves: TorchWaves, step_values: int) -> None:
        self._begun = tuple(past for part in parts for past in part.begun)
        self._chained = waves.chain([part.link for part in parts])
        self._step_values = step_values

    def begin(self) -> StreamState:
        return self._begun

    def __call__(self, x: torch.Tensor, state: Any, pause: Pause) -> tuple[torch.Tensor, StreamState]:
        """Few sequences, and many steps of each, at a time: of few steps most of a vector would be empty."""
        rows = max(1, TILE // (self._step_values * max(1, x.shape[-1])))
        if len(x) <= rows:
            return self._in_tiles(x, state, pause)
        parts = zip(*(torch.split(one, rows) for one in (x, *state)), strict=True)
        made, states = zip(*(self._in_tiles(part, pasts, pause) for part, *pasts in parts), strict=True)
        return torch.cat(made), stack_states(states)

    def _in_tiles(self, x: torch.Tensor, state: Any, pause: Pause) -> tuple[torch.Tensor, StreamState]:
        steps, made = max(1, TILE // (self._step_values * len(x))), []
        for tile in (x,) if x.shape[-1] <= steps else torch.split(x, steps, dim=-1):
            pause()
            out, state = self._chained(tile, state)
            made.append(out)
        return joined(made), state


def upsampling_block(weights: Weights, name: str, in_dim: int, out_dim: int, rate: int) -> Block:
    """A transposed convolution, residual units."""
    upsample = TransposedConv(weights, f"{name}.1", in_dim, out_dim, rate)
    parts = [Bent(weights, f"{name}.0", in_dim, upsample)]
    for place, dilation in enumerate(DILATIONS, start=2):
        parts += residual_unit(weights, f"{name}.{place}", out_dim, dilation)
    return Block(parts, weights.waves, out_dim * rate)


def last_block(weights: Weights, name: str, place: int, dim: int) -> Block:
    """A convolution to one channel."""
    conv = CausalConv(weights, f"{name}.{place + 1}", dim, 1)
    return Block([Bent(weights, f"{name}.{place}", dim, conv)], weights.waves, dim)


class WaveDecoder:
    """See the module. The state: of the first convolution, of each block, of the last."""

    def __init__(self, weights: Weights, settings: Code2WavSettings) -> None:
        dims = [settings.decoder_dim // 2**i for i in range(len(settings.rates) + 1)]
        self._first = CausalConv(weights, "decoder.0", settings.hidden_size, dims[0])
        self._blocks = [
            upsampling_block(weights, f"decoder.{1 + i}.block", dims[i], dims[i + 1], rate)
            for i, rate in enumerate(settings.rates)
        ]
        self._blocks.append(last_block(weights, "decoder", 1 + len(settings.rates), dims[-1]))

    def begin(self) -> StreamState:
        return (self._first.begin(), *(block.begin() for block in self._blocks))

    def __call__(self, x: torch.Tensor, state: Any, pause: Pause) -> tuple[torch.Tensor, StreamState]:
        """[batch, hidden, steps] -> samples [batch, any number]."""
        past, *inner = state
        held = torch.cat((past, x), dim=-1)
        kept: list[StreamState] = [held[..., max(0, held.shape[-1] - self._first.padding) :].clone()]
        x = self._first(held)
        for block, block_state in zip(self._blocks, inner, strict=True):
            x, block_state = block(x, block_state, pause)
            kept.append(block_state)
        return x[:, 0].clamp_(-1, 1), tuple(kept)
