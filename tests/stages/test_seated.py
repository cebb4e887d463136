"""What seated engines share, with an engine that does nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.core.errors import StageFailedError
from omnistage.stages.inbox import InboxState
from omnistage.stages.seated import SeatedEngine
from omnistage.stages.seats import Seats


@dataclass(slots=True)
class Held:
    inbox: InboxState
    ready: bool = True


class Still(SeatedEngine[Held]):
    """Holds request "r", fed by stage 5."""

    def __init__(self) -> None:
        super().__init__("still", Seats(1))
        self._seats.add("r", (0, 0))
        inbox = InboxState(lambda state, *_: (state, []), [5], stage="still", window=1, max_input_nbytes=8)
        self._requests["r"] = Held(inbox)

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._touched.pop(request_id, None)

    def told(self) -> tuple[list[str], list[str], list[str]]:
        """Requests that are held, that are touched, and that have something to say."""
        return list(self._requests), list(self._touched), [output.request_id for output in self._outputs]


def test_a_fed_or_parked_request_is_looked_at_and_a_stranger_is_not() -> None:
    """Fault: an item that nobody bridges, or a parked request that keeps what it was lent."""
    engine = Still()
    engine.feed("stranger", 5, 0, None, last=False)
    engine.set_ready("stranger", False)
    engine.set_ready("r", True)
    assert engine.told() == (["r"], [], [])
    engine.feed("r", 5, 0, None, last=False)
    assert engine.told() == (["r"], ["r"], [])
    parked = Still()
    parked.set_ready("r", False)
    assert parked.told() == (["r"], ["r"], [])


def test_an_item_out_of_order_fails_its_request_and_a_cancel_takes_back_what_it_said() -> None:
    """Fault: an error without its stage; a request that is spoken of after its end."""
    engine = Still()
    engine.feed("r", 5, 3, None, last=False)
    assert engine.told() == ([], [], ["r"])
    [output] = engine._outputs
    assert output.error is not None
    assert (output.error.code, output.error.stage) == (StageFailedError.code, "still")
    engine.cancel("r")
    assert engine.told() == ([], [], [])
