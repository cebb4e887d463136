"""The denoising transformer of Qwen-Image: blocks that attend over the tokens of the text and of the pictures together.

A row is one branch of one picture: `hidden` [tokens of the picture, then of its references] and `text`, padded to the longest of
the batch. Every row has its own timestep, by which a block shifts, scales and gates both streams (AdaLN; Peebles and Xie, 2023).
Linear layers that read the same input are joined, what a timestep does to a block is one product, and the text of the last block,
which nobody reads, is not computed. Weights are [out, in] and never written to. Knows no requests, solvers or files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from omnistage.models.qwen_image.rotary import rotations
from omnistage.models.qwen_image.settings import Grid, TransformerShape

_TIME_WIDTH = 256
_TIME_SCALE = 1000.0
_LONGEST_PERIOD = 10000.0
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Affine:
    """`weight` [out, in], `bias` [out]."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class StreamWeights:
    """What a block does to the text or to the pictures: `qkv` [3 d, d], `output` [d, d], `up` [4 d, d], `down` [d, 4 d]."""

    qkv: Affine
    output: Affine
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """`modulation` [12 d, d]: shift, scale and gate of attention, then of the MLP; of the pictures, then of the text. One is added
    to what makes scales. `head_norms` [2, 2, 1, head]: of text and pictures, of queries and keys."""

    modulation: Affine
    image: StreamWeights
    text: StreamWeights
    head_norms: torch.Tensor


@dataclass(frozen=True, slots=True)
class TransformerWeights:
    """`final_modulation` [2 d, d]: scale (with one added), then shift."""

    text_norm: torch.Tensor
    text_in: Affine
    image_in: Affine
    time_in: Affine
    time_out: Affine
    blocks: Sequence[BlockWeights]
    final_modulation: Affine
    image_out: Affine


@dataclass(frozen=True, slots=True)
class RowInput:
    """`latents` [tokens, channels] of the picture and `references` [more tokens, channels], which lie on `grids`, the picture's
    first; `text` [length, d] as `embed_text` made it; `timestep` in [0, 1]."""

    latents: torch.Tensor
    references: torch.Tensor | None
    grids: tuple[Grid, ...]
    text: torch.Tensor
    timestep: float


@dataclass(frozen=True, slots=True)
class Scene:
    """What all blocks read of a batch of R rows with S tokens of text and pictures. `time` [R, d], after its activation. `turns`
    [1 or R, S, 1, 1, head / 2]: complex. `mask` [R, 1, 1, S] is minus infinity at padding; None where there is none. `streams`
    [S]: 0 text, 1 pictures. `targets`: tokens of each picture, in front of its references."""

    time: torch.Tensor
    turns: torch.Tensor
    mask: torch.Tensor | None
    streams: torch.Tensor
    targets: int

    def select(self, rows: torch.Tensor) -> Scene:
        return replace(
            self,
            time=self.time[rows],
            turns=self.turns[rows] if len(self.turns) > 1 else self.turns,
            mask=None if self.mask is None else self.mask[rows],
        )


@dataclass(frozen=True, slots=True)
class ImageFlow:
    """A `modeling.diffusion.Flow`."""

    hidden: torch.Tensor
    text: torch.Tensor
    scene: Scene

    def with_hidden(self, hidden: torch.Tensor) -> ImageFlow:
        return replace(self, hidden=hidden)

    def select(self, rows: Sequence[int]) -> ImageFlow:
        picked = torch.tensor(rows, device=self.hidden.device)
        return ImageFlow(self.hidden[picked], self.text[picked], self.scene.select(picked))


