"""The forward pass of a decoder, or of a chain of them, as one call of the library: no tensor is made or looked at on its way, for
in a step of a small model each costs as much as a layer.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from omnistage.modeling.attention import PagedCache
from omnistage.modeling.drawing import NUCLEUS_CANDIDATES
from omnistage.modeling.kernels.structs import POINTER, Begun, Chain, Decoder, address, numbers, paged_step
from omnistage.modeling.step import ARStep, StepRows


class BoundDecoder:
    """Some weights over some `cache`, as `model` has them. The memory of its logits is used again in the next call."""

    def __init__(self, function: Callable[..., None], model: Decoder, cache: PagedCache) -> None:
        self.cache = cache
        self._function = function
        self._model = model
        self._hidden_size, self._vocab_size = model.head.inner, model.head.outer
        self._addresses = POINTER * (model.num_layers + 1)
        self._no_capture = self._addresses()
        self._logits = torch.empty(0, self._vocab_size)
        self._logits_at, self._num_logits = self._logits.data_ptr(), 0

    def serves(self, step: StepRows) -> bool:
        """Whether the rows are of a kind that the library reads; it looks at no index that it is given."""
        dtype = self.cache.shape.dtype
        if step.layered and not all(_lies_plainly(rows, dtype) for rows in step.layered.values()):
            return False
        if step.embeds is None:
            return min(step.tokens) >= 0 and max(step.tokens) < self._vocab_size
        return _lies_plainly(step.embeds, dtype)

    def __call__(self, step: StepRows, rotations: torch.Tensor, capture_layers: Sequence[int]) -> ARStep:
        tokens, asked = numbers(step.tokens), numbers(step.logit_rows)
        layered = self._layered(step)
        begun = _begun(step, tokens, asked, layered)
        hidden, captured = self._hidden(step.num_rows, capture_layers)
        self._make_room(len(asked))
        placed = paged_step(step, rotations)
        at = ctypes.byref(self._model), ctypes.byref(placed), ctypes.byref(begun)
        self._function(*at, self._logits_at, captured)
        return ARStep(self._logits, hidden)

    def _layered(self, step: StepRows) -> ctypes.Array[ctypes.c_void_p] | None:
        if not step.layered:
            return None
        found: ctypes.Array[ctypes.c_void_p] = self._addresses()
        for layer, rows in step.layered.items():
            found[layer] = rows.data_ptr()
        return found

    def _hidden(
        self, rows: int, layers: Sequence[int]
    ) -> tuple[dict[int, torch.Tensor], ctypes.Array[ctypes.c_void_p]]:
        """Tensors to be filled, and where they lie."""
        if not layers:
            return {}, self._no_capture
        hidden = {layer: torch.empty((rows, self._hidden_size), dtype=self.cache.shape.dtype) for layer in layers}
        captured = self._addresses()
        for layer, made in hidden.items():
            captured[layer] = made.data_ptr()
        return hidden, captured

    def _make_room(self, count: int) -> None:
        if count != self._num_logits:
            self._logits = torch.empty(count, self._vocab_size)
            self._logits_at, self._num_logits = self._logits.data_ptr(), count


class BoundChain:
    """The `links` one behind another; they are over one cache, and as large as each other."""

    def __init__(self, function: Callable[..., None], links: Sequence[Decoder], first: BoundDecoder) -> None:
        self.first = first
        self._function = function
        self._links = (Decoder * len(links))(*links)
        self._kept = list(links)

    def __call__(
        self, step: StepRows, rotations: torch.Tensor, settings: npt.NDArray[np.void] | None
    ) -> list[list[int]]:
        count = len(step.slots)
        tokens, asked, drawn = (
            numbers(step.tokens),
            numbers(step.logit_rows),
            numbers(bytes(8 * count * len(self._links))),
        )
        begun, placed = _begun(step, tokens, asked), paged_step(step, rotations)
        wanted = None if settings is None else settings.ctypes.data
        chain = Chain(ctypes.addressof(self._links), len(self._links), wanted, NUCLEUS_CANDIDATES, address(drawn))
        self._function(ctypes.byref(chain), ctypes.byref(placed), ctypes.byref(begun))
        found = drawn.tolist()
        return [found[at : at + count] for at in range(0, len(found), count)]


def _begun(
    step: StepRows, tokens: array[int], asked: array[int], layered: ctypes.Array[ctypes.c_void_p] | None = None
) -> Begun:
    embeds = None if step.embeds is None else step.embeds.data_ptr()
    more = None if layered is None else ctypes.addressof(layered)
    return Begun(address(tokens), embeds, more, address(asked), len(asked))


def _lies_plainly(rows: torch.Tensor, dtype: torch.dtype) -> bool:
    return rows.device.type == "cpu" and rows.dtype is dtype and rows.is_contiguous()
