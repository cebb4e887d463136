"""transformers' encoders with random weights, and ours with the same, by way of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.folder import WEIGHTS
from omnistage.models.qwen3_omni.encoder_layers import EncoderWeights


@torch.no_grad()
def redrawn(module: Any) -> Any:
    """With weights that keep values at about 1, and biases and norms that can be told from none."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            spread = 1.0 if "pos_embed" in name else parameter[0].numel() ** -0.5
            parameter.normal_(0, spread, generator=generator)
        else:
            parameter.normal_(
                float("norm" in name or "ln_" in name) * name.endswith("weight"), 0.2, generator=generator
            )
    return module.eval()


def saved(module: Any, folder: Path, **changes: torch.Tensor | None) -> Path:
    """The folder with the module's weights, some of them changed, added, or (None) left out."""
    tensors = {**module.state_dict(), **{name.replace("__", "."): changed for name, changed in changes.items()}}
    kept = {f"tower.{name}": tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS)
    return folder


def weights_of(folder: Path, dtype: torch.dtype = torch.float32) -> EncoderWeights:
    return EncoderWeights(WeightsReader(folder, dtype), "tower.")


def expect_as_near(found: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """`found` in bfloat16 is about as far from what float32 makes as what transformers makes in bfloat16."""
    assert found.dtype is torch.bfloat16
    far, allowed = ((one.float() - exact).pow(2).mean().sqrt() for one in (found, theirs))
    assert far <= 1.25 * allowed, (float(far), float(allowed))
