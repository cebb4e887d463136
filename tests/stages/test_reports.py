"""What a step has to say, in short reports.

Faults pinned: an item that is lost or out of order; one request's payload released between two halves of a report.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omnistage.core.payload import PayloadRef
from omnistage.stages.reports import ITEMS, pieces, reports
from omnistage.wire.messages import Consumed, ControlDone, Emitted, ItemArrived, WorkerEvent


def emitted(request_id: str, target: int = 1) -> Emitted:
    return Emitted(
        request_id=request_id,
        attempt=1,
        source=0,
        target=target,
        seq=0,
        ref=PayloadRef("shm", "main/0", 1, 0),
        last=False,
    )


items = st.lists(
    st.one_of(
        st.builds(emitted, st.sampled_from("abc"), st.integers(1, 2)),
        st.builds(lambda name: Consumed(request_id=name, attempt=1, source=0, target=1, seq=0), st.sampled_from("abc")),
        st.builds(lambda name: ControlDone(call_id=name, stage_id=0), st.sampled_from("xy")),
    ),
    min_size=1,
    max_size=60,
)


@given(items)
def test_a_report_is_cut_between_requests_and_nothing_of_it_is_lost(report_items: list[WorkerEvent]) -> None:
    """Fault: an item that is lost, told twice or out of order; a payload that goes to two targets cut from itself."""
    found = list(pieces(report_items))
    assert [item for piece in found for item in piece] == report_items
    for before, after in pairwise(found):
        assert len(before) >= ITEMS
        assert _name(before[-1]) != _name(after[0])


def test_a_long_report_is_cut_into_short_pieces() -> None:
    """Fault: 64 sounds of one step are heard in one go."""
    found = list(pieces([emitted(str(number)) for number in range(3 * ITEMS + 1)]))
    assert [len(piece) for piece in found] == [ITEMS, ITEMS, ITEMS, 1]
    assert list(pieces([emitted("a")])) == [(emitted("a"),)]


def test_arrivals_are_told_once() -> None:
    """Fault: what came in is told with every piece of a report, and counted as often."""
    arrival = ItemArrived(request_id="0", attempt=1, source=0, target=1, seq=0, at_s=1.0)
    told = reports([emitted(str(number)) for number in range(2 * ITEMS)], 2.0, (arrival,))
    assert [(len(report.items), report.at_s, report.arrivals) for report in told] == [
        (ITEMS, 2.0, (arrival,)),
        (ITEMS, 2.0, ()),
    ]


def _name(item: WorkerEvent) -> str:
    return item.call_id if isinstance(item, ControlDone) else item.request_id
