"""The compiled kernels, bound through ctypes: the same operations as `fallback`, on float32 and bfloat16 tensors of a CPU.

Tensors go over as pointers. What a kernel cannot check (contiguity, a dtype, a width that fills whole vectors) is checked here
or falls to torch: a kernel that is called wrongly would read other memory instead of failing.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omnistage.modeling.attention import StepMeta
from omnistage.modeling.drawing import DRAW_SETTINGS, NUCLEUS_CANDIDATES
from omnistage.modeling.kernels.fallback import HeadNorms, TorchOps

_INT, _POINTER, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}
MAX_BLOCK_SIZE = 256
"""The scores of one block lie on a kernel's stack."""
FEW_ROWS = {torch.float32: 48, torch.bfloat16: 4096}
"""Up to here our own linear layer is faster than torch's, which has no bfloat16 of its own on many processors."""


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("heads", "kv_heads", "head_dim", "block_size")),
        *((name, _POINTER) for name in ("keys", "values", "query_norm", "key_norm")),
        ("eps", _DOUBLE),
        ("scale", _DOUBLE),
        ("window", _INT),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        ("rows", _INT),
        ("slot", _POINTER),
        ("block_table", _POINTER),
        ("table_stride", _INT),
        ("table_row", _POINTER),
        ("kv_len", _POINTER),
        ("rotation", _POINTER),
        ("threads", _INT),
    ]


class _Heads(ctypes.Structure):
    _fields_ = [("data", _POINTER), ("row_stride", _INT), ("head_stride", _INT)]


class KernelOps(TorchOps):
    """One loaded library. Raises OSError where it cannot be loaded."""

    name = "kernels"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._lanes = int(self._library.vector_lanes())
        self._attend = self._pair("attend", [_POINTER] * 6)
        self._add_rms_norm = self._pair("add_rms_norm", [*[_POINTER] * 3, _DOUBLE, _POINTER, _INT, _INT])
        self._silu_mul = self._pair("silu_mul", [_POINTER, _POINTER, _INT, _INT, _INT])
        self._linear = self._pair("linear", [*[_POINTER] * 4, _INT, _INT, _INT, _INT])
        self._draw = self._function("draw_tokens", [_POINTER] * 3 + [_INT] * 4)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        meta: StepMeta,
        *,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        if not self._can_attend(keys) or any(tensor.stride(2) != 1 for tensor in (q, k, v)):
            return super().attend(q, k, v, keys, values, meta, scale=scale, window=window)
        out = torch.empty(q.shape, dtype=q.dtype)
        layer = self._layer(q.shape[1], keys, values, None, scale, window)
        self._attend[q.dtype](layer, _step(meta, None), *map(_heads, (q, k, v)), out.data_ptr())
        return out

    def attend_joined(
        self,
        qkv: torch.Tensor,
        norms: HeadNorms | None,
        rotation: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        meta: StepMeta,
        *,
        heads: int,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        if not self._can_attend(keys) or not qkv.is_contiguous():
            return super().attend_joined(
                qkv, norms, rotation, keys, values, meta, heads=heads, scale=scale, window=window
            )
        kv_heads, dim = keys.shape[1], keys.shape[3]
        out = torch.empty((len(qkv), heads * dim), dtype=qkv.dtype)
        layer = self._layer(heads, keys, values, norms, scale, window)
        start, width = qkv.data_ptr(), qkv.stride(0)
        offsets = (0, heads * dim, (heads + kv_heads) * dim)
        parts = [ctypes.byref(_Heads(start + offset * qkv.itemsize, width, dim)) for offset in offsets]
        self._attend[qkv.dtype](layer, _step(meta, rotation), *parts, out.data_ptr())
        return out

    def add_rms_norm(
        self, rows: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        if not self._serves(rows, residual, weight):
            return super().add_rms_norm(rows, residual, weight, eps)
        out = torch.empty_like(rows)
        added = None if residual is None else residual.data_ptr()
        function = self._add_rms_norm[rows.dtype]
        function(rows.data_ptr(), added, weight.data_ptr(), eps, out.data_ptr(), len(rows), rows.shape[1])
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if not self._serves(gate_up):
            return super().silu_mul(gate_up)
        count, inner = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty((count, inner), dtype=gate_up.dtype)
        function = self._silu_mul[gate_up.dtype]
        function(gate_up.data_ptr(), out.data_ptr(), count, inner, torch.get_num_threads())
        return out

    def linear(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        outer, inner = weight.shape
        is_whole = inner % self._lanes == 0 and outer % self._lanes == 0
        if not (is_whole and self._serves(rows, weight, bias) and len(rows) <= FEW_ROWS[rows.dtype]):
            return super().linear(rows, weight, bias)
        out = torch.empty((len(rows), outer), dtype=rows.dtype)
        added = None if bias is None else bias.data_ptr()
        function, threads = self._linear[rows.dtype], torch.get_num_threads()
        function(rows.data_ptr(), weight.data_ptr(), added, out.data_ptr(), len(rows), inner, outer, threads)
        return out

    def draw(self, logits: torch.Tensor, settings: npt.NDArray[np.void]) -> list[int]:
        if logits.dtype is not torch.float32 or not self._serves(logits):
            return super().draw(logits, settings)
        assert settings.dtype == DRAW_SETTINGS
        tokens = np.empty(len(logits), np.int64)
        pointers = (logits.data_ptr(), settings.ctypes.data, tokens.ctypes.data)
        self._draw(*pointers, *logits.shape, NUCLEUS_CANDIDATES, torch.get_num_threads())
        found: list[int] = tokens.tolist()
        return found

    # ---- bindings ----

    def _function(self, name: str, arguments: list[Any]) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = arguments, None
        return function

    def _pair(self, name: str, arguments: list[Any]) -> dict[torch.dtype, Any]:
        return {dtype: self._function(f"{name}_{suffix}", arguments) for dtype, suffix in _SUFFIX.items()}

    def _serves(self, rows: torch.Tensor, *others: torch.Tensor | None) -> bool:
        given = [other for other in others if other is not None]
        return (
            rows.device.type == "cpu"
            and rows.dtype in _SUFFIX
            and all(tensor.dtype is rows.dtype and tensor.is_contiguous() for tensor in (rows, *given))
        )

    def _can_attend(self, keys: torch.Tensor) -> bool:
        size, dim = keys.shape[2], keys.shape[3]
        is_whole = dim % self._lanes == 0 and size % self._lanes == 0 and size <= MAX_BLOCK_SIZE
        return keys.device.type == "cpu" and keys.dtype in _SUFFIX and is_whole

    def _layer(
        self,
        heads: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        norms: HeadNorms | None,
        scale: float,
        window: int,
    ) -> Any:
        _, kv_heads, size, dim = keys.shape
        query, key = (None, None) if norms is None else (norms.query.data_ptr(), norms.key.data_ptr())
        eps = 0.0 if norms is None else norms.eps
        pointers = (keys.data_ptr(), values.data_ptr(), query, key)
        return ctypes.byref(_Layer(heads, kv_heads, dim, size, *pointers, eps, scale, window))


def _step(meta: StepMeta, rotation: torch.Tensor | None) -> Any:
    table = meta.block_table
    return ctypes.byref(
        _Step(
            len(meta.row),
            meta.slot.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            meta.row.data_ptr(),
            meta.kv_len.data_ptr(),
            None if rotation is None else rotation.data_ptr(),
            torch.get_num_threads(),
        )
    )


def _heads(rows: torch.Tensor) -> Any:
    return ctypes.byref(_Heads(rows.data_ptr(), rows.stride(0), rows.stride(1)))
