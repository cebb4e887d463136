"""Who holds a slot.

Faults pinned: a younger request keeps an older one out of a slot; an older one is parked for a younger; a request that waits keeps
what it cannot use.
"""

from omnistage.stages.seats import Seating, Seats


def seats_of(*requests: str, slots: int = 2) -> Seats:
    """Requests in order of age, all with an input."""
    seats = Seats(slots)
    for age, request_id in enumerate(requests):
        seats.add(request_id, (0, age))
        seats.set_input(request_id, True)
    return seats


def test_slots_go_to_the_oldest_that_can_run() -> None:
    """Fault: a request without input holds a slot that others need."""
    seats = seats_of("a", "b", "c", "d")
    seats.set_input("a", False)
    seats.set_ready("b", False)
    assert seats.seat() == Seating(seated=("c", "d"))
    assert seats.candidates() == ["c", "d"]
    assert (seats.running, seats.waiting) == (2, 2)


def test_an_older_request_takes_the_slot_of_the_youngest() -> None:
    """Fault: an older request waits for a younger one to end."""
    seats = seats_of("b", "c", "d")
    seats.seat()
    seats.add("a", (-1, 9))
    seats.set_input("a", True)
    assert seats.can_run()
    assert seats.seat() == Seating(parked=("c",), seated=("a",))
    assert seats.candidates() == ["a", "b"]


def test_among_the_younger_one_that_waits_is_parked_first() -> None:
    """Fault: a request that works loses its slot to spare one that idles."""
    seats = seats_of("b", "c")
    seats.seat()
    seats.set_ready("b", False)
    seats.add("a", (-1, 0))
    seats.set_input("a", True)
    assert seats.seat() == Seating(parked=("b",), seated=("a",))


def test_one_that_may_not_hand_over_gives_its_slot_to_a_younger_one_and_has_it_back() -> None:
    """Fault: requests whose callers read slowly hold every slot while those that could run wait."""
    seats = seats_of("a", "b", slots=1)
    seats.seat()
    seats.set_ready("a", False)
    assert seats.can_run()
    assert seats.seat() == Seating(parked=("a",), seated=("b",))
    seats.set_ready("a", True)
    assert seats.seat() == Seating(parked=("b",), seated=("a",))


def test_an_older_request_is_never_parked_for_a_younger_one() -> None:
    """Fault: the oldest request loses what it holds, and nobody can always go on."""
    seats = seats_of("a", "b", slots=1)
    seats.seat()
    seats.set_input("a", False)
    assert not seats.can_run()
    assert seats.seat() == Seating()
    assert seats.candidates() == []
    seats.remove("a")
    assert seats.seat() == Seating(seated=("b",))


def test_whoever_passes_its_slot_on_and_takes_another_keeps_it() -> None:
    """Fault: a request is parked and seated in one breath, and counted as one that gave its place up."""
    seats = Seats(2)
    for name, order in (("paused", 0), ("old", 1), ("young", 2)):
        seats.add(name, (0, order))
    for name in ("paused", "young"):
        seats.set_input(name, True)
    assert seats.seat() == Seating(seated=("paused", "young"))
    seats.set_ready("paused", False)
    seats.set_input("old", True)
    assert seats.seat() == Seating(parked=("paused",), seated=("old",))
    assert seats.candidates() == ["old", "young"]
