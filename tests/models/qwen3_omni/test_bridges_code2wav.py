"""Codec frames on their way into the decoder."""

import numpy as np
import pytest

from omnistage.core.errors import StageFailedError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.models.qwen3_omni.bridges import code2wav_bridge


def test_frames_are_copied_one_input_per_item() -> None:
    """Fault: codes that change when the arena's memory is given away; an input without frames; frames that wait for the end."""
    buffer = bytearray(np.arange(6, dtype=np.int32).tobytes())
    payload = MultimodalPayload({"frames": Tensor(Tensor.of(np.zeros((3, 2), np.int32)).spec, memoryview(buffer))})
    state, inputs = code2wav_bridge(None, 1, 0, payload, False)
    buffer[:] = b"\xff" * len(buffer)
    assert state is None
    assert [made.data["frames"].tolist() for made in inputs] == [[[0, 1], [2, 3], [4, 5]]]
    assert inputs[0].nbytes == inputs[0].data["frames"].nbytes
    assert code2wav_bridge(None, 1, 1, None, True) == (None, [])
    assert (
        code2wav_bridge(None, 1, 1, MultimodalPayload({"frames": Tensor.of(np.zeros((0, 2), np.int32))}), True)[1] == []
    )


def test_an_item_without_frames_is_named() -> None:
    """Fault: a KeyError that says nothing of where it comes from."""
    payload = MultimodalPayload({"rows": Tensor.of(np.zeros((3, 2), np.float32))})
    with pytest.raises(StageFailedError, match=r"item 7 of stage 1 has no tensor frames; it has \['rows'\]"):
        code2wav_bridge(None, 1, 7, payload, False)
