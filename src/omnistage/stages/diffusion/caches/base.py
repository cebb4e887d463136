"""Steps that do without most of their blocks: what the blocks added to a row at its last whole step is added again.

    open -> blocks before the check -> check: how much has the row changed since?
                                         | little: + what the other blocks added then
                                         | much:   other blocks, and what they add is kept
                                         v
                                       close

Every row (a branch of a picture) has a memory of its own, a value that its picture holds. Rows of one batch decide each for
itself: those that can do without the blocks leave the batch for them, so that a picture is the same as if it were denoised alone.
A memory is replaced, never changed; where a step fails, the one before holds. A row's first step and its last are always whole.
Knows the model by its blocks alone (modeling.diffusion.BlockedModel).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omnistage.modeling.diffusion import BlockedModel, Flow, Row


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one row. `signal` [...]: by which its change is measured, as it was at the last step, or at the last whole one. `added`
    [tokens, channels]: what the blocks behind the check added in the last whole step. `drift`: changes since then, summed."""

    signal: torch.Tensor
    added: torch.Tensor
    drift: float = 0.0


class StepCache(ABC):
    """One way to tell. It says what is looked at; what follows from it stands here. `rows_run`, `rows_spared`: of blocks."""

    def __init__(self, model: BlockedModel) -> None:
        self._model = model
        self.rows_run = 0
        self.rows_spared = 0

    @abstractmethod
    def checked(self, flow: Flow) -> tuple[Flow, torch.Tensor, int]:
        """(the flow at the check, the signal [rows, ...], how many blocks it has passed) of an opened flow."""

    @abstractmethod
    def decided(self, memory: Memory, change: float, signal: torch.Tensor) -> Memory | None:
        """The memory of a row that does without its blocks, None for one that needs them. `change`: its signal's, relative."""

    def predict(
        self, rows: Sequence[Row], memories: Sequence[Memory | None]
    ) -> tuple[list[torch.Tensor], list[Memory]]:
        """(predictions, new memories), one of each per row."""
        at, signal, passed = self.checked(self._model.open(rows))
        kept = self._kept(rows, memories, signal)
        whole = [index for index, memory in enumerate(kept) if memory is None]
        hidden, added = at.hidden.clone(), {}
        if whole:
            flow = at if len(whole) == len(rows) else at.select(whole)
            for block in range(passed, self._model.num_blocks):
                flow = self._model.block(block, flow)
            added = dict(zip(whole, flow.hidden - at.hidden[whole], strict=True))
            hidden[whole] = flow.hidden
        found: list[Memory] = []
        for index, memory in enumerate(kept):
            if memory is not None:
                hidden[index] += memory.added
            # copies: a memory outlives its neighbours in the batch, whose rows lie in the same tensor
            found.append(memory or Memory(signal[index].clone(), added[index].clone()))
        blocks = self._model.num_blocks - passed
        self.rows_run += passed * len(rows) + blocks * len(whole)
        self.rows_spared += blocks * (len(rows) - len(whole))
        return self._model.close(at.with_hidden(hidden)), found

    def _kept(
        self, rows: Sequence[Row], memories: Sequence[Memory | None], signal: torch.Tensor
    ) -> list[Memory | None]:
        """For each row what it remembers after a step without blocks, None where it needs them."""
        kept: list[Memory | None] = [None] * len(rows)
        known = [
            (index, memory)
            for index, (row, memory) in enumerate(zip(rows, memories, strict=True))
            if memory is not None and row.step + 1 < len(row.picture.timesteps)
        ]
        changes = relative_changes([signal[index] for index, _ in known], [memory.signal for _, memory in known])
        for (index, memory), change in zip(known, changes, strict=True):
            kept[index] = self.decided(memory, change, signal[index])
        return kept


def relative_changes(now: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> list[float]:
    """mean |now - before| / mean |before| of each pair, read off the device at once. A change from nothing is infinite."""
    if not now:
        return []
    pairs = zip(now, before, strict=True)
    changes = torch.stack([(one - other).abs().mean() / other.abs().mean() for one, other in pairs])
    return [float("inf") if change != change else float(change) for change in changes.tolist()]
