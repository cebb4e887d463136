"""The inputs of one request in one stage: items that come in, the bridge between, units of work that go out.

    feed(source, seq, item)  ->  [queue]  ->  bridge(state, ...)  ->  [unused inputs]  ->  take()

Items are bridged in the order in which they came (checked per source: a gap or a repetition is an error), and only
while fewer than `window` inputs are unused: that is how a slow stage slows its sources. `advance` says what the bridge
has taken over; a bridge that makes nothing of an item withholds no credit for it, it keeps what it needs in its state.

An item that is lent lies in the memory that all requests of its sender share. `copy_out` makes those that wait for the bridge
this request's own, so that one that may not go on keeps no room from others.

State, unused inputs and (where the stage recomputes from them) used ones together stay below `max_input_nbytes`. Copies are
made as long as they stay below it too; what does not fit stays where it is, so that a copy never fails a request.
Knows nothing of tensors' libraries, requests' parameters or scheduling. Sizes in bytes. Errors concern this request
alone.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from omnistage.core.errors import OmniError, PayloadTooLargeError, StageFailedError
from omnistage.core.payload import MultimodalPayload, TensorSource
from omnistage.modeling.protocols import Bridge, StageInput

_WORD_NBYTES = 8


class InboxState:
    """See the module. `stage` is the stage's name, for messages. `keeps_used`: used inputs go on counting."""

    def __init__(
        self,
        bridge: Bridge,
        sources: Sequence[int],
        *,
        stage: str,
        window: int,
        max_input_nbytes: int,
        keeps_used: bool = False,
    ) -> None:
        self._bridge = bridge
        self._expected = dict.fromkeys(sources, 0)
        self._open = set(sources)
        self._queue: deque[tuple[int, int, MultimodalPayload | None, bool]] = deque()
        self._unused: deque[StageInput] = deque()
        self._state: Any = None
        self._state_nbytes = 0
        self._input_nbytes = 0
        self._waiting_nbytes = 0
        self._stage = stage
        self._window = window
        self._max_input_nbytes = max_input_nbytes
        self._keeps_used = keeps_used

    @classmethod
    def of_entry(
        cls, inputs: Iterable[StageInput], *, stage: str, max_input_nbytes: int, keeps_used: bool = False
    ) -> InboxState:
        """The inbox of an entry stage: all inputs are there, nothing will be fed. Raises PayloadTooLargeError."""
        inbox = cls(_no_bridge, (), stage=stage, window=1, max_input_nbytes=max_input_nbytes, keeps_used=keeps_used)
        inbox._unused.extend(inputs)
        inbox._input_nbytes = sum(input_nbytes(unit) for unit in inbox._unused)
        inbox._check_size("the request")
        return inbox

    @property
    def unused(self) -> int:
        return len(self._unused)

    @property
    def nbytes(self) -> int:
        """What this request's inputs occupy in memory of this stage's own."""
        return self._state_nbytes + self._input_nbytes + self._waiting_nbytes

    @property
    def can_advance(self) -> bool:
        return bool(self._queue) and len(self._unused) < self._window

    @property
    def exhausted(self) -> bool:
        """Every source has sent its last item, and all inputs are used: nothing will follow."""
        return not (self._open or self._queue or self._unused)

    def feed(self, source: int, seq: int, item: MultimodalPayload | None, *, last: bool) -> None:
        """Queues an item. Raises StageFailedError for one that is out of order or has no edge here."""
        expected = self._expected.get(source)
        if expected is None:
            raise StageFailedError(f"stage {self._stage} has no edge from stage {source}", stage=self._stage)
        if source not in self._open:
            raise StageFailedError(
                f"item {seq} of edge {source} -> {self._stage} came after the last one", stage=self._stage
            )
        if seq != expected:
            raise StageFailedError(
                f"item {seq} of edge {source} -> {self._stage} came where item {expected} was due", stage=self._stage
            )
        self._expected[source] = seq + 1
        if last:
            self._open.discard(source)
        self._queue.append((source, seq, item, last))
        self._waiting_nbytes += _owned_nbytes(item)

    def advance(self) -> tuple[tuple[int, int], ...]:
        """Bridges what may be bridged now; (source, seq) up to which each source's items have been taken over.

        Raises what the bridge raised (a foreign exception as StageFailedError) or PayloadTooLargeError.
        """
        taken: dict[int, int] = {}
        while self.can_advance:
            source, seq, item, last = self._queue.popleft()
            self._waiting_nbytes -= _owned_nbytes(item)
            inputs = self._call_bridge(source, seq, item, last)
            self._unused.extend(inputs)
            self._input_nbytes += sum(input_nbytes(unit) for unit in inputs)
            self._check_size(f"edge {source} -> {self._stage}")
            taken[source] = seq
        return tuple(taken.items())

    def copy_out(self) -> tuple[tuple[int, int], ...]:
        """Copies lent items that wait for the bridge; (source, seq) up to which none of a source's items is lent any more."""
        copied: dict[int, int] = {}
        for place, (source, seq, item, last) in enumerate(self._queue):
            if item is None or not item.lent:
                continue
            if self.nbytes + item.nbytes > self._max_input_nbytes:
                break
            try:
                self._queue[place] = source, seq, item.copied(), last
            except MemoryError:
                break  # the machine has less room than this request may take
            self._waiting_nbytes += item.nbytes
            copied[source] = seq
        return tuple(copied.items())

    def peek(self) -> StageInput | None:
        return self._unused[0] if self._unused else None

    def take(self) -> StageInput:
        """The next unused input; from now on it counts only where used inputs are kept."""
        unit = self._unused.popleft()
        if not self._keeps_used:
            self._input_nbytes -= input_nbytes(unit)
        return unit

    def _call_bridge(self, source: int, seq: int, item: MultimodalPayload | None, last: bool) -> list[StageInput]:
        try:
            self._state, inputs = self._bridge(self._state, source, seq, item, last)
        except OmniError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise StageFailedError(f"the bridge of stage {self._stage} failed: {cause}", stage=self._stage) from error
        self._state_nbytes = nbytes_of(self._state)
        return inputs

    def _check_size(self, where: str) -> None:
        nbytes = self._state_nbytes + self._input_nbytes
        if nbytes > self._max_input_nbytes:
            raise PayloadTooLargeError(
                f"{where}: {nbytes} bytes of input are held for this request;"
                f" accepted: at most {self._max_input_nbytes} (max_input_nbytes)",
                stage=self._stage,
                field=where,
            )


