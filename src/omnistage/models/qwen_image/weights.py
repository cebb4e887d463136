"""Reads the weights of a Qwen-Image folder into the forms that its parts compute with. Raises BrokenCheckpointError naming the
tensor that is absent or of another shape. A folder whose numbers have another format than the stage's is converted as it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from omnistage.modeling.checkpoint import WeightsReader, weight_files
from omnistage.modeling.folder import DIFFUSERS_WEIGHTS, WEIGHTS
from omnistage.models.qwen_image.settings import (
    TEXT_ENCODER,
    TRANSFORMER,
    VAE,
    TextShape,
    TransformerShape,
    VaeShape,
    VisionShape,
)
from omnistage.models.qwen_image.text_encoder import LayerWeights, TextWeights
from omnistage.models.qwen_image.transformer import Affine, BlockWeights, StreamWeights, TransformerWeights
from omnistage.models.qwen_image.vae import Attention, Convolution, Grown, Half, Layer, Residual, Shrunk, Vae
from omnistage.models.qwen_image.vision import VisionLayer, VisionWeights

_TIME_WIDTH = 256
_STREAMS = {
    # joined queries, keys, values; output; norms of queries and keys; MLP
    "image": (("to_q", "to_k", "to_v"), "to_out.0", ("norm_q", "norm_k"), "img_mlp"),
    "text": (("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", ("norm_added_q", "norm_added_k"), "txt_mlp"),
}


def weights_nbytes(folder: Path) -> int:
    """Of all files with weights of the parts that are read."""
    names = {TEXT_ENCODER: WEIGHTS, TRANSFORMER: DIFFUSERS_WEIGHTS, VAE: DIFFUSERS_WEIGHTS}
    return sum(path.stat().st_size for part, name in names.items() for path in weight_files(folder / part, name=name))


def read_transformer(folder: Path, shape: TransformerShape, dtype: torch.dtype) -> TransformerWeights:
    read = _Reader(WeightsReader(folder / TRANSFORMER, dtype, name=DIFFUSERS_WEIGHTS))
    width = shape.width
    final = read.affine({"norm_out.linear": 2 * width}, width)
    final.bias[:width] += 1.0
    return TransformerWeights(
        text_norm=read.vector("txt_norm.weight", shape.text_size),
        text_in=read.affine({"txt_in": width}, shape.text_size),
        image_in=read.affine({"img_in": width}, shape.channels),
        time_in=read.affine({"time_text_embed.timestep_embedder.linear_1": width}, _TIME_WIDTH),
        time_out=read.affine({"time_text_embed.timestep_embedder.linear_2": width}, width),
        blocks=[_block(read, f"transformer_blocks.{index}.", shape) for index in range(shape.num_layers)],
        final_modulation=final,
        image_out=read.affine({"proj_out": shape.out_channels}, width),
    )


def _block(read: _Reader, prefix: str, shape: TransformerShape) -> BlockWeights:
    width = shape.width
    modulation = read.affine({f"{prefix}img_mod.1": 6 * width, f"{prefix}txt_mod.1": 6 * width}, width)
    modulation.bias.view(4, 3, width)[:, 1] += 1.0  # shift, scale, gate, four times over
    norms = [f"{prefix}attn.{name}.weight" for stream in ("text", "image") for name in _STREAMS[stream][2]]
    return BlockWeights(
        modulation=modulation,
        image=_stream(read, prefix, "image", width),
        text=_stream(read, prefix, "text", width),
        head_norms=torch.stack([read.vector(name, shape.head_dim) for name in norms]).view(2, 2, 1, -1).float(),
    )


def _stream(read: _Reader, prefix: str, stream: str, width: int) -> StreamWeights:
    joined, output, _, mlp = _STREAMS[stream]
    return StreamWeights(
        qkv=read.affine({f"{prefix}attn.{name}": width for name in joined}, width),
        output=read.affine({f"{prefix}attn.{output}": width}, width),
        up=read.affine({f"{prefix}{mlp}.net.0.proj": 4 * width}, width),
        down=read.affine({f"{prefix}{mlp}.net.2": width}, 4 * width),
    )


def read_text_encoder(folder: Path, shape: TextShape, dtype: torch.dtype) -> TextWeights:
    """Of folders written by any transformers: names of the decoder's tensors begin with `model.`, or `model.language_model.`."""
    files = WeightsReader(folder / TEXT_ENCODER, dtype)
    read = _Reader(files)
    body = "model.language_model." if files.names("model.language_model.") else "model."
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    layers = []
    for index in range(shape.num_layers):
        prefix = f"{body}layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        qkv = read.affine(
            {f"{attention}q_proj": queries, f"{attention}k_proj": keys, f"{attention}v_proj": keys}, hidden
        )
        layers.append(
            LayerWeights(
                input_norm=read.vector(f"{prefix}input_layernorm.weight", hidden),
                qkv=qkv.weight,
                qkv_bias=qkv.bias,
                output=read.matrix({f"{attention}o_proj": hidden}, queries),
                mlp_norm=read.vector(f"{prefix}post_attention_layernorm.weight", hidden),
                gate_up=read.matrix({f"{mlp}gate_proj": inner, f"{mlp}up_proj": inner}, hidden),
                down=read.matrix({f"{mlp}down_proj": hidden}, inner),
            )
        )
    embedding = read.matrix({f"{body}embed_tokens": shape.vocab_size}, hidden)
    return TextWeights(embedding, layers, read.vector(f"{body}norm.weight", hidden))


