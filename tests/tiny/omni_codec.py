"""Tiny random codec decoders of Qwen3-Omni's architecture: a folder with nothing else in it, and transformers' module beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file

from omnistage.config.stage import GenerationStageConfig, OutputEdge
from omnistage.wire.messages import CLIENT
from tests.tiny.qwen3_omni import make_audible, redraw_codec


@dataclass(frozen=True, slots=True)
class CodecShape:
    """What the tests vary. `bias`: the attention's projections have one."""

    seed: int = 0
    groups: int = 4
    codebook: int = 64
    hidden: int = 32
    heads: int = 2
    kv_heads: int = 2
    layers: int = 2
    window: int = 72
    decoder_dim: int = 32
    ratios: tuple[int, ...] = (2, 2)
    rates: tuple[int, ...] = (8, 5, 4, 3)
    bias: bool = False

    def config(self) -> dict[str, Any]:
        """`code2wav_config`."""
        return {
            "codebook_size": self.codebook,
            "num_quantizers": self.groups,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "num_hidden_layers": self.layers,
            "intermediate_size": 2 * self.hidden,
            "sliding_window": self.window,
            "decoder_dim": self.decoder_dim,
            "upsampling_ratios": list(self.ratios),
            "upsample_rates": list(self.rates),
            "attention_bias": self.bias,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        }


CODECS = (
    CodecShape(),
    CodecShape(seed=1, groups=2, layers=3, heads=4, kv_heads=2, window=9, bias=True),
    CodecShape(seed=2, groups=8, layers=1, hidden=48, heads=3, kv_heads=3, decoder_dim=48),
    CodecShape(seed=3, groups=16, codebook=32, window=30, ratios=(2,), rates=(3, 2), decoder_dim=16),
)
SMALL = CodecShape(seed=4, groups=2, codebook=16, hidden=16, window=5, ratios=(2, 1), rates=(3, 2), decoder_dim=8)
"""Whose every border is near."""


def codec_module(shape: CodecShape) -> Any:
    """transformers' module, float32, with weights drawn so that none of them could be left out unnoticed."""
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as theirs

    module = theirs.Qwen3OmniMoeCode2Wav(theirs.Qwen3OmniMoeCode2WavConfig(**shape.config())).eval()
    generator = torch.Generator().manual_seed(shape.seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            redraw_codec(name, parameter, generator)
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    make_audible(module, generator)
    with torch.no_grad():
        module.decoder[-1].conv.bias.fill_(0.02)
    return module


def write_codec(folder: Path, shape: CodecShape, module: Any | None = None, dtype: torch.dtype = torch.float32) -> Path:
    module = module or codec_module(shape)
    tensors = {f"code2wav.{name}": tensor.to(dtype).contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"code2wav_config": shape.config()}))
    return folder


def random_frames(shape: CodecShape, count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """int32 [count, groups]"""
    return np.random.default_rng(seed).integers(0, shape.codebook, (count, shape.groups), np.int32)


def one_shot(module: Any, frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What transformers makes of all frames at once: float32 [samples]."""
    with torch.inference_mode():
        samples = module(torch.from_numpy(frames).long().T[None])
    return np.asarray(samples[0, 0].float().numpy())


def codec_stage(folder: Path, **changes: Any) -> GenerationStageConfig:
    config = GenerationStageConfig(
        stage_id=2,
        model_stage="code2wav",
        model_path=str(folder),
        process="code2wav",
        loader="omnistage.models.qwen3_omni.code2wav:load",
        bridge="omnistage.models.qwen3_omni.bridges:code2wav_bridge",
        input_sources=(1,),
        final_output_type="audio",
        outputs=(OutputEdge(target=CLIENT),),
    )
    return msgspec.structs.replace(config, **changes)
