"""The forward pass of a decoder as one call of the library: no tensor is made or looked at on its way, for in a step of a small
model each costs as much as a layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from omnistage.modeling.attention import PagedCache
from omnistage.modeling.kernels.structs import POINTER, Begun, Decoder, address, numbers, paged_step
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
        embeds = step.embeds
        if embeds is None:
            return min(step.tokens) >= 0 and max(step.tokens) < self._vocab_size
        return embeds.device.type == "cpu" and embeds.dtype is self.cache.shape.dtype and embeds.is_contiguous()

    def __call__(self, step: StepRows, rotations: torch.Tensor, capture_layers: Sequence[int]) -> ARStep:
        tokens, asked = numbers(step.tokens), numbers(step.logit_rows)
        embeds = None if step.embeds is None else step.embeds.data_ptr()
        begun = Begun(address(tokens), embeds, address(asked), len(asked))
        hidden, captured = self._hidden(step.num_rows, capture_layers)
        self._make_room(len(asked))
        placed = paged_step(step, rotations)
        at = ctypes.byref(self._model), ctypes.byref(placed), ctypes.byref(begun)
        self._function(*at, self._logits_at, captured)
        return ARStep(self._logits, hidden)

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
