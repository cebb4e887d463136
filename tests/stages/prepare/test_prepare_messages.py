"""Frames: whole messages out of pieces, and a bound on what is believed."""

import socket

import msgspec
import pytest

from omnistage.stages.prepare.messages import LENGTH_NBYTES, Answer, FrameState, HelperReady, frame, read_frame


def test_messages_come_out_whole_however_they_are_cut() -> None:
    """Fault: a message that ends in the middle of a piece is lost or doubled."""
    said = [Answer(value=b"x" * count) for count in (0, 5, 300)]
    stream = b"".join(map(frame, said))
    for step in (1, 3, 64, len(stream)):
        frames = FrameState(1000)
        found = [m for at in range(0, len(stream), step) for m in frames.feed(stream[at : at + step])]
        assert [msgspec.msgpack.decode(message, type=Answer) for message in found] == said


def test_a_length_that_nobody_sends_is_refused_before_its_bytes_come() -> None:
    """Fault: a worker fills its memory with what a broken helper claims to say."""
    with pytest.raises(ValueError, match="at most 100"):
        FrameState(100).feed((93).to_bytes(LENGTH_NBYTES, "little"))
    assert FrameState(100).feed((92).to_bytes(LENGTH_NBYTES, "little")) == []


def test_a_blocking_reader_sees_the_end() -> None:
    """Fault: a helper whose worker is gone reads half a message for ever."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(frame(HelperReady()) + b"\x09")
        ours.close()
        assert bytes(read_frame(theirs) or b"") == msgspec.msgpack.encode(HelperReady())
        assert read_frame(theirs) is None
