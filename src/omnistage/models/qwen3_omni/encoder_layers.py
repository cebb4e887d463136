"""What the encoders of pictures and of sound have in common: layers in which a row sees all rows of its own segment, both ways.

A segment is a frame of a picture or a video, or a window of sound. Segments lie one behind another, without padding or masks: of
neighbours that are equally long attention makes one batch. Knows no media.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
import torch.nn.functional as F

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.checkpoint import WeightsReader

PART_ROWS = 2048
"""Rows that go through the layers at once, and through an MLP: enough for a matrix product, and a bound of memory."""

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
"""By the names of `settings.GELUS`."""

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, float32, each [rows, head_dim / 2]: of a head, values i and i + head_dim / 2 are turned by angle i."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`weight` [out, in], or that of a convolution; `bias` [out]."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Over the last axis: mean 0, variance 1, then scaled and moved."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class EncoderWeights:
    """The tensors whose names begin with `prefix`, by what follows it. Each is copied out of its file, so that none keeps
    the file's pages in memory. Raises BrokenCheckpointError."""

    def __init__(self, reader: WeightsReader, prefix: str) -> None:
        self._reader = reader
        self._prefix = prefix
        self._unread = set(reader.names(prefix))

    def read(self, *names: str, shape: Sequence[int]) -> torch.Tensor:
        """A tensor, or several of one shape, joined along the first axis."""
        whole = [self._prefix + name for name in names]
        self._unread.difference_update(whole)
        return self._reader.read_joined(dict.fromkeys(whole, shape))

    def affine(self, *names: str, shape: Sequence[int]) -> Affine:
        """`shape` is that of one weight, whose first axis has a bias."""
        weights, biases = ([f"{name}.{kind}" for name in names] for kind in ("weight", "bias"))
        return Affine(self.read(*weights, shape=shape), self.read(*biases, shape=shape[:1]))

    def norm(self, name: str, width: int, eps: float) -> Norm:
        made = self.affine(name, shape=[width])
        return Norm(made.weight, made.bias, eps)

    def expect_all_read(self) -> None:
        """Raises BrokenCheckpointError for what is left: the folder holds another encoder than its configuration says."""
        if self._unread:
            raise BrokenCheckpointError(
                f"{self._reader.folder}: the configuration has no place for tensor {min(self._unread)}"
                f" ({len(self._unread)} in all)"
            )


@dataclass(frozen=True, slots=True)
class LayerNames:
    """What the tensors of a layer are called. `qkv` is one matrix, or one for each of the three."""

    norm: str
    qkv: tuple[str, ...]
    out: str
    mlp_norm: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class LayerShape:
    """`width` of a row, `inner` of the MLP, `eps` of the norms; `activation` is one of ACTIVATIONS."""

    width: int
    inner: int
    heads: int
    eps: float
    activation: str


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """Norm, attention, norm, MLP; the second and the fourth are added to what went in."""

    heads: int
    norm: Norm
    qkv: Affine
    out: Affine
    mlp_norm: Norm
    up: Affine
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: Affine

    @classmethod
    def read(cls, weights: EncoderWeights, prefix: str, names: LayerNames, shape: LayerShape) -> EncoderLayer:
        """`prefix` stands before all names. Raises BrokenCheckpointError."""
        width, inner = shape.width, shape.inner
        joined = [prefix + name for name in names.qkv]
        return cls(
            heads=shape.heads,
            norm=weights.norm(prefix + names.norm, width, shape.eps),
            qkv=weights.affine(*joined, shape=[3 * width // len(joined), width]),
            out=weights.affine(prefix + names.out, shape=[width, width]),
            mlp_norm=weights.norm(prefix + names.mlp_norm, width, shape.eps),
            up=weights.affine(prefix + names.up, shape=[inner, width]),
            activation=ACTIVATIONS[shape.activation],
            down=weights.affine(prefix + names.down, shape=[width, inner]),
        )

    def __call__(self, x: torch.Tensor, lengths: Sequence[int], rotation: Rotation | None = None) -> torch.Tensor:
        """`x` [rows, width], the rows of segments of `lengths` -> [rows, width]."""
        heads = self.qkv(self.norm(x)).view(len(x), 3, self.heads, -1)
        q, k = (heads[:, :2] if rotation is None else _turned(heads[:, :2], rotation)).unbind(1)
        x = x + self.out(attend_within(q, k, heads[:, 2], lengths))
        for some in torch.split(x, PART_ROWS):  # one segment may be long, and the MLP is the widest place
            some += self.down(self.activation(self.up(self.mlp_norm(some))))
        return x


def _turned(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """`heads` [rows, any, heads, head_dim]; computed in float32."""
    cosine, sine = (plane[:, None, None] for plane in rotation)
    low, high = heads.float().chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1).to(heads.dtype)


def attend_within(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Each [rows, heads, head_dim], the rows of segments of `lengths` -> [rows, heads x head_dim]."""
    made, start = [], 0
    for length, equal in groupby(lengths):
        end = start + length * sum(1 for _ in equal)
        queries, keys, values = (x[start:end].view(-1, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        seen = F.scaled_dot_product_attention(queries, keys, values)
        made.append(seen.transpose(1, 2).reshape(end - start, -1))
        start = end
    return torch.cat(made) if len(made) > 1 else made[0]


def parts_of(lengths: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Which segments, and which rows, go through the layers together: as many segments as have PART_ROWS rows, or one."""
    first = start = rows = 0
    for place, length in enumerate(lengths):
        if rows and rows + length > PART_ROWS:
            yield slice(first, place), slice(start, start + rows)
            first, start, rows = place, start + rows, 0
        rows += length
    yield slice(first, len(lengths)), slice(start, start + rows)