def read_vision(folder: Path, shape: VisionShape, dtype: torch.dtype) -> VisionWeights:
    """Names begin with `visual.`, or `model.visual.`."""
    files = WeightsReader(folder / TEXT_ENCODER, dtype)
    read = _Reader(files)
    body = "model.visual." if files.names("model.visual.") else "visual."
    width, square = shape.width, shape.width * shape.merge**2
    layers = []
    for index in range(shape.num_layers):
        prefix = f"{body}blocks.{index}."
        layers.append(
            VisionLayer(
                first_norm=read.vector(f"{prefix}norm1.weight", width),
                qkv=read.affine({f"{prefix}attn.qkv": 3 * width}, width),
                output=read.affine({f"{prefix}attn.proj": width}, width),
                second_norm=read.vector(f"{prefix}norm2.weight", width),
                gate_up=read.affine(
                    dict.fromkeys((f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"), shape.inner), width
                ),
                down=read.affine({f"{prefix}mlp.down_proj": width}, shape.inner),
            )
        )
    return VisionWeights(
        embedding=files.read_joined({f"{body}patch_embed.proj.weight": [width, *shape.patch_shape]}).flatten(1),
        layers=layers,
        merge_norm=read.vector(f"{body}merger.ln_q.weight", width),
        merge_up=read.affine({f"{body}merger.mlp.0": square}, square),
        merge_down=read.affine({f"{body}merger.mlp.2": shape.out_width}, square),
    )


def read_vae(folder: Path, shape: VaeShape, dtype: torch.dtype, *, reads_pictures: bool) -> Vae:
    read = _Reader(WeightsReader(folder / VAE, dtype, name=DIFFUSERS_WEIGHTS))
    latent = shape.latent_channels
    mean, std = (torch.tensor(values, dtype=dtype)[:, None, None] for values in (shape.mean, shape.std))
    return Vae(
        encoder=_encoder(read, shape) if reads_pictures else None,
        after_encoder=read.convolution("quant_conv", 2 * latent, 2 * latent, 1) if reads_pictures else None,
        before_decoder=read.convolution("post_quant_conv", latent, latent, 1),
        decoder=_decoder(read, shape),
        mean=mean,
        std=std,
    )


def _encoder(read: _Reader, shape: VaeShape) -> Half:
    layers: list[Layer] = []
    channels = shape.base

    def name() -> str:
        return f"encoder.down_blocks.{len(layers)}"

    for level, out in enumerate(shape.channels):
        for _ in range(shape.blocks):
            layers.append(_residual(read, name(), channels, out))
            channels = out
        if level < len(shape.channels) - 1:
            layers.append(Shrunk(read.convolution(f"{name()}.resample.1", channels, channels, 3)))
    return Half(
        first=read.convolution("encoder.conv_in", 3, shape.base, 3),
        layers=[*layers, *_middle(read, "encoder.mid_block", channels)],
        norm=read.gamma("encoder.norm_out", channels),
        last=read.convolution("encoder.conv_out", channels, 2 * shape.latent_channels, 3),
    )


def _decoder(read: _Reader, shape: VaeShape) -> Half:
    """What grows a picture halves its channels too."""
    channels = shape.channels[-1]
    layers: list[Layer] = [*_middle(read, "decoder.mid_block", channels)]
    for level, out in enumerate(reversed(shape.channels)):
        prefix = f"decoder.up_blocks.{level}"
        for block in range(shape.blocks + 1):
            layers.append(_residual(read, f"{prefix}.resnets.{block}", channels, out))
            channels = out
        if level < len(shape.channels) - 1:
            layers.append(Grown(read.convolution(f"{prefix}.upsamplers.0.resample.1", channels, channels // 2, 3)))
            channels //= 2
    return Half(
        first=read.convolution("decoder.conv_in", shape.latent_channels, shape.channels[-1], 3),
        layers=layers,
        norm=read.gamma("decoder.norm_out", channels),
        last=read.convolution("decoder.conv_out", channels, 3, 3),
    )


def _middle(read: _Reader, prefix: str, channels: int) -> tuple[Layer, Layer, Layer]:
    attention = f"{prefix}.attentions.0"
    return (
        _residual(read, f"{prefix}.resnets.0", channels, channels),
        Attention(
            norm=read.gamma(f"{attention}.norm", channels),
            qkv=read.convolution(f"{attention}.to_qkv", channels, 3 * channels, 1),
            output=read.convolution(f"{attention}.proj", channels, channels, 1),
        ),
        _residual(read, f"{prefix}.resnets.1", channels, channels),
    )


def _residual(read: _Reader, prefix: str, ins: int, outs: int) -> Residual:
    return Residual(
        first_norm=read.gamma(f"{prefix}.norm1", ins),
        first=read.convolution(f"{prefix}.conv1", ins, outs, 3),
        second_norm=read.gamma(f"{prefix}.norm2", outs),
        second=read.convolution(f"{prefix}.conv2", outs, outs, 3),
        shortcut=None if ins == outs else read.convolution(f"{prefix}.conv_shortcut", ins, outs, 1),
    )


class _Reader:
    """Tensors by what they are for."""

    def __init__(self, files: WeightsReader) -> None:
        self._files = files

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self._files.read_joined({name: [size]})

    def matrix(self, outs: Mapping[str, int], ins: int) -> torch.Tensor:
        return self._files.read_joined({f"{name}.weight": [rows, ins] for name, rows in outs.items()})

    def affine(self, outs: Mapping[str, int], ins: int) -> Affine:
        """The layers `outs` (name -> rows), joined."""
        return Affine(
            self.matrix(outs, ins), self._files.read_joined({f"{name}.bias": [rows] for name, rows in outs.items()})
        )

    def gamma(self, name: str, channels: int) -> torch.Tensor:
        """Of a norm over the channels of a picture, [channels] whatever it is stretched to."""
        stored = self._files.read_any(f"{name}.gamma")
        if stored.numel() == channels:
            return stored.flatten()
        return self._files.read(f"{name}.gamma", [channels])  # says what is wrong with its shape

    def convolution(self, name: str, ins: int, outs: int, side: int) -> Convolution:
        """The last slice in time of a kernel that has time; see vae.py."""
        weight = self._files.read_any(f"{name}.weight")
        if weight.dim() == 5:
            weight = weight[:, :, -1]
        if tuple(weight.shape) != (outs, ins, side, side):
            self._files.read(f"{name}.weight", [outs, ins, side, side])
        bias = self._files.read_joined({f"{name}.bias": [outs]})
        return Convolution(weight.contiguous(memory_format=torch.channels_last), bias)