class Transformer:
    """The forward pass in parts; see `modeling.diffusion.BlockedModel`."""

    def __init__(self, shape: TransformerShape, weights: TransformerWeights) -> None:
        self.shape = shape
        self._weights = weights
        self._frequencies = torch.exp(
            -math.log(_LONGEST_PERIOD) * torch.arange(_TIME_WIDTH // 2, dtype=torch.float32) / (_TIME_WIDTH // 2)
        )
        # Of references, where a model says that they are not noisy whatever the picture is: see `zero_cond_t`.
        self._still = self._embed_times([0.0]) if shape.still_references else None

    def embed_text(self, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` [length, text size] of the text encoder -> [length, d]: the same at all steps, so it is made once."""
        weights = self._weights
        normed = F.rms_norm(hidden.float(), hidden.shape[-1:], eps=_EPS).to(hidden.dtype) * weights.text_norm
        return weights.text_in(normed)

    def open(self, rows: Sequence[RowInput]) -> ImageFlow:
        weights = self._weights
        pictures = torch.stack([row.latents for row in rows])
        targets = pictures.shape[1]
        if rows[0].references is not None:
            pictures = torch.cat([pictures, torch.stack([_held(row.references) for row in rows])], dim=1)
        hidden = weights.image_in(pictures.to(weights.image_in.weight.dtype))
        lengths = [len(row.text) for row in rows]
        text = torch.nn.utils.rnn.pad_sequence([row.text for row in rows], batch_first=True)
        scene = Scene(
            time=self._embed_times([row.timestep for row in rows]),
            turns=self._turns([row.grids for row in rows], text.shape[1]),
            mask=_padding_mask(lengths, hidden),
            streams=(torch.arange(text.shape[1] + hidden.shape[1], device=hidden.device) >= text.shape[1]).long(),
            targets=targets,
        )
        return ImageFlow(hidden, text, scene)

    def signal(self, flow: ImageFlow) -> torch.Tensor:
        """See `BlockedModel.signal`."""
        shift, scale, *_ = self._modulations(0, flow)
        return _modulated(flow.hidden, shift, scale)

    def block(self, index: int, flow: ImageFlow) -> ImageFlow:
        weights = self._weights.blocks[index]
        is_last = index == self.shape.num_layers - 1
        modulations = self._modulations(index, flow)
        image, text = modulations[:6], modulations[6:]
        seen, read = self._attend(weights, flow, image, text, text_too=not is_last)
        hidden = _fed_forward(torch.addcmul(flow.hidden, image[2], seen), weights.image, image[3:])
        if read is None:
            return replace(flow, hidden=hidden)
        return ImageFlow(
            hidden, _fed_forward(torch.addcmul(flow.text, text[2], read), weights.text, text[3:]), flow.scene
        )

    def close(self, flow: ImageFlow) -> list[torch.Tensor]:
        """Predictions [tokens of the picture, channels], float32."""
        made = self._weights.final_modulation(flow.scene.time)
        scale, shift = made.view(len(made), 2, 1, -1).unbind(1)
        hidden = _modulated(flow.hidden[:, : flow.scene.targets], shift, scale)
        return list(self._weights.image_out(hidden).float().unbind(0))

    def _attend(
        self,
        weights: BlockWeights,
        flow: ImageFlow,
        image: Sequence[torch.Tensor],
        text: Sequence[torch.Tensor],
        *,
        text_too: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the pictures [R, n, d] and, `text_too`, the text [R, t, d] take from both."""
        scene, heads = flow.scene, self.shape.num_heads
        read = weights.text.qkv(_modulated(flow.text, text[0], text[1]))
        seen = weights.image.qkv(_modulated(flow.hidden, image[0], image[1]))
        joint = torch.cat([read, seen], dim=1)
        joint = joint.view(*joint.shape[:2], 3, heads, -1)  # [R, S, 3, heads, head]
        turned = _turned(joint[:, :, :2], weights.head_norms[scene.streams], scene.turns)
        query, key = turned.transpose(1, 3).unbind(2)  # [R, heads, S, head]
        found = F.scaled_dot_product_attention(query, key, joint[:, :, 2].transpose(1, 2), attn_mask=scene.mask)
        found = found.transpose(1, 2).flatten(2)
        length = flow.text.shape[1]
        seen = weights.image.output(found[:, length:].contiguous())  # as it is, a product for each row
        return seen, weights.text.output(found[:, :length].contiguous()) if text_too else None

    def _modulations(self, index: int, flow: ImageFlow) -> list[torch.Tensor]:
        """Twelve of [R, 1, d], or [R, n, d] of pictures whose references stand still; see `BlockWeights.modulation`."""
        layer = self._weights.blocks[index].modulation
        made = list(layer(flow.scene.time).view(len(flow.hidden), 12, 1, -1).unbind(1))
        more = flow.hidden.shape[1] - flow.scene.targets
        if self._still is None or not more:
            return made
        still = layer(self._still).view(1, 12, 1, -1).unbind(1)
        rows, targets = len(flow.hidden), flow.scene.targets
        both = [
            torch.cat([moving.expand(rows, targets, -1), rest.expand(rows, more, -1)], dim=1)
            for moving, rest in zip(made[:6], still[:6], strict=True)
        ]
        return [*both, *made[6:]]

    def _embed_times(self, timesteps: Sequence[float]) -> torch.Tensor:
        """[R] in [0, 1] -> [R, d], activated: all that blocks read of it is a product of that."""
        weights = self._weights
        times = torch.tensor(timesteps, dtype=torch.float32)
        angles = _TIME_SCALE * (times[:, None] * self._frequencies)
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1).to(weights.time_in.weight)
        return F.silu(weights.time_out(F.silu(weights.time_in(waves))))

    def _turns(self, grids: Sequence[tuple[Grid, ...]], length: int) -> torch.Tensor:
        """See `Scene.turns`. One table serves rows whose pictures are alike."""
        distinct = dict.fromkeys(grids)
        tables = {one: rotations(self.shape.rope_axes, one, length) for one in distinct}
        made = torch.stack([tables[one] for one in (grids if len(distinct) > 1 else distinct)])
        return made[:, :, None, None].to(self._weights.text_norm.device)


def _held(references: torch.Tensor | None) -> torch.Tensor:
    assert references is not None, "rows of a batch agree in what they have"
    return references


def _padding_mask(lengths: Sequence[int], hidden: torch.Tensor) -> torch.Tensor | None:
    """[R, 1, 1, S], added to what queries and keys make; None where no text is padded."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    mask = hidden.new_zeros(len(lengths), 1, 1, longest + hidden.shape[1])
    for row, length in enumerate(lengths):
        mask[row, :, :, length:longest] = -math.inf
    return mask


def _modulated(rows: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(shift, F.layer_norm(rows, rows.shape[-1:], eps=_EPS), scale)


def _turned(joint: torch.Tensor, norms: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Queries and keys [R, S, 2, heads, head], normed by head, weighed by `norms` [S, 2, 1, head] and turned in the planes of
    neighbouring pairs."""
    rows = joint.float()
    size = torch.rsqrt(rows.square().mean(-1, keepdim=True) + _EPS)
    weighed = rows * size * norms
    planes = torch.view_as_complex(weighed.view(*weighed.shape[:-1], -1, 2))
    return torch.view_as_real(planes * turns).flatten(-2).to(joint.dtype)


def _fed_forward(rows: torch.Tensor, weights: StreamWeights, modulation: Sequence[torch.Tensor]) -> torch.Tensor:
    shift, scale, gate = modulation
    inner = F.gelu(weights.up(_modulated(rows, shift, scale)), approximate="tanh")
    return torch.addcmul(rows, gate, weights.down(inner))
