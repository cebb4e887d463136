"""How a payload lies in a row of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.connectors.base import ALIGNMENT_NBYTES, INLINE_NBYTES, check_spec, inline_ref, lay_out, read, write
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.spec import TensorSpec


def payload_of(lengths: list[int]) -> MultimodalPayload:
    return MultimodalPayload(
        {str(index): Tensor.of(np.full(length, index, np.int16)) for index, length in enumerate(lengths)}
    )


@given(st.lists(st.integers(0, 100), max_size=6))
def test_places_are_aligned_and_do_not_overlap(lengths: list[int]) -> None:
    """Fault: a tensor starts inside its neighbour, or where a vector load would fault."""
    places, nbytes = lay_out(payload_of(lengths))
    end = 0
    for place in places:
        assert place.offset % ALIGNMENT_NBYTES == 0
        assert place.offset >= end
        end = place.offset + place.spec.nbytes
    assert end <= nbytes


@given(st.lists(st.integers(0, 100), max_size=6))
def test_what_is_written_is_read(lengths: list[int]) -> None:
    """Fault: an empty tensor shifts those behind it."""
    payload = payload_of(lengths)
    ref = inline_ref(payload, *lay_out(payload), connector="c", owner="o", epoch=0, key=0)
    assert ref is not None
    assert ref.inline is not None
    again = read(ref, memoryview(ref.inline))
    for name in payload.tensors:
        assert again.numpy(name).tolist() == payload.numpy(name).tolist()


def test_the_inline_bound_is_on_all_tensors_together() -> None:
    """Fault: many small tensors make a message without a bound."""
    half = np.zeros(INLINE_NBYTES // 2, np.uint8)
    both = MultimodalPayload({"a": Tensor.of(half), "b": Tensor.of(half)})
    assert inline_ref(both, *lay_out(both), connector="c", owner="o", epoch=0, key=0) is not None
    more = MultimodalPayload({**both.tensors, "c": Tensor.of(half[:1])})
    assert inline_ref(more, *lay_out(more), connector="c", owner="o", epoch=0, key=0) is None


def test_a_dtype_that_cannot_travel_fails_in_the_sender() -> None:
    """Fault: the receiver finds bytes it cannot read."""
    odd = Tensor(TensorSpec("complex64", (1,)), memoryview(bytes(8)))
    for asked in (check_spec, lay_out):
        with pytest.raises(KeyError):
            asked(MultimodalPayload({"t": odd}))


def test_write_leaves_the_gaps_alone() -> None:
    """Fault: a tensor is written past its end."""
    payload = payload_of([1, 1])
    places, nbytes = lay_out(payload)
    data = bytearray(b"\x7f" * nbytes)
    write(payload, places, memoryview(data))
    assert data[2:ALIGNMENT_NBYTES] == b"\x7f" * (ALIGNMENT_NBYTES - 2)
