"""Reading the safetensors of a model folder in Hugging Face layout. Every fault is one line that says what was looked for and
where (BrokenCheckpointError). Knows no model and imports no transformers; the JSON files are modeling.folder's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import CONFIG, WEIGHTS, read_json_if_any
from omnistage.modeling.progress import tell_bytes

WEIGHTS_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, all of which are there."""
    index = read_json_if_any(folder, WEIGHTS_INDEX)
    names = sorted(set(index.get("weight_map", {}).values())) if index else [WEIGHTS]
    for name in names:
        if not (folder / name).is_file():
            raise BrokenCheckpointError(f"{folder} has no {name}; looked for the model's weights")
    return [folder / name for name in names]


def _names(reader: Any) -> list[str]:
    return list(reader.keys())


class WeightsReader:
    """The tensors of a folder by name; the files stay mapped as long as it lives. Tells how much has been read."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._folder = folder
        self._readers: dict[str, Any] = {}
        self._read_nbytes = 0
        self._total_nbytes = 0
        for path in weight_files(folder):
            self._total_nbytes += path.stat().st_size
            try:
                reader = safe_open(str(path), framework="pt")
            except (OSError, SafetensorError) as error:
                raise BrokenCheckpointError(f"{path} cannot be read as safetensors: {error}") from None
            self._readers.update(dict.fromkeys(_names(reader), reader))

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor `name` in this reader's dtype; it must have `shape`."""
        stored = self._stored(name, shape)
        converted = stored.to(self._dtype)
        self._took(stored)
        return converted

    def read_joined(self, shapes: Mapping[str, Sequence[int]]) -> torch.Tensor:
        """Several tensors as one along the first axis, each converted straight into its place."""
        rows = sum(shape[0] for shape in shapes.values())
        rest = next(iter(shapes.values()))[1:]
        joined = torch.empty((rows, *rest), dtype=self._dtype)
        start = 0
        for name, shape in shapes.items():
            stored = self._stored(name, shape)
            joined[start : start + shape[0]] = stored
            start += shape[0]
            self._took(stored)
        return joined

    def _took(self, stored: torch.Tensor) -> None:
        """After it was copied: reading a mapped file begins with the copy."""
        self._read_nbytes += stored.nbytes
        tell_bytes(self._read_nbytes, self._total_nbytes)

    def _stored(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        if name not in self._readers:
            raise BrokenCheckpointError(f"{self._folder}: the weights have no tensor {name}")
        tensor: torch.Tensor = self._readers[name].get_tensor(name)
        if tuple(tensor.shape) != tuple(shape):
            found, wanted = list(tensor.shape), list(shape)
            raise BrokenCheckpointError(f"{self._folder}: tensor {name} has shape {found}, {CONFIG} asks for {wanted}")
        return tensor
