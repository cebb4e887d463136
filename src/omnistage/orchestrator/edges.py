"""One edge of one attempt: the order of its items, the credit of its window, and what waits for its target to start.

The source numbers its items 0, 1, ... and may have `window` of them unacknowledged. Knows neither replicas nor commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from omnistage.core.payload import PayloadRef
from omnistage.orchestrator.plan import EdgePlan
from omnistage.orchestrator.refs import RefId, ref_id

REMEMBERED_REFS = 64
"""Items back to which a repeated delivery is told from a new payload under an old number."""


class Verdict(Enum):
    """What an item's number says about it."""

    NEXT = auto()
    SEEN = auto()
    GAP = auto()


@dataclass(frozen=True, slots=True)
class Item:
    """One item on its way. `ref` None carries only the end; `progress` tells only how far its source is."""

    seq: int
    ref: PayloadRef | None
    last: bool
    progress: bool = False


@dataclass(slots=True)
class EdgeState:
    """`next_seq` is what the source sends next, `acknowledged` how many items its target has taken over."""

    plan: EdgePlan
    next_seq: int = 0
    acknowledged: int = 0
    ended: bool = False
    backlog: list[Item] = field(default_factory=list)
    _recent: dict[int, RefId] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """The source has no credit left and more to say."""
        return self.plan.windowed and not self.ended and self.next_seq - self.acknowledged >= self.plan.window

    def judge(self, seq: int) -> Verdict:
        """An item after the last one is a gap as well: its place does not exist."""
        if seq < self.next_seq:
            return Verdict.SEEN
        return Verdict.NEXT if seq == self.next_seq and not self.ended else Verdict.GAP

    def record(self, item: Item) -> None:
        """Takes the next item into account."""
        self.next_seq += 1
        self.ended = item.last
        if item.ref is not None:
            self._recent[item.seq] = ref_id(item.ref)
            self._recent.pop(item.seq - REMEMBERED_REFS, None)

    def is_repeated(self, item: Item) -> bool:
        """True if a seen number comes with the very payload it came with before."""
        return item.ref is not None and self._recent.get(item.seq) == ref_id(item.ref)

    def acknowledge_upto(self, seq: int) -> int:
        """The target has taken over everything up to and including `seq`. Returns the credit that this frees."""
        upto = min(seq + 1, self.next_seq)
        freed = max(0, upto - self.acknowledged)
        self.acknowledged += freed
        return freed

    def acknowledge_one(self) -> int:
        """The caller has taken one item, in whatever order. Returns the credit that this frees."""
        return self.acknowledge_upto(self.acknowledged)

    def take_backlog(self) -> list[Item]:
        items, self.backlog = self.backlog, []
        return items
