"""What the compiled library reads beside plain numbers: the structures of source/*.h, filled from tensors.

A structure holds addresses only: whoever passes it on keeps the tensors. Weights are bound once, so that a call in a step costs
little more than its arithmetic; what the library cannot serve (weights that lie otherwise, or are of two dtypes) is None.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from itertools import chain

import torch

from omnistage.modeling.attention import PagedCache
from omnistage.modeling.kernels.blocks import (
    AttentionWeights,
    DecoderWeights,
    ExpertsWeights,
    GatedWeights,
    HeadNorms,
    LayerWeights,
)
from omnistage.modeling.linear import Linear, PanelLinear
from omnistage.modeling.mlp import ExpertsMlp, GatedMlp
from omnistage.modeling.step import StepRows

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
        ("num_sequences", INT),
        ("sequences", POINTER),
        ("block_table", POINTER),
        ("columns", INT),
        ("rotations", POINTER),
        ("by_row", INT),
        ("threads", INT),
    ]


class Heads(ctypes.Structure):
    _fields_ = [("data", POINTER), ("row_stride", INT), ("head_stride", INT)]


class Matrix(ctypes.Structure):
    _fields_ = [("panels", POINTER), ("bias", POINTER), ("inner", INT), ("outer", INT)]


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


class Experts(ctypes.Structure):
    _fields_ = [
        ("router", Matrix),
        ("experts", POINTER),
        *((name, INT) for name in ("num_experts", "per_row", "normalised")),
        ("shared", POINTER),
        ("shared_gate", Matrix),
    ]


class Layer(ctypes.Structure):
    _fields_ = [("attention", AttentionBlock), ("mlp", GatedBlock), ("experts", POINTER)]


class Decoder(ctypes.Structure):
    _fields_ = [
        ("embedding", POINTER),
        ("layers", POINTER),
        ("num_layers", INT),
        ("final_norm", POINTER),
        ("eps", DOUBLE),
        ("head", Matrix),
    ]


class Begun(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("tokens", "embeds", "layered", "asked")),
        ("num_asked", INT),
    ]


class Chain(ctypes.Structure):
    _fields_ = [("links", POINTER), ("num_links", INT), ("settings", POINTER), ("few", INT), ("tokens", POINTER)]


def paged_layer(
    heads: int, keys: torch.Tensor, values: torch.Tensor, norms: HeadNorms | None, scale: float, window: int = 0
) -> PagedLayer:
    _, kv_heads, size, dim = keys.shape
    query, key = (None, None) if norms is None else (norms.query.data_ptr(), norms.key.data_ptr())
    eps = 0.0 if norms is None else norms.eps
    return PagedLayer(heads, kv_heads, dim, size, keys.data_ptr(), values.data_ptr(), query, key, eps, scale, window)


def paged_step(step: StepRows, rotations: torch.Tensor | None) -> PagedStep:
    """Made once a step, for the layers share it."""
    if step.bound and step.bound[0] is rotations:
        found: PagedStep = step.bound[1]
        return found
    assert rotations is None or (rotations.dtype is torch.float32 and rotations.is_contiguous())
    sequences = numbers(chain.from_iterable(zip(step.slots, step.starts, step.counts, strict=True)))
    made = PagedStep(
        step.num_rows,
        len(step.slots),
        address(sequences),
        step.table.address,
        step.table.columns,
        None if rotations is None else rotations.data_ptr(),
        step.rotary is not None,
        torch.get_num_threads(),
    )
    step.bound[:] = rotations, made, sequences
    return made


def numbers(given: Iterable[int] | bytes) -> array[int]:
    """As the library reads and writes them; nothing is as cheap to make."""
    return array("q", given)


def address(of: array[int] | array[float]) -> int:
    return of.buffer_info()[0]


def heads_of(rows: torch.Tensor) -> Heads:
    """`rows` [T, H, D], D contiguous."""
    return Heads(rows.data_ptr(), rows.stride(0), rows.stride(1))


def attention_block(weights: AttentionWeights, keys: torch.Tensor, values: torch.Tensor) -> AttentionBlock | None:
    qkv, output = matrix(weights.qkv, keys.dtype), matrix(weights.output, keys.dtype)
    norms = [weights.input_norm, weights.mlp_norm]
    if weights.head_norms is not None:
        norms += [weights.head_norms.query, weights.head_norms.key]
    if qkv is None or output is None or not _are_plain(keys.dtype, *norms):
        return None
    layer = paged_layer(weights.heads, keys, values, weights.head_norms, weights.scale)
    return AttentionBlock(layer, qkv, output, weights.input_norm.data_ptr(), weights.mlp_norm.data_ptr(), weights.eps)


def gated_block(weights: GatedWeights, dtype: torch.dtype) -> GatedBlock | None:
    gate_up, down = matrix(weights.gate_up, dtype), matrix(weights.down, dtype)
    return None if gate_up is None or down is None else GatedBlock(gate_up, down)


def experts_block(weights: ExpertsWeights, dtype: torch.dtype) -> Experts | None:
    """With the structures that it points to."""
    router, bound = matrix(weights.router, dtype), [gated_block(expert, dtype) for expert in weights.experts]
    whole = [expert for expert in bound if expert is not None]
    shared, gate = None, Matrix()
    if weights.shared is not None:
        shared, given = gated_block(weights.shared.weights, dtype), matrix(weights.shared.gate, dtype)
        if shared is None or given is None:
            return None
        gate = given
    if router is None or len(whole) < len(bound) or not 0 < weights.per_row <= len(whole) == router.outer:
        return None
    experts = (GatedBlock * len(whole))(*whole)
    made = Experts(
        router,
        ctypes.addressof(experts),
        len(experts),
        weights.per_row,
        weights.normalised,
        None if shared is None else ctypes.addressof(shared),
        gate,
    )
    made.kept = experts, shared
    return made


def decoder(weights: DecoderWeights, cache: PagedCache) -> Decoder | None:
    """Bound to a cache, too."""
    dtype, head = cache.shape.dtype, matrix(weights.head, cache.shape.dtype)
    layers = [
        _layer(layer, keys, values)
        for layer, keys, values in zip(weights.layers, cache.keys, cache.values, strict=True)
    ]
    whole = [layer for layer in layers if layer is not None]
    own = weights.embedding if isinstance(weights.embedding, torch.Tensor) else None
    if own is None and weights.embedding is not weights.head:
        return None
    tensors = [weights.final_norm] if own is None else [weights.final_norm, own]
    if head is None or len(whole) < len(layers) or not _are_plain(dtype, *tensors):
        return None
    bound = (Layer * len(whole))(*whole)
    made = Decoder(
        None if own is None else own.data_ptr(),
        ctypes.addressof(bound),
        len(bound),
        weights.final_norm.data_ptr(),
        weights.eps,
        head,
    )
    made.kept = bound, whole
    return made


def _layer(weights: LayerWeights, keys: torch.Tensor, values: torch.Tensor) -> Layer | None:
    attention = attention_block(weights.attention, keys, values)
    match weights.mlp:
        case GatedMlp(gated):
            mlp = gated_block(gated, keys.dtype)
            return None if attention is None or mlp is None else Layer(attention, mlp, None)
        case ExpertsMlp(mixed):
            experts = experts_block(mixed, keys.dtype)
            if attention is None or experts is None:
                return None
            made = Layer(attention, GatedBlock(), ctypes.addressof(experts))
            made.kept = experts
            return made
    return None


def matrix(linear: Linear, dtype: torch.dtype) -> Matrix | None:
    if not isinstance(linear, PanelLinear) or not _are_plain(dtype, linear.panels):
        return None
    bias = linear.bias
    if not (bias is None or _are_plain(dtype, bias)):
        return None
    inner = linear.panels.shape[1]
    return Matrix(linear.panels.data_ptr(), None if bias is None else bias.data_ptr(), inner, linear.outs)


def _are_plain(dtype: torch.dtype, *tensors: torch.Tensor) -> bool:
    return all(tensor.device.type == "cpu" and tensor.dtype is dtype and tensor.is_contiguous() for tensor in tensors)
