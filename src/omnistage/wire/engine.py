"""What a server and a driver that runs in a process of its own say to each other (`engine_process`).

    server --ToDriver--> driver process --FromDriver--> server        in batches, over wire.stream

The machine's own words go as they are; the driver puts its own clock into `now`. Frame 0 of a transmission is a list of
messages, the frames after it are the tensors of the batch's `Delivered`s, in order. Bounded by what is open: media by each
request's client window, text by the tokens of its answer; a server refuses requests while too much waits to be read. The last
words of a driver (`DriverFailed`) go before the end of its stream. Knows nothing of runtimes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from omnistage.core.errors import ErrorInfo
from omnistage.core.request import StageTimes, Usage
from omnistage.core.spec import TensorSpec
from omnistage.obs.figures import EdgeTotals, StageFigures
from omnistage.wire.messages import (
    AbortRequested,
    Arrived,
    ClientTook,
    ControlCalled,
    ControlReply,
    Message,
    Outcome,
    Restarted,
    ShutdownRequested,
)
from omnistage.wire.stream import Buffer


class Inspect(Message, frozen=True, kw_only=True):
    """What does the driver hold? `Inspected` is the answer."""

    call_id: str


ToDriver = Arrived | AbortRequested | ClientTook | ControlCalled | ShutdownRequested | Inspect


class Delivered(Message, frozen=True, kw_only=True):
    """An item for the caller. `tensors` by name: each has a frame of the transmission."""

    request_id: str
    attempt: int
    source: int
    seq: int
    final_output_type: str
    tensors: dict[str, TensorSpec]
    metadata: dict[str, Any]
    last: bool


class Ended(Message, frozen=True, kw_only=True):
    """The request's terminal state, with what was measured of it (as runtime.base.ClientClosed)."""

    request_id: str
    outcome: Outcome
    error: ErrorInfo | None
    usage: dict[int, Usage]
    times: dict[int, StageTimes]
    reasons: dict[int, str]
    attempts: int
    edges: dict[tuple[int, int], EdgeTotals]
    waiting_s: dict[int, float]


class Inspected(Message, frozen=True, kw_only=True):
    """The driver's process, the machine's tables, and what the runtime holds."""

    call_id: str
    held: dict[str, Any]


class ReplicaShown(Message, frozen=True, kw_only=True):
    """A replica as it is now (as runtime.base.ReplicaStatus). Sent when it has changed."""

    process: str
    replica: int
    state: str
    note: str
    progress: float
    pid: int | None
    restarts: int


class GaugesShown(Message, frozen=True, kw_only=True):
    """A replica's figures of its last heartbeat, by stage name."""

    process: str
    replica: int
    by_stage: dict[str, dict[str, float]]


class StageEnded(Message, frozen=True, kw_only=True):
    """As obs.figures.FlowObserver has it, like the two that follow."""

    figures: StageFigures


class ItemSent(Message, frozen=True, kw_only=True):
    source: str
    target: str
    nbytes: int


class ItemTaken(Message, frozen=True, kw_only=True):
    source: str
    target: str
    transfer_s: float
    queue_s: float


class DriverBeat(Message, frozen=True, kw_only=True):
    """Sent every second: the driver's loop turns."""


class DriverFailed(Message, frozen=True, kw_only=True):
    """The driver ends by a fault of its own. `reason` is one line."""

    reason: str


OfRequest = Delivered | Restarted | Ended
OfFlow = StageEnded | ItemSent | ItemTaken
OfState = ReplicaShown | GaugesShown | DriverBeat | DriverFailed
FromDriver = OfRequest | OfFlow | OfState | ControlReply | Inspected

_encoder = msgspec.msgpack.Encoder()
_lenient = msgspec.msgpack.Encoder(enc_hook=repr)
_to_driver: msgspec.msgpack.Decoder[list[ToDriver]] = msgspec.msgpack.Decoder(list[ToDriver])
_from_driver: msgspec.msgpack.Decoder[list[FromDriver]] = msgspec.msgpack.Decoder(list[FromDriver])


def pack_for_driver(*messages: ToDriver) -> list[Buffer]:
    """The frames of a transmission. Raises TypeError, ValueError or OverflowError for what is no plain data."""
    return [_encoder.encode(messages)]


def unpack_for_driver(frames: Sequence[Buffer]) -> list[ToDriver]:
    return _to_driver.decode(frames[0])


def pack_from_driver(messages: Sequence[FromDriver], tensors: Sequence[Buffer]) -> list[Buffer]:
    """`tensors` are those of all `Delivered`s, in order. What is no plain data, in what is shown for debugging, goes as text."""
    return [_lenient.encode(messages), *tensors]


def unpack_from_driver(frames: Sequence[Buffer]) -> tuple[list[FromDriver], Iterator[Buffer]]:
    """The messages, and their tensors in order."""
    return _from_driver.decode(frames[0]), iter(frames[1:])
