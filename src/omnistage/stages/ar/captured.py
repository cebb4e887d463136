"""Captured rows of full blocks of the cache, held under the blocks' digests: who shares a block is handed its rows, too.

Rows are gathered as they are computed, step by step, until their block is full. Those used of late stay, bytes are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from omnistage.stages.ar.plan import HeldBlock, PlanRow, SequenceKey, Span
from omnistage.stages.ar.sequence import SequenceState
from omnistage.stages.recent import RecentValues

CAPTURED_NBYTES = 128 * 2**20

Layers = Mapping[int, torch.Tensor]
"""Rows [n, hidden] by captured layer."""


class CapturedRows:
    """A `scheduler.HeldOutputs`. Holds the very tensors that were handed on: nobody writes to them."""

    def __init__(self, block_size: int, limit_nbytes: int = CAPTURED_NBYTES) -> None:
        self._block_size = block_size
        self._held: RecentValues[bytes, tuple[tuple[Span, ...], Layers]] = RecentValues(limit_nbytes)
        self._growing: dict[SequenceKey, dict[int, list[Layers]]] = {}

    def holds(self, digest: bytes, spans: tuple[Span, ...]) -> bool:
        found = self._held.get(digest)
        return found is not None and found[0] == spans

    def recall(self, blocks: Sequence[HeldBlock]) -> Layers:
        """The rows of some blocks that are held, joined, without those that were handed on before."""
        parts = []
        for block in blocks:
            found = self._held.get(block.digest)
            assert found is not None and found[0] == block.spans, "rows are recalled that are not held"
            parts.append({layer: rows[block.skip :] for layer, rows in found[1].items()})
        return joined(parts)

    def grow(self, sequence: SequenceState, row: PlanRow, hidden: Layers) -> None:
        """After `row` was committed: `hidden` are the rows that it captured. Blocks that are full now are held."""
        if not row.captures and sequence.key not in self._growing:
            return
        size, growing = self._block_size, self._growing.setdefault(sequence.key, {})
        at = 0
        for start, end in _cut(row.captures, size):
            part = {layer: rows[at : at + end - start] for layer, rows in hidden.items()}
            growing.setdefault(start // size, []).append(part)
            at += end - start
        for index in [index for index in growing if (index + 1) * size <= row.end]:
            rows, spans = joined(growing.pop(index)), sequence.wanted(index * size, (index + 1) * size)
            if all(len(found) == _length(spans) for found in rows.values()):
                nbytes = sum(found.nbytes for found in rows.values())
                self._held.put(sequence.digests[index], (spans, rows), nbytes)
        if not growing:
            del self._growing[sequence.key]

    def forget(self, key: SequenceKey) -> None:
        """What is not full yet of a sequence."""
        self._growing.pop(key, None)

    def clear(self) -> None:
        """Nothing that was computed so far is held any more."""
        self._held.clear()
        self._growing.clear()


def joined(parts: Sequence[Layers]) -> Layers:
    """One behind the other."""
    if len(parts) <= 1:
        return parts[0] if parts else {}
    return {layer: torch.cat([part[layer] for part in parts]) for layer in parts[0]}


def _length(spans: Sequence[Span]) -> int:
    return sum(end - start for start, end in spans)


def _cut(spans: Sequence[Span], size: int) -> Iterator[Span]:
    """The same positions, cut where blocks begin."""
    for start, end in spans:
        while start < end:
            border = min(end, (start // size + 1) * size)
            yield start, border
            start = border
