"""Items on their way to a stage, without a worker around them.

Faults pinned: an item overtakes one of its edge that waits, or waits behind one of another edge; what waits for ever; an item that
is handed over before its arrival is noted.
"""

from typing import Any

from omnistage.core.payload import PayloadRef
from omnistage.stages.host import Fed
from omnistage.stages.intake import DESCRIPTOR_WAIT_S, IntakeState
from omnistage.wire.messages import Feed
from tests.stages.fakes import TightConnector, text

WHERE: dict[str, Any] = {"process": "main", "replica": 0, "epoch": 1}


class Intake:
    """Everything that was said of items and to stages, in order, as (what, request, seq)."""

    def __init__(self) -> None:
        self.connector = TightConnector()
        self.said: list[tuple[str, str, int]] = []
        self.now_s = 0.0
        note = lambda arrival: self.said.append(("noted", arrival.request_id, arrival.seq))  # noqa: E731
        self.state = IntakeState({"shm": self.connector}, {1: self}, note=note, clock=lambda: self.now_s)

    def post(self, mail: Fed) -> None:
        kind = "failed" if mail.error is not None else "fed"
        self.said.append((kind, mail.feed.request_id, mail.feed.seq))

    def feed(self, seq: int, owner: str = "near/0", request_id: str = "r") -> None:
        ref = self.connector.try_put(text("a"))
        assert ref is not None
        there = PayloadRef(ref.connector, owner, 1, ref.key)
        self.state.feed(
            Feed(**WHERE, request_id=request_id, attempt=1, source=0, target=1, seq=seq, ref=there, last=False)
        )


def test_items_of_an_edge_stay_in_order_and_others_pass() -> None:
    """Fault: item 1 is handed over while item 0 waits for its memory; another request waits with them."""
    intake = Intake()
    intake.connector.out_of_reach.add("far/0")
    intake.feed(0, "far/0")
    intake.feed(1)
    intake.feed(0, request_id="other")
    assert intake.said == [("noted", "other", 0), ("fed", "other", 0)]
    assert len(intake.state) == 2
    intake.connector.out_of_reach.clear()
    intake.state.retry()
    assert intake.said[2:] == [("noted", "r", 0), ("fed", "r", 0), ("noted", "r", 1), ("fed", "r", 1)]
    assert len(intake.state) == 0


def test_what_does_not_come_in_time_fails_and_what_is_cancelled_is_forgotten() -> None:
    """Fault: a wait without an end; a failure for a request that nobody knows any more."""
    intake = Intake()
    intake.connector.out_of_reach.add("far/0")
    intake.feed(0, "far/0")
    intake.feed(0, "far/0", request_id="cancelled")
    intake.state.forget("cancelled", 1, 1)
    intake.state.fail_overdue(DESCRIPTOR_WAIT_S - 0.1)
    assert intake.said == []
    intake.state.fail_overdue(DESCRIPTOR_WAIT_S)
    assert intake.said == [("failed", "r", 0)]
    assert len(intake.state) == 0
