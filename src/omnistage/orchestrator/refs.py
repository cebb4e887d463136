"""Who still needs which payload: every ref is released exactly once, after its last holder has let go.

Releases are gathered until the end of an event, so that one ref reported for several targets at once is not released between
the first and the second. Inline refs are treated like any other; the shell may drop their Release. Knows no edges or stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.core.payload import PayloadRef
from omnistage.wire.messages import Release

RefId = tuple[str, str, int, int, int]


def ref_id(ref: PayloadRef) -> RefId:
    """What tells one payload from another: where it was made, by which incarnation, and its generation there."""
    return (ref.connector, ref.owner, ref.epoch, ref.key, ref.generation)


@dataclass(slots=True)
class _HoldingState:
    ref: PayloadRef
    holders: int = 0


class RefState:
    """Counts holders. An item without payload (None) is nothing to hold."""

    def __init__(self) -> None:
        self._held: dict[RefId, _HoldingState] = {}
        self._free: dict[RefId, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, ref: PayloadRef | None) -> None:
        if ref is None:
            return
        name = ref_id(ref)
        self._held.setdefault(name, _HoldingState(ref)).holders += 1
        self._free.pop(name, None)

    def drop(self, ref: PayloadRef | None) -> None:
        """One holder less."""
        if ref is None:
            return
        name = ref_id(ref)
        holding = self._held[name]
        holding.holders -= 1
        if holding.holders == 0:
            self._free[name] = None

    def refuse(self, ref: PayloadRef | None) -> None:
        """Nobody wants this delivery of a ref; what others hold of it they keep."""
        self.hold(ref)
        self.drop(ref)

    def flush(self) -> list[Release]:
        """The releases that are due at the end of an event."""
        releases = [Release(ref=self._held.pop(name).ref) for name in self._free]
        self._free.clear()
        return releases
