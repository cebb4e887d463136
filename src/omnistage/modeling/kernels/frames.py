"""What a decoder of codec frames does before it makes waves, with torch and with the compiled library: layers that see a window of
frames, and steps of time multiplied.

Rows are [batch, frames, hidden]. A part is `(rows, state, ...) -> (rows, state)`, with states as `modeling.streaming` has them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

from omnistage.modeling.kernels.structs import DOUBLE, INT, POINTER, GatedBlock, Matrix, matrix
from omnistage.modeling.linear import PanelLinear, PlainLinear, in_panels

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of the frames before, each [batch, kv_heads, window - 1, head_dim], the newest last."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowWeights:
    """Attention over the last `window` frames and a gated MLP. `qkv` joins three projections, `gate_up` [2 * inner, hidden] two.
    Vectors are [hidden]: a norm's weights before each half, and a scale per channel behind it."""

    norm: torch.Tensor
    qkv: PlainLinear
    output: PlainLinear
    scale: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: PlainLinear
    down: PlainLinear
    mlp_scale: torch.Tensor
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class MultiplierWeights:
    """`steps` makes some steps of each, [ratio * dim, dim]; behind it a ConvNeXt block, whose convolution per channel has `taps`
    [kernel, dim] and a `bias`, both in float32 at least. Vectors are [dim]."""

    steps: PlainLinear
    taps: torch.Tensor
    bias: torch.Tensor
    norm: torch.Tensor
    norm_bias: torch.Tensor
    up: PlainLinear
    down: PlainLinear
    gamma: torch.Tensor
    eps: float


class Places:
    """Where the frames of a chunk stand, for all layers. `first` int64 [batch, frames]: the first key that a frame sees, counted
    from the first of `held` before the chunk; it sees all up to its own. `rotations` [batch, frames, head_dim]: cosines, then
    sines."""

    def __init__(self, first: torch.Tensor, rotations: torch.Tensor, held: int) -> None:
        self.first, self.rotations = first, rotations
        self._held = held

    @cached_property
    def turns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, each [batch, 1, frames, head_dim / 2]."""
        cosine, sine = self.rotations[:, None].chunk(2, dim=-1)
        return cosine, sine

    @cached_property
    def mask(self) -> torch.Tensor:
        """[batch, 1, frames, held + frames]: True where a frame sees a key."""
        frames = self.first.shape[1]
        key, last = torch.arange(self._held + frames), torch.arange(self._held, self._held + frames)[:, None]
        return ((key >= self.first[..., None]) & (key <= last))[:, None]


WindowLayer = Callable[[torch.Tensor, KeysValues, Places], tuple[torch.Tensor, KeysValues]]
Multiplier = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""`multiplier(x, past)`: [batch, frames, dim] -> [batch, frames * ratio, dim]; the state is the convolution's past, [batch,
kernel - 1, dim]."""


class TorchFrames:
    """Computes with torch, in any dtype."""

    def window_layer(self, weights: WindowWeights) -> WindowLayer:
        return TorchWindowLayer(weights)

    def multiplier(self, weights: MultiplierWeights) -> Multiplier:
        return TorchMultiplier(weights)


class TorchWindowLayer:
    """`WindowWeights` with torch's operations."""

    def __init__(self, weights: WindowWeights) -> None:
        self._weights = weights

    def __call__(self, x: torch.Tensor, state: KeysValues, places: Places) -> tuple[torch.Tensor, KeysValues]:
        by, frames = self._weights, x.shape[1]
        normed = F.rms_norm(x, by.norm.shape, by.norm, by.eps)
        heads = [count * by.head_dim for count in (by.heads, by.kv_heads, by.kv_heads)]
        parts = torch.split(F.linear(normed, by.qkv.weight, by.qkv.bias), heads, dim=-1)
        q, k, v = (part.view(*x.shape[:2], -1, by.head_dim).transpose(1, 2) for part in parts)
        keys, values = torch.cat((state[0], _turned(k, places)), dim=2), torch.cat((state[1], v), dim=2)
        seen = F.scaled_dot_product_attention(_turned(q, places), keys, values, attn_mask=places.mask, enable_gqa=True)
        x = x + F.linear(seen.transpose(1, 2).flatten(2), by.output.weight, by.output.bias) * by.scale
        normed = F.rms_norm(x, by.mlp_norm.shape, by.mlp_norm, by.eps)
        gate, up = F.linear(normed, by.gate_up.weight).chunk(2, -1)
        made = F.linear(F.silu(gate) * up, by.down.weight)
        return x + made * by.mlp_scale, (keys[:, :, frames:].clone(), values[:, :, frames:].clone())


def _turned(heads: torch.Tensor, places: Places) -> torch.Tensor:
    """[batch, heads, frames, head_dim]; the halves of a head turn together."""
    cosine, sine = places.turns
    low, high = heads.chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


