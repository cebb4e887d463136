"""A module of a library (diffusers, transformers) out of its folder, whole or not at all: both put numbers by lot where the weights
lack a tensor, say so in a log, and go on. Knows no model.
"""

from __future__ import annotations

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
    read_json(folder, CONFIG)
    for path in sorted(folder.glob("*.safetensors")):
        _check(path)
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


def _check(path: Path) -> None:
    """A file that is cut: the library does not say which it was."""
    try:
        with safe_open(str(path), framework="pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise BrokenCheckpointError(f"{path} cannot be read as safetensors: {error}") from None
