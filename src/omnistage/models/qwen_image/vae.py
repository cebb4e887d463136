"""The autoencoder of Qwen-Image, for pictures: a video's autoencoder whose clip is one frame long.

Its convolutions look at a frame and those before it. Before the first frame there is nothing, so of every kernel in time only the
last slice meets anything, and what halves or doubles time is passed by: all that remains are convolutions over a picture, which
are what is read from the weights here. A third of the work, and the same numbers. Activations [R, channels, height, width] lie
with their channels together. Knows no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

_TINY = 1e-24  # only where all channels are 0, which stay so


@dataclass(frozen=True, slots=True)
class Convolution:
    """`weight` [out, in, side, side], `bias` [out]."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return F.conv2d(picture, self.weight, self.bias, padding=self.weight.shape[-1] // 2)


@dataclass(frozen=True, slots=True)
class Residual:
    first_norm: torch.Tensor
    first: Convolution
    second_norm: torch.Tensor
    second: Convolution
    shortcut: Convolution | None

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        inner = self.first(F.silu(_normed(picture, self.first_norm)))
        inner = self.second(F.silu(_normed(inner, self.second_norm)))
        return inner + (picture if self.shortcut is None else self.shortcut(picture))


@dataclass(frozen=True, slots=True)
class Attention:
    """Every place reads all places; one head. `qkv` and `output` have kernels of one place."""

    norm: torch.Tensor
    qkv: Convolution
    output: Convolution

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        rows, channels, tall, wide = picture.shape
        joined = self.qkv(_normed(picture, self.norm)).flatten(2).transpose(1, 2)[:, None]  # [R, 1, places, 3 channels]
        query, key, value = joined.chunk(3, dim=-1)
        found = F.scaled_dot_product_attention(query, key, value)
        return picture + self.output(found[:, 0].transpose(1, 2).reshape(rows, channels, tall, wide))


@dataclass(frozen=True, slots=True)
class Grown:
    """Twice the sides."""

    convolution: Convolution

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        return self.convolution(F.interpolate(picture, scale_factor=2.0, mode="nearest-exact"))


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Half the sides."""

    convolution: Convolution

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        padded = F.pad(picture, (0, 1, 0, 1))
        return F.conv2d(padded, self.convolution.weight, self.convolution.bias, stride=2)


Layer = Convolution | Residual | Attention | Grown | Shrunk


@dataclass(frozen=True, slots=True)
class Half:
    """The encoder or the decoder: `layers` between two convolutions."""

    first: Convolution
    layers: Sequence[Layer]
    norm: torch.Tensor
    last: Convolution

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        picture = self.first(picture)
        for layer in self.layers:
            picture = layer(picture)
        return self.last(F.silu(_normed(picture, self.norm)))


@dataclass(frozen=True, slots=True)
class Vae:
    """`after_encoder` and `before_decoder` are convolutions of one place. `mean` and `std` [channels, 1, 1] of latents."""

    encoder: Half | None
    after_encoder: Convolution | None
    before_decoder: Convolution
    decoder: Half
    mean: torch.Tensor
    std: torch.Tensor

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Normalised latents [R, channels, h, w] -> pictures [R, 3, height, width] in [-1, 1]."""
        plain = latents.to(self.std.dtype) * self.std + self.mean
        plain = plain.contiguous(memory_format=torch.channels_last)
        return self.decoder(self.before_decoder(plain)).clamp(-1.0, 1.0)

    def encode(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures in [-1, 1] -> normalised latents: the middle of what the encoder finds likely."""
        assert self.encoder is not None and self.after_encoder is not None, (
            "a model that reads no pictures has no encoder"
        )
        pictures = pictures.to(self.std.dtype).contiguous(memory_format=torch.channels_last)
        found = self.after_encoder(self.encoder(pictures))
        return (found.chunk(2, dim=1)[0] - self.mean) / self.std


def _normed(picture: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """The channels of a place are scaled to a mean square of 1, then weighed by `gamma` [channels]."""
    places = picture.permute(0, 2, 3, 1)
    normed = F.rms_norm(places.float(), gamma.shape, eps=_TINY).to(picture.dtype) * gamma
    return normed.permute(0, 3, 1, 2)
