"""A module of a library (diffusers, transformers) out of its folder, whole or not at all: both put numbers by lot where the weights
lack a tensor, say so in a log, and go on. Knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import CONFIG, read_json
from omnistage.modeling.tensors import dtype_of

_MOST_CHARS = 300
"""Of what a library says of a fault."""


def read_module(kind: Any, folder: Path, dtype: str) -> Any:
    """One of class `kind`, which has `from_pretrained`, whose weights are all there; not for training. Reads safetensors alone, and
    nothing that is not in `folder`. Raises BrokenCheckpointError, which names the folder, and the file or the tensor."""
    settings = read_json(folder, CONFIG)
    tensors = sum(_count_tensors(path) for path in sorted(folder.glob("*.safetensors")))
    for name, layers in _layers(settings):
        if 0 < tensors < layers:
            accepted = f"at most {tensors}, as the weights have so many tensors"
            raise BrokenCheckpointError(f"{folder / CONFIG}: {name} is {layers}; accepted: {accepted}")
    try:
        module, told = kind.from_pretrained(
            folder, torch_dtype=dtype_of(dtype), use_safetensors=True, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # the libraries raise all kinds for what is wrong with a folder
        raise BrokenCheckpointError(f"{folder} cannot be read: {in_short(error)}") from error
    missing = sorted(map(str, told["missing_keys"]))
    if missing:
        raise BrokenCheckpointError(f"{folder}: the weights have no tensor {missing[0]}")
    return module.eval().requires_grad_(False)


def in_short(error: Exception) -> str:
    """What a library says of a fault, as one line."""
    return " ".join(str(error).split())[:_MOST_CHARS]


def _count_tensors(path: Path) -> int:
    """Of a file, which may be cut: the library does not say which it was."""
    try:
        with safe_open(str(path), framework="pt") as reader:
            return len(reader.keys())
    except (OSError, SafetensorError) as error:
        raise BrokenCheckpointError(f"{path} cannot be read as safetensors: {error}") from None


def _layers(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Counts of layers, which the library makes one by one before it looks at the weights: a wrong one takes days."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _layers(value)
        elif "layers" in name and type(value) is int:
            yield name, value
