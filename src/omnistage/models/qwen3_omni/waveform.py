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
from omnistage.modeling.kernels.waves import TorchWaves
from omnistage.modeling.streaming import StreamState
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


def _end(held: torch.Tensor, count: int) -> torch.Tensor:
    """The last `count` steps, or as many as there are."""
    return held[..., max(0, held.shape[-1] - count) :].clone()


class CausalConv:
    """`[batch, in, padding + time] -> [batch, out, time]`: the input has its past in front. `added` is added to the output."""

    def __init__(
        self, weights: Weights, name: str, in_dim: int, out_dim: int, kernel: int = KERNEL, dilation: int = 1
    ) -> None:
        bias = weights.read(f"{name}.conv.bias", [out_dim])
        weight = weights.read(f"{name}.conv.weight", [out_dim, in_dim, kernel])
        self._convolve = weights.waves.convolution(weight, bias, dilation)
        self._empty = bias.new_zeros(1, in_dim, (kernel - 1) * dilation)
        self.padding = (kernel - 1) * dilation

    def begin(self) -> torch.Tensor:
        return self._empty

    def __call__(self, held: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        return self._convolve(held, added)


class SnakeBeta:
    """x + sin(x a)^2 / b, with a and b per channel; the folder has their logarithms."""

    def __init__(self, weights: Weights, name: str, dim: int) -> None:
        self._waves = weights.waves
        self._alpha = weights.read(f"{name}.alpha", [dim]).exp()
        self._by_beta = 1.0 / (weights.read(f"{name}.beta", [dim]).exp() + _NO_DIVISION_BY_ZERO)

    def behind(self, past: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`past` as it is, and behind it what becomes of `x`: [batch, channels, past + time]."""
        start = past.shape[-1]
        held = x.new_empty(*x.shape[:-1], start + x.shape[-1])
        held[..., :start] = past
        self._waves.snake(x, self._alpha, self._by_beta, held[..., start:])
        return held


class ResidualUnit:
    """x + conv(snake(dilated conv(snake(x)))). The state is the end of the dilated convolution's input."""

    def __init__(self, weights: Weights, name: str, dim: int, dilation: int) -> None:
        self._outer = SnakeBeta(weights, f"{name}.act1", dim)
        self._wide = CausalConv(weights, f"{name}.conv1", dim, dim, dilation=dilation)
        self._inner = SnakeBeta(weights, f"{name}.act2", dim)
        self._narrow = CausalConv(weights, f"{name}.conv2", dim, dim, kernel=1)

    def begin(self) -> torch.Tensor:
        return self._wide.begin()

    def __call__(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        held = self._outer.behind(state, x)
        inner = self._wide(held)
        return self._narrow(self._inner.behind(inner[..., :0], inner), x), _end(held, self._wide.padding)


class TransposedConv:
    """See the module: [batch, in, 0 or 1 + time] -> [batch, out, time * stride]; the input has its past in front."""

    def __init__(self, weights: Weights, name: str, in_dim: int, out_dim: int, stride: int) -> None:
        bias = weights.read(f"{name}.conv.bias", [out_dim])
        weight = weights.read(f"{name}.conv.weight", [in_dim, out_dim, 2 * stride])
        self._upsample = weights.waves.upsampling(weight, bias)
        self._empty = bias.new_zeros(1, in_dim, 0)

    def begin(self) -> torch.Tensor:
        return self._empty

    def __call__(self, held: torch.Tensor) -> torch.Tensor:
        return self._upsample(held, None)


class UpsamplingBlock:
    """Snake, transposed convolution, residual units. `step_values`: values of one activation that an input step becomes."""

    def __init__(self, weights: Weights, name: str, in_dim: int, out_dim: int, rate: int) -> None:
        self._snake = SnakeBeta(weights, f"{name}.0", in_dim)
        self._upsample = TransposedConv(weights, f"{name}.1", in_dim, out_dim, rate)
        self._units = [ResidualUnit(weights, f"{name}.{2 + i}", out_dim, d) for i, d in enumerate(DILATIONS)]
        self.step_values = out_dim * rate

    def begin(self) -> StreamState:
        return (self._upsample.begin(), *(unit.begin() for unit in self._units))

    def __call__(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, StreamState]:
        past, *inner = state
        held = self._snake.behind(past, x)
        x, kept = self._upsample(held), [_end(held, 1)]
        for unit, unit_state in zip(self._units, inner, strict=True):
            x, unit_state = unit(x, unit_state)
            kept.append(unit_state)
        return x, tuple(kept)


class LastBlock:
    """Snake and convolution to one channel of samples, in [-1, 1]."""

    def __init__(self, weights: Weights, name: str, place: int, dim: int) -> None:
        self._snake = SnakeBeta(weights, f"{name}.{place}", dim)
        self._conv = CausalConv(weights, f"{name}.{place + 1}", dim, 1)
        self.step_values = dim

    def begin(self) -> torch.Tensor:
        return self._conv.begin()

    def __call__(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        held = self._snake.behind(state, x)
        return self._conv(held).clamp_(-1, 1), _end(held, self._conv.padding)


class WaveDecoder:
    """See the module. The state: of the first convolution, of each block, of the last."""

    def __init__(self, weights: Weights, settings: Code2WavSettings) -> None:
        dims = [settings.decoder_dim // 2**i for i in range(len(settings.rates) + 1)]
        self._first = CausalConv(weights, "decoder.0", settings.hidden_size, dims[0])
        self._blocks: list[UpsamplingBlock | LastBlock] = [
            UpsamplingBlock(weights, f"decoder.{1 + i}.block", dims[i], dims[i + 1], rate)
            for i, rate in enumerate(settings.rates)
        ]
        self._blocks.append(LastBlock(weights, "decoder", 1 + len(settings.rates), dims[-1]))

    def begin(self) -> StreamState:
        return (self._first.begin(), *(block.begin() for block in self._blocks))

    def __call__(self, x: torch.Tensor, state: Any, pause: Pause) -> tuple[torch.Tensor, StreamState]:
        """[batch, hidden, steps] -> samples [batch, any number]."""
        past, *inner = state
        held = torch.cat((past, x), dim=-1)
        x, kept = self._first(held), [_end(held, self._first.padding)]
        for block, block_state in zip(self._blocks, inner, strict=True):
            made = []
            for tile in torch.split(x, max(1, TILE // (block.step_values * x.shape[0])), dim=-1):
                pause()
                out, block_state = block(tile, block_state)
                made.append(out)
            x = torch.cat(made, dim=-1)
            kept.append(block_state)
        return x[:, 0], tuple(kept)
