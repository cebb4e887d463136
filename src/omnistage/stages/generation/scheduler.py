"""Which requests of a generation stage run next: policy without tensors, without torch, without the model.

`slots` requests hold state. A slot goes to a request when its first input is there; if none is free, the youngest request
that holds one gives it up to an older request, and among the younger ones those that wait (for input, or until they may hand
over) go first. A younger one takes it only from one that may not hand over: that waits for a caller or a target, and loses
nothing, for its state is a value; it has the slot back when it may go on. A step is one batch: the oldest
request that can run, and every younger one that can run with it, in the total order, while their work together is within
`budget`. One unit of work that exceeds the budget runs alone. A request runs one input per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Order = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Work:
    """The next input of a request: `cost` in the model's units; inputs with equal `key` may share a batch, None may not."""

    cost: int
    key: object


@dataclass(frozen=True, slots=True)
class Seating:
    """Who has lost a slot, and who has got one."""

    parked: tuple[str, ...] = ()
    seated: tuple[str, ...] = ()


@dataclass(slots=True)
class SeatState:
    """What the scheduler knows of one request."""

    order: Order
    ready: bool = True
    has_input: bool = False
    seated: bool = False

    @property
    def can_run(self) -> bool:
        return self.ready and self.has_input


class GenerationScheduler:
    """See the module. All calls about unknown requests are no-ops."""

    def __init__(self, *, slots: int, budget: int) -> None:
        self._slots = slots
        self._budget = budget
        self._requests: dict[str, SeatState] = {}

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return sum(state.seated for state in self._requests.values())

    @property
    def waiting(self) -> int:
        return len(self._requests) - self.running

    def add(self, request_id: str, order: Order) -> None:
        self._requests[request_id] = SeatState(order)

    def remove(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def set_ready(self, request_id: str, ready: bool) -> None:
        state = self._requests.get(request_id)
        if state is not None:
            state.ready = ready

    def set_input(self, request_id: str, has_input: bool) -> None:
        """Whether an unused input is there."""
        state = self._requests.get(request_id)
        if state is not None:
            state.has_input = has_input

    def can_run(self) -> bool:
        """Whether `seat` and `form_batch` would find somebody."""
        free = self._slots - self.running
        able = [state for state in self._requests.values() if state.can_run]
        return any(state.seated or free > 0 or self._victim(state) is not None for state in able)

    def seat(self) -> Seating:
        """Gives slots to requests that can run, oldest first. Whoever loses one to an older request and takes another from one
        that may not hand over has kept its own."""
        held = {request_id for request_id, state in self._requests.items() if state.seated}
        parked: list[str] = []
        seated: list[str] = []
        free = self._slots - self.running
        for request_id, state in self._ordered_items():
            if state.seated or not state.can_run:
                continue
            if free > 0:
                free -= 1
            else:
                victim = self._victim(state)
                if victim is None:
                    break
                self._requests[victim].seated = False
                parked.append(victim)
            state.seated = True
            seated.append(request_id)
        return Seating(
            parked=tuple(request_id for request_id in parked if not self._requests[request_id].seated),
            seated=tuple(request_id for request_id in seated if request_id not in held),
        )

    def form_batch(self, work: Mapping[str, Work]) -> tuple[str, ...]:
        """The requests of the next step. `work` has an entry for each of `candidates()`."""
        batch: list[str] = []
        left = self._budget
        key: object = None
        for request_id in self.candidates():
            unit = work[request_id]
            if not batch:
                batch, left, key = [request_id], left - unit.cost, unit.key
            elif key is not None and unit.key == key and unit.cost <= left:
                batch.append(request_id)
                left -= unit.cost
            if key is None or left <= 0:
                break
        return tuple(batch)

    def candidates(self) -> list[str]:
        """Requests that hold a slot and can run, oldest first."""
        return [request_id for request_id, state in self._ordered_items() if state.seated and state.can_run]

    def _victim(self, taker: SeatState) -> str | None:
        """Whom `taker` may displace: a younger request, rather one that waits, then the youngest; else whoever may not hand
        over."""
        others = [
            (state.order > taker.order, not state.can_run, state.order, request_id)
            for request_id, state in self._requests.items()
            if state.seated and (state.order > taker.order or not state.ready)
        ]
        return max(others)[3] if others else None

    def _ordered_items(self) -> list[tuple[str, SeatState]]:
        return sorted(self._requests.items(), key=lambda item: item[1].order)
