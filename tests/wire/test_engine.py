"""What a server and its driver process say to each other, there and back."""

import pytest

from omnistage.core.errors import ErrorInfo
from omnistage.core.request import OmniRequest, Prompt, StageTimes, Usage
from omnistage.core.spec import TensorSpec
from omnistage.obs.figures import EdgeTotals, StageFigures
from omnistage.wire.engine import (
    Delivered,
    DriverBeat,
    Ended,
    FromDriver,
    Inspected,
    StageEnded,
    pack_for_driver,
    pack_from_driver,
    unpack_for_driver,
    unpack_from_driver,
)
from omnistage.wire.messages import Arrived


def test_what_a_driver_says_arrives_as_it_was_said() -> None:
    """Fault: a field that is lost or changes its type on the way; tensors that go to another item."""
    item = Delivered(
        request_id="r",
        attempt=2,
        source=1,
        seq=3,
        final_output_type="audio",
        tensors={"left": TensorSpec("int16", (2,)), "right": TensorSpec("bfloat16", (0,))},
        metadata={"rate": 24000, "names": ["a"]},
        last=True,
    )
    ended = Ended(
        request_id="r",
        outcome="failed",
        error=ErrorInfo("stage_failed", "why", "voice", None, 1.5),
        usage={0: Usage(prompt_tokens=3)},
        times={0: StageTimes(queued_s=0.5)},
        reasons={0: "stop"},
        attempts=2,
        edges={(0, -1): EdgeTotals(9, 2, 0.25, 0.5, 33, ((4, 1), (25, 1), (1, 4)))},
        waiting_s={0: 0.125},
    )
    said: list[FromDriver] = [
        item,
        StageEnded(figures=StageFigures("voice", 1, "failed", "internal")),
        ended,
        DriverBeat(),
    ]
    messages, tensors = unpack_from_driver(pack_from_driver(said, [b"abcd", b""]))
    assert messages == said
    assert list(tensors) == [b"abcd", b""]


def test_what_cannot_be_sent_is_noticed_by_the_sender() -> None:
    """Fault: a request that breaks the driver it is sent to; a state that cannot be shown because of one odd value."""
    with pytest.raises(TypeError):
        pack_for_driver(_arrived({"what": object()}))
    asked = _arrived({"seed": 2**64 - 1})
    assert unpack_for_driver(pack_for_driver(asked)) == [asked]
    [shown], _ = unpack_from_driver(pack_from_driver([Inspected(call_id="1", held={"odd": object()})], []))
    assert isinstance(shown, Inspected) and "object object" in shown.held["odd"]


def _arrived(information: dict[str, object]) -> Arrived:
    prompt = Prompt(text="", additional_information=information)
    return Arrived(now=1.0, request=OmniRequest(request_id="r", prompt=prompt, wants=("text",), stage_params={}))
