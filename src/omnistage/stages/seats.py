"""Who of a stage's requests holds a slot: the one total order, applied to state that is a value.

`slots` requests hold one. A slot goes to a request when its first input is there; if none is free, the youngest request
that holds one gives it up to an older request, and among the younger ones those that wait (for input, or until they may hand
over) go first. A younger one takes it only from one that may not hand over: that waits for a caller or a target, and loses
nothing, for its state is a value; it has the slot back when it may go on.
Knows nothing of what a request is or what is done with a slot.
"""

from __future__ import annotations

from dataclasses import dataclass

Order = tuple[int, int]
"""(priority, arrival); smaller first."""


@dataclass(frozen=True, slots=True)
class Seating:
    """Who has lost a slot, and who has got one."""

    parked: tuple[str, ...] = ()
    seated: tuple[str, ...] = ()


@dataclass(slots=True)
class SeatState:
    """What is known of one request."""

    order: Order
    ready: bool = True
    has_input: bool = False
    seated: bool = False

    @property
    def can_run(self) -> bool:
        return self.ready and self.has_input


class Seats:
    """See the module. All calls about unknown requests are no-ops."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
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
        """Whether there is a candidate, or would be one after `seat`."""
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
