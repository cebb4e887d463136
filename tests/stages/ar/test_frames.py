"""What a sequence of frames is fed, and when."""

from __future__ import annotations

from omnistage.core.payload import MultimodalPayload, merge
from omnistage.stages.ar.block_manager import BlockManager
from omnistage.stages.ar.frames import FedFrame, FrameSource, FrameState
from omnistage.stages.ar.plan import SequenceKey
from omnistage.stages.ar.scheduler import Limits, Scheduler
from omnistage.stages.ar.sequence import SequenceState


def test_a_frame_waits_for_its_side() -> None:
    """Fault: a frame is fed with padding although its side is still to come; or waits for one when none comes any more."""
    state = FrameState(pad=9)
    state.frames += [(1, 2), (3, 4)]
    assert state.num_ready == 0
    state.supply([7], all_there=False)
    assert state.num_ready == 1
    state.supply([], all_there=True)
    assert state.num_ready == 2
    assert state.fed(-3, 2) == (FedFrame((1, 2), 7), FedFrame((3, 4), 9))
    assert state.fed(1, 2) == (FedFrame((3, 4), 9),)
    assert state.fed(-3, 0) == ()


def test_sides_may_be_ahead_of_frames() -> None:
    """Fault: a frame that has not been made counts as one that can be fed."""
    state = FrameState(pad=9)
    state.supply([5, 6, 7], all_there=True)
    assert state.num_ready == 0


def test_what_a_sequence_of_frames_can_compute() -> None:
    """Fault: a step runs ahead of the sides, or holds the prompt up as well."""
    frames = FrameState(pad=9)
    sequence = SequenceState(SequenceKey("r", 0), (0, 0, 0), [0, 0, 0], 9, frames=frames)
    assert sequence.remaining == 3
    sequence.computed = 3
    sequence.tokens.append(5)
    frames.frames.append((5, 6))
    assert sequence.remaining == 0
    frames.supply([1, 2], all_there=False)
    assert sequence.remaining == 1
    sequence.computed = 0
    assert sequence.remaining == 4


def test_a_side_wakes_a_scheduler_that_had_nothing_to_do() -> None:
    """Fault: text comes, and nobody looks whether a step could use it."""
    scheduler = Scheduler(Limits(2, 8, 32), BlockManager(8, 4))
    frames = FrameState(pad=9)
    sequence = SequenceState(SequenceKey("r", 0), (0, 0, 0), [0, 0], 9, content_key=None, frames=frames)
    scheduler.add(sequence)
    (row,) = scheduler.schedule().rows
    assert (row.frames, row.samples) == ((), True)
    scheduler.commit(row)
    scheduler.append(row.key, [5])
    frames.frames.append((5, 6))
    assert not scheduler.schedule().rows
    assert not scheduler.has_work()
    scheduler.supply(row.key, [7], all_there=False)
    assert scheduler.has_work()
    assert scheduler.schedule().rows[0].frames == (FedFrame((5, 6), 7),)


def test_frames_on_their_way_out_are_rows_of_numbers() -> None:
    """Fault: numbers of another width, or frames that lie one over another."""
    said = [MultimodalPayload({"frames": FrameSource(codes)}) for codes in ((1, 2, 70_000), (4, 5, 6))]
    assert said[0].nbytes == 12
    assert said[0].copied().numpy("frames").tolist() == [[1, 2, 70_000]]
    whole = merge(said).numpy("frames")
    assert (whole.dtype.name, whole.tolist()) == ("int32", [[1, 2, 70_000], [4, 5, 6]])
