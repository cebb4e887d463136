"""The compiled kernels, bound through ctypes: the same operations as `fallback`, on float32 and bfloat16 tensors of a CPU.

Tensors go over as pointers. What a kernel cannot check (contiguity, a dtype, a width that fills whole vectors) is checked here
or falls to torch: a kernel that is called wrongly would read other memory instead of failing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from omnistage.modeling.attention import PagedCache
from omnistage.modeling.drawing import DRAW_SETTINGS, NUCLEUS_CANDIDATES
from omnistage.modeling.kernels.blocks import (
    AttentionWeights,
    ChainWeights,
    DecoderWeights,
    ExpertsWeights,
    GatedWeights,
    HeadNorms,
)
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.structs import (
    DOUBLE,
    INT,
    POINTER,
    AttentionBlock,
    Experts,
    GatedBlock,
    Heads,
    address,
    attention_block,
    decoder,
    experts_block,
    gated_block,
    heads_of,
    matrix,
    numbers,
    paged_layer,
    paged_step,
)
from omnistage.modeling.kernels.whole import BoundChain, BoundDecoder
from omnistage.modeling.linear import PanelLinear
from omnistage.modeling.repetition import SeenRows
from omnistage.modeling.step import ARStep, StepRows

_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}
_UNBOUND: Any = object()
MAX_BLOCK_SIZE = 256
"""The scores of one block lie on a kernel's stack."""