def _no_bridge(state: Any, *_item: object) -> tuple[Any, list[StageInput]]:
    return state, []


def _owned_nbytes(item: MultimodalPayload | None) -> int:
    """What an item that waits occupies here."""
    return 0 if item is None or item.lent else item.nbytes


def input_nbytes(unit: StageInput) -> int:
    """What its maker says, or else what can be measured."""
    return unit.nbytes or nbytes_of(unit.data)


@runtime_checkable
class _Sized(Protocol):
    """Arrays of every library, memory views, payloads, and states that count themselves."""

    @property
    def nbytes(self) -> int: ...


_WORDS = frozenset({int, float, bool})
_SEQUENCES = frozenset({list, tuple})


def nbytes_of(value: Any) -> int:
    """Roughly what a plain value occupies: its arrays, strings and bytes, and a word for everything else."""
    kind = type(
        value
    )  # the commonest kinds first: asking for a protocol takes microseconds, for every item of every request
    if kind in _WORDS:
        return _WORD_NBYTES
    if kind in _SEQUENCES:
        return sum(map(nbytes_of, value))
    if kind is dict:
        return sum(map(nbytes_of, value)) + sum(map(nbytes_of, value.values()))
    return _unusual_nbytes_of(value)


def _unusual_nbytes_of(value: Any) -> int:
    match value:
        case None:
            return 0
        case str() | bytes() | bytearray():
            return len(value)
        case TensorSource():
            return value.spec.nbytes
        case _Sized():
            return value.nbytes
        case Mapping():
            return sum(nbytes_of(key) + nbytes_of(held) for key, held in value.items())
        case list() | tuple() | set() | frozenset() | deque():
            return sum(nbytes_of(held) for held in value)
        case msgspec.Struct():
            return sum(nbytes_of(getattr(value, name)) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return sum(nbytes_of(getattr(value, member.name)) for member in dataclasses.fields(value))
    return _WORD_NBYTES
