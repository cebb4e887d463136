"""What the compiled library reads beside plain numbers: the structures of source/*.h, filled from tensors.

A structure holds addresses only: whoever passes it on keeps the tensors. Weights are bound once, so that a call in a step costs
little more than its arithmetic; what the library cannot serve (a width that fills no whole vectors, weights that are packed or
of two dtypes) is None.
"""

from __future__ import annotations

import ctypes

import torch

from omnistage.modeling.attention import StepMeta
from omnistage.modeling.kernels.blocks import AttentionWeights, GatedWeights, HeadNorms
from omnistage.modeling.linear import Linear, PlainLinear

INT, POINTER, DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


class PagedLayer(ctypes.Structure):
    _fields_ = [
        *((name, INT) for name in ("heads", "kv_heads", "head_dim", "block_size")),
        *((name, POINTER) for name in ("keys", "values", "query_norm", "key_norm")),
        ("eps", DOUBLE),
        ("scale", DOUBLE),
        ("window", INT),
    ]


class PagedStep(ctypes.Structure):
    _fields_ = [
        ("rows", INT),
        ("slot", POINTER),
        ("block_table", POINTER),
        ("table_stride", INT),
        ("table_row", POINTER),
        ("kv_len", POINTER),
        ("rotation", POINTER),
        ("threads", INT),
    ]


class Heads(ctypes.Structure):
    _fields_ = [("data", POINTER), ("row_stride", INT), ("head_stride", INT)]


class Matrix(ctypes.Structure):
    _fields_ = [("weight", POINTER), ("bias", POINTER), ("inner", INT), ("outer", INT)]


class AttentionBlock(ctypes.Structure):
    _fields_ = [
        ("layer", PagedLayer),
        ("qkv", Matrix),
        ("output", Matrix),
        ("input_norm", POINTER),
        ("mlp_norm", POINTER),
        ("eps", DOUBLE),
    ]


class GatedBlock(ctypes.Structure):
    _fields_ = [("gate_up", Matrix), ("down", Matrix)]


def paged_layer(
    heads: int, keys: torch.Tensor, values: torch.Tensor, norms: HeadNorms | None, scale: float, window: int = 0
) -> PagedLayer:
    _, kv_heads, size, dim = keys.shape
    query, key = (None, None) if norms is None else (norms.query.data_ptr(), norms.key.data_ptr())
    eps = 0.0 if norms is None else norms.eps
    return PagedLayer(heads, kv_heads, dim, size, keys.data_ptr(), values.data_ptr(), query, key, eps, scale, window)


def paged_step(meta: StepMeta, rotation: torch.Tensor | None) -> PagedStep:
    """Made once a step, for the layers share it."""
    if meta.bound and meta.bound[0] is rotation:
        found: PagedStep = meta.bound[1]
        return found
    table = meta.block_table
    made = PagedStep(
        len(meta.row),
        meta.slot.data_ptr(),
        table.data_ptr(),
        table.stride(0),
        meta.row.data_ptr(),
        meta.kv_len.data_ptr(),
        None if rotation is None else rotation.data_ptr(),
        torch.get_num_threads(),
    )
    meta.bound[:] = rotation, made
    return made


def heads_of(rows: torch.Tensor) -> Heads:
    """`rows` [T, H, D], D contiguous."""
    return Heads(rows.data_ptr(), rows.stride(0), rows.stride(1))


def attention_block(
    weights: AttentionWeights, keys: torch.Tensor, values: torch.Tensor, lanes: int
) -> AttentionBlock | None:
    qkv, output = _matrix(weights.qkv, keys.dtype, lanes), _matrix(weights.output, keys.dtype, lanes)
    norms = [weights.input_norm, weights.mlp_norm]
    if weights.head_norms is not None:
        norms += [weights.head_norms.query, weights.head_norms.key]
    if qkv is None or output is None or not all(_is_plain(norm, keys.dtype) for norm in norms):
        return None
    layer = paged_layer(weights.heads, keys, values, weights.head_norms, weights.scale)
    return AttentionBlock(layer, qkv, output, weights.input_norm.data_ptr(), weights.mlp_norm.data_ptr(), weights.eps)


def gated_block(weights: GatedWeights, dtype: torch.dtype, lanes: int) -> GatedBlock | None:
    gate_up, down = _matrix(weights.gate_up, dtype, lanes), _matrix(weights.down, dtype, lanes)
    return None if gate_up is None or down is None else GatedBlock(gate_up, down)


def _matrix(linear: Linear, dtype: torch.dtype, lanes: int) -> Matrix | None:
    if not isinstance(linear, PlainLinear) or not _is_plain(linear.weight, dtype):
        return None
    bias = linear.bias
    outer, inner = linear.weight.shape
    if outer % lanes or inner % lanes or not (bias is None or _is_plain(bias, dtype)):
        return None
    return Matrix(linear.weight.data_ptr(), None if bias is None else bias.data_ptr(), inner, outer)


def _is_plain(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype is dtype and tensor.is_contiguous()