class TorchMultiplier:
    """`MultiplierWeights` with torch's operations."""

    def __init__(self, weights: MultiplierWeights) -> None:
        self._weights = weights

    def __call__(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        by = self._weights
        x = F.linear(x, by.steps.weight, by.steps.bias).view(x.shape[0], -1, len(by.gamma))
        held = torch.cat((past, x), dim=1)
        spread = self._depthwise(held.to(by.taps.dtype)).to(x.dtype)
        normed = F.layer_norm(spread, by.norm.shape, by.norm, by.norm_bias, by.eps)
        up = F.gelu(F.linear(normed, by.up.weight, by.up.bias))
        made = F.linear(up, by.down.weight, by.down.bias)
        return x + made * by.gamma, held[:, held.shape[1] - len(by.taps) + 1 :].clone()

    def _depthwise(self, held: torch.Tensor) -> torch.Tensor:
        """Few steps of many channels: seven products cost less than a convolution that knows groups."""
        taps, bias = self._weights.taps, self._weights.bias
        steps = held.shape[1] - len(taps) + 1
        made = torch.addcmul(bias, held[:, :steps], taps[0])
        for start, tap in enumerate(taps[1:], start=1):
            made.addcmul_(held[:, start : start + steps], tap)
        return made


class KernelFrames(TorchFrames):
    """Computes with a compiled library, in float32 on a CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lanes = int(library.vector_lanes())
        self._layer = library.window_layer_f32
        self._layer.argtypes = [*[POINTER] * 7, INT, INT, INT]
        self._multiply = library.multiply_f32
        self._multiply.argtypes = [*[POINTER] * 5, INT, INT, INT]
        self._layer.restype = self._multiply.restype = None

    def window_layer(self, weights: WindowWeights) -> WindowLayer:
        """Heads fill whole vectors, or torch computes."""
        if weights.norm.dtype is not torch.float32 or weights.head_dim % self._lanes:
            return super().window_layer(weights)
        return KernelWindowLayer(self._layer, weights)

    def multiplier(self, weights: MultiplierWeights) -> Multiplier:
        if weights.norm.dtype is not torch.float32:
            return super().multiplier(weights)
        return KernelMultiplier(self._multiply, weights)


class _Layer(ctypes.Structure):
    _fields_ = [
        ("qkv", Matrix),
        ("output", Matrix),
        ("mlp", GatedBlock),
        *((name, POINTER) for name in ("norm", "scale", "mlp_norm", "mlp_scale")),
        *((name, INT) for name in ("heads", "kv_heads", "head_dim", "held")),
        ("eps", DOUBLE),
    ]


class _Window(ctypes.Structure):
    _fields_ = [("rotations", POINTER), ("first", POINTER)]


class _Multiplier(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("steps", "up", "down")),
        *((name, POINTER) for name in ("taps", "bias", "norm", "norm_bias", "gamma")),
        ("kernel", INT),
        ("eps", DOUBLE),
    ]


class KernelWindowLayer:
    """A layer by one call of the library, its weights laid out as that reads them."""

    def __init__(self, function: Callable[..., None], weights: WindowWeights) -> None:
        bound = [_matrix(one) for one in (weights.qkv, weights.output, weights.gate_up, weights.down)]
        vectors = [weights.norm, weights.scale, weights.mlp_norm, weights.mlp_scale]
        shape = weights.heads, weights.kv_heads, weights.head_dim, weights.window - 1
        qkv, output, gate_up, down = (one for one, _ in bound)
        at = _addresses(vectors)
        self._bound = _Layer(qkv, output, GatedBlock(gate_up, down), *at, *shape, weights.eps)
        self._function, self._at = function, ctypes.byref(self._bound)
        self._kept = bound, vectors
        self._state = shape[1], shape[3], shape[2]

    def __call__(self, x: torch.Tensor, state: KeysValues, places: Places) -> tuple[torch.Tensor, KeysValues]:
        batch, frames, hidden = x.shape
        keys, values = (one.contiguous() for one in state)
        assert keys.shape == values.shape == (batch, *self._state) and hidden == self._bound.qkv.inner
        first, rotations = places.first, places.rotations
        assert first.shape == (batch, frames) and first.dtype is torch.int64 and first.is_contiguous()
        assert rotations.shape == (batch, frames, self._state[2]) and rotations.is_contiguous()
        assert rotations.dtype is x.dtype is torch.float32
        out, new_keys, new_values = x.clone(), torch.empty_like(keys), torch.empty_like(values)
        window = _Window(rotations.data_ptr(), first.data_ptr())
        pasts = [one.data_ptr() for one in (keys, values, new_keys, new_values)]
        at = self._at, ctypes.byref(window), out.data_ptr()
        self._function(*at, *pasts, batch, frames, torch.get_num_threads())
        return out, (new_keys, new_values)


class KernelMultiplier:
    """A multiplier by one call of the library."""

    def __init__(self, function: Callable[..., None], weights: MultiplierWeights) -> None:
        bound = [_matrix(one) for one in (weights.steps, weights.up, weights.down)]
        vectors = [weights.taps, weights.bias, weights.norm, weights.norm_bias, weights.gamma]
        matrices = [one for one, _ in bound]
        self._bound = _Multiplier(*matrices, *_addresses(vectors), len(weights.taps), weights.eps)
        self._function, self._at = function, ctypes.byref(self._bound)
        self._kept = bound, vectors
        self._dim, self._ratio = len(weights.gamma), weights.steps.weight.shape[0] // len(weights.gamma)

    def __call__(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, frames, dim = x.shape
        x, past = x.contiguous(), past.contiguous()
        assert x.dtype is past.dtype is torch.float32
        assert dim == self._bound.steps.inner and past.shape == (batch, self._bound.kernel - 1, self._dim)
        out, kept = x.new_empty(batch, frames * self._ratio, self._dim), torch.empty_like(past)
        places = [one.data_ptr() for one in (x, past, kept, out)]
        self._function(self._at, *places, batch, frames, torch.get_num_threads())
        return out, kept


def _matrix(linear: PlainLinear) -> tuple[Matrix, PanelLinear]:
    """With the tensors that it points to."""
    laid = in_panels(linear)
    bound = matrix(laid, torch.float32)
    assert bound is not None
    return bound, laid


def _addresses(vectors: list[torch.Tensor]) -> list[int]:
    assert all(vector.is_contiguous() and vector.dtype is torch.float32 for vector in vectors)
    return [vector.data_ptr() for vector in vectors]
