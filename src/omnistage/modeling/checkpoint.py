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
from omnistage.modeling.progress import loading_of
from omnistage.obs.process import let_go_of_pages, mapped_places

WEIGHTS_INDEX = f"{WEIGHTS}.index.json"


def weight_files(folder: Path, prefix: str = "", *, name: str = WEIGHTS) -> list[Path]:
    """The safetensors files of a folder that hold tensors whose names begin with `prefix`, all of which are there. A folder
    with one file, `name`, has no index that would say so: it is that file."""
    index = read_json_if_any(folder, f"{name}.index.json")
    placed: Mapping[str, str] = index.get("weight_map", {}) if index else {prefix: name}
    files = sorted({file for tensor, file in placed.items() if tensor.startswith(prefix)})
    for file in files:
        if not (folder / file).is_file():
            raise BrokenCheckpointError(f"{folder} has no {file}; looked for the model's weights")
    return [folder / file for file in files]


def _names(reader: Any) -> list[str]:
    return list(reader.keys())


class WeightsReader:
    """The tensors of a folder whose names begin with `prefix`, by what follows it; files without such tensors are not opened, and
    those with some stay mapped as long as it lives. Tells how much of these tensors has been read, or
    of all that is read together."""

    def __init__(self, folder: Path, dtype: torch.dtype, prefix: str = "", *, name: str = WEIGHTS) -> None:
        """`name`: what the file is called where there is one."""
        self._dtype = dtype
        self.folder = folder
        self._prefix = prefix
        self._readers: dict[str, Any] = {}
        self._mapped: list[range] = []
        total_nbytes = 0
        for path in weight_files(folder, prefix, name=name):
            try:
                reader: Any = safe_open(str(path), framework="pt")
            except (OSError, SafetensorError) as error:
                raise BrokenCheckpointError(f"{path} cannot be read as safetensors: {error}") from None
            self._mapped += mapped_places(path)
            for tensor in _names(reader):
                if tensor.startswith(prefix):
                    self._readers[tensor] = reader
                    total_nbytes += reader.get_tensor(tensor).nbytes  # mapped: only its header is read
        self._loading = loading_of(total_nbytes)

    def names(self, under: str) -> list[str]:
        """Names that begin so, in order."""
        names = sorted(name.removeprefix(self._prefix) for name in self._readers)
        return [name for name in names if name.startswith(under)]

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._readers

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor `name` in this reader's dtype; it must have `shape`."""
        stored = self._stored(name, shape)
        converted = stored.to(self._dtype)
        self._took(stored, copied=converted.data_ptr() != stored.data_ptr())
        return converted

    def read_any(self, name: str) -> torch.Tensor:
        """A tensor whose shape somebody else checks."""
        stored = self._found(name)
        converted = stored.to(self._dtype, copy=True)
        self._took(stored)
        return converted

    def read_part(self, name: str, shape: Sequence[int], index: int) -> torch.Tensor:
        """Entry `index` along the first axis of the tensor `name`, which must have `shape`."""
        stored = self._stored(name, shape)[index]
        converted = stored.to(self._dtype, copy=True)
        self._took(stored)
        return converted

    def mapped(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor `name` as it is stored, still in its file: only what is looked at is read, at every look."""
        return self._stored(name, shape)

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

    def _took(self, stored: torch.Tensor, *, copied: bool = True) -> None:
        """After it was copied: reading a mapped file begins with the copy, and what was copied need not lie in memory twice.
        One tensor that is used where it lies keeps the whole file mapped, and with it all pages that were ever read."""
        begin = stored.data_ptr()
        if copied and any(begin in place and begin + stored.nbytes - 1 in place for place in self._mapped):
            let_go_of_pages(begin, stored.nbytes)
        self._loading.took(stored.nbytes)

    def _stored(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        tensor = self._found(name)
        if tuple(tensor.shape) != tuple(shape):
            told = f"tensor {self._prefix + name} has shape {list(tensor.shape)}, {CONFIG} asks for {list(shape)}"
            raise BrokenCheckpointError(f"{self.folder}: {told}")
        return tensor

    def _found(self, name: str) -> torch.Tensor:
        name = self._prefix + name
        if name not in self._readers:
            raise BrokenCheckpointError(f"{self.folder}: the weights have no tensor {name}")
        tensor: torch.Tensor = self._readers[name].get_tensor(name)
        return tensor