class KernelOps(TorchOps):
    """One loaded library. Raises OSError where it cannot be loaded."""

    name = "kernels"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._lanes = int(self._library.vector_lanes())
        self._attend = self._pair("attend", [POINTER] * 6)
        self._add_rms_norm = self._pair("add_rms_norm", [*[POINTER] * 3, DOUBLE, POINTER, INT, INT])
        self._silu_mul = self._pair("silu_mul", [POINTER, POINTER, INT, INT, INT])
        self._linear = self._pair("linear", [*[POINTER] * 3, INT, INT])
        self._attention_block = self._pair("attention_block", [POINTER] * 5)
        self._gated_block = self._pair("gated_block", [*[POINTER] * 3, INT, INT])
        self._experts_block = self._pair("experts_block", [*[POINTER] * 3, INT, INT])
        self._decoder = self._pair("decoder", [POINTER] * 5)
        self._chain = self._pair("chain", [POINTER] * 3)
        self._draw = self._function("draw_tokens", [POINTER] * 3 + [INT] * 4)
        self._penalise = self._function("repeat_penalty", [*[POINTER] * 4, INT, INT])
        self._uniforms = self._function("draw_uniforms", [*[POINTER] * 4, INT])
        self._drawn_from: torch.Tensor | None = None
        self._drawn_at: tuple[int, int, int] | None = None
        self._attentions: WeakKeyDictionary[AttentionWeights, AttentionBlock | None] = WeakKeyDictionary()
        self._decoders: WeakKeyDictionary[DecoderWeights, BoundDecoder | None] = WeakKeyDictionary()
        self._chains: WeakKeyDictionary[ChainWeights, BoundChain | None] = WeakKeyDictionary()
        self._gates: WeakKeyDictionary[GatedWeights, GatedBlock | None] = WeakKeyDictionary()
        self._mixtures: WeakKeyDictionary[ExpertsWeights, Experts | None] = WeakKeyDictionary()

    def decoder(
        self,
        weights: DecoderWeights,
        step: StepRows,
        rotations: torch.Tensor,
        cache: PagedCache,
        capture_layers: Sequence[int],
    ) -> ARStep:
        bound: BoundDecoder | None = self._decoders.get(weights, _UNBOUND)
        if bound is _UNBOUND or (bound is not None and bound.cache is not cache):
            bound = self._decoders[weights] = self._bound(weights, cache)
        if bound is None or not bound.serves(step):
            return super().decoder(weights, step, rotations, cache, capture_layers)
        return bound(step, rotations, capture_layers)

    def chain(
        self,
        weights: ChainWeights,
        step: StepRows,
        rotations: torch.Tensor,
        cache: PagedCache,
        settings: npt.NDArray[np.void] | None,
    ) -> list[list[int]]:
        assert settings is None or (settings.dtype == DRAW_SETTINGS and settings.flags.c_contiguous)
        assert len(step.logit_rows) == len(step.slots) and step.rotary is None and not step.layered
        bound: BoundChain | None = self._chains.get(weights, _UNBOUND)
        if bound is _UNBOUND or (bound is not None and bound.first.cache is not cache):
            bound = self._chains[weights] = self._bound_chain(weights, cache)
        if bound is None or not bound.first.serves(step):
            return super().chain(weights, step, rotations, cache, settings)
        return bound(step, rotations, settings)

    def attention_block(
        self,
        weights: AttentionWeights,
        rows: torch.Tensor,
        added: torch.Tensor | None,
        rotations: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: StepRows,
    ) -> torch.Tensor:
        bound, dtype = self._attentions.get(weights, _UNBOUND), rows.dtype
        if bound is _UNBOUND:
            bound = attention_block(weights, keys, values) if self._can_attend(keys) else None
            self._attentions[weights] = bound
        if bound is None or dtype is not keys.dtype or not rows.is_contiguous():
            return super().attention_block(weights, rows, added, rotations, keys, values, step)
        bound.layer.keys, bound.layer.values = keys.data_ptr(), values.data_ptr()
        normed = torch.empty_like(rows)
        at, more = ctypes.byref(paged_step(step, rotations)), None if added is None else added.data_ptr()
        self._attention_block[dtype](ctypes.byref(bound), at, rows.data_ptr(), more, normed.data_ptr())
        return normed

    def gated_block(self, weights: GatedWeights, normed: torch.Tensor) -> torch.Tensor:
        dtype, count = normed.dtype, normed.shape[0]
        bound = self._gates.get(weights, _UNBOUND)
        if bound is _UNBOUND:
            bound = gated_block(weights, dtype) if dtype in _SUFFIX else None
            self._gates[weights] = bound
        if bound is None or not normed.is_contiguous():
            return super().gated_block(weights, normed)
        out = torch.empty_like(normed)
        function, threads = self._gated_block[dtype], torch.get_num_threads()
        function(ctypes.byref(bound), normed.data_ptr(), out.data_ptr(), count, threads)
        return out

    def experts_block(self, weights: ExpertsWeights, normed: torch.Tensor) -> torch.Tensor:
        dtype, count = normed.dtype, normed.shape[0]
        bound = self._mixtures.get(weights, _UNBOUND)
        if bound is _UNBOUND:
            bound = self._mixtures[weights] = experts_block(weights, dtype) if dtype in _SUFFIX else None
        if bound is None or not normed.is_contiguous():
            return super().experts_block(weights, normed)
        out = torch.empty_like(normed)
        function, threads = self._experts_block[dtype], torch.get_num_threads()
        function(ctypes.byref(bound), normed.data_ptr(), out.data_ptr(), count, threads)
        return out

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: StepRows,
        *,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        if not self._can_attend(keys) or any(tensor.stride(2) != 1 for tensor in (q, k, v)):
            return super().attend(q, k, v, keys, values, step, scale=scale, window=window)
        out = torch.empty(q.shape, dtype=q.dtype)
        layer = paged_layer(q.shape[1], keys, values, None, scale, window)
        parts = [ctypes.byref(heads_of(rows)) for rows in (q, k, v)]
        self._attend[q.dtype](ctypes.byref(layer), ctypes.byref(paged_step(step, None)), *parts, out.data_ptr())
        return out

    def attend_joined(
        self,
        qkv: torch.Tensor,
        norms: HeadNorms | None,
        rotations: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: StepRows,
        *,
        heads: int,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        if not self._can_attend(keys) or not qkv.is_contiguous():
            return super().attend_joined(
                qkv, norms, rotations, keys, values, step, heads=heads, scale=scale, window=window
            )
        kv_heads, dim = keys.shape[1], keys.shape[3]
        out = torch.empty((len(qkv), heads * dim), dtype=qkv.dtype)
        layer = ctypes.byref(paged_layer(heads, keys, values, norms, scale, window))
        start, width = qkv.data_ptr(), qkv.stride(0)
        offsets = (0, heads * dim, (heads + kv_heads) * dim)
        parts = [ctypes.byref(Heads(start + offset * qkv.itemsize, width, dim)) for offset in offsets]
        self._attend[qkv.dtype](layer, ctypes.byref(paged_step(step, rotations)), *parts, out.data_ptr())
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

    def linear(self, rows: torch.Tensor, layer: PanelLinear) -> torch.Tensor:
        bound = matrix(layer, rows.dtype) if self._serves(rows) else None
        if bound is None:
            return super().linear(rows, layer)
        out = torch.empty((len(rows), layer.outs), dtype=rows.dtype)
        function, threads = self._linear[rows.dtype], torch.get_num_threads()
        function(ctypes.byref(bound), rows.data_ptr(), out.data_ptr(), len(rows), threads)
        return out

    def draw(self, logits: torch.Tensor, settings: npt.NDArray[np.void] | None) -> list[int]:
        place = self._place_of(logits)
        if place is None:
            return super().draw(logits, settings)
        assert settings is None or settings.dtype == DRAW_SETTINGS
        at, rows, vocab = place
        tokens = numbers(bytes(rows * 8))
        asked = None if settings is None else settings.ctypes.data
        self._draw(at, asked, address(tokens), rows, vocab, NUCLEUS_CANDIDATES, torch.get_num_threads())
        return tokens.tolist()

    def penalise(self, logits: torch.Tensor, seen: SeenRows) -> None:
        place = self._place_of(logits)
        if place is None:
            super().penalise(logits, seen)
            return
        at, rows, vocab = place
        assert rows == len(seen.penalties) == len(seen.counts) and sum(seen.counts) == len(seen.tokens)
        given = [address(one) for one in seen]
        self._penalise(at, *given, rows, vocab)

    def uniforms(
        self, seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], streams: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.float64]:
        given = (seeds, positions, streams)
        assert [one.itemsize for one in given] == [8, 8, 4] and all(one.flags.c_contiguous for one in given)
        assert streams.shape == (len(seeds), 2) and len(positions) == len(seeds)
        chances = np.empty(len(seeds))
        at = [one.ctypes.data for one in (*given, chances)]
        self._uniforms(*at, len(seeds))
        return chances

    # ---- bindings ----

    def _place_of(self, logits: torch.Tensor) -> tuple[int, int, int] | None:
        """Address, rows and vocabulary of logits that the library can read. The next step's are mostly the same memory."""
        if logits is not self._drawn_from:
            is_read = logits.dtype is torch.float32 and self._serves(logits)
            self._drawn_at = (logits.data_ptr(), *logits.shape) if is_read else None
            self._drawn_from = logits
        return self._drawn_at

    def _bound(self, weights: DecoderWeights, cache: PagedCache) -> BoundDecoder | None:
        dtype = cache.shape.dtype
        model = decoder(weights, cache) if self._can_attend(cache.keys[0]) else None
        return None if model is None else BoundDecoder(self._decoder[dtype], model, cache)

    def _bound_chain(self, weights: ChainWeights, cache: PagedCache) -> BoundChain | None:
        first = self._bound(weights.links[0], cache)
        links = [link for one in weights.links if (link := decoder(one, cache)) is not None]
        sizes = {(link.num_layers, link.head.inner, link.head.outer) for link in links}
        # A token that is drawn from one link is looked up in the table of the next.
        own = [one.embedding for one in weights.links if isinstance(one.embedding, torch.Tensor)]
        tables = {tuple(table.shape) for table in own}
        if first is None or len(links) < len(weights.links) or len(sizes) > 1:
            return None
        if not tables <= {(links[0].head.outer, links[0].head.inner)}:
            return None
        return BoundChain(self._chain[cache.shape.dtype], links, first)

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
