"""What a tensor is, apart from its bytes. Costs no library: requests and configuration speak of tensors too."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

DTYPE_NBYTES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


class TensorSpec(msgspec.Struct, frozen=True):
    """`dtype` is a key of DTYPE_NBYTES; the layout is C-contiguous, little-endian."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_NBYTES[self.dtype]
