"""Tensors and payloads at the borders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.core.errors import ConnectorError
from omnistage.core.payload import (
    Concatenated,
    MultimodalPayload,
    Tensor,
    TensorSource,
    merge,
)
from omnistage.core.spec import DTYPE_NBYTES, TensorSpec


def copied(source: TensorSource) -> bytes:
    data = bytearray(source.spec.nbytes)
    source.copy_to(memoryview(data))
    return bytes(data)


@pytest.mark.parametrize("dtype", sorted(set(DTYPE_NBYTES) - {"bfloat16"}))
def test_numpy_round_trip(dtype: str) -> None:
    """Fault: a dtype is widened or byte-swapped on the way."""
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = Tensor.of(array[:, ::-1])
    np.testing.assert_array_equal(tensor.numpy(), array[:, ::-1], strict=True)
    assert tensor.spec == TensorSpec(dtype, (2, 3))
    assert tensor.spec.nbytes == 6 * DTYPE_NBYTES[dtype]


def test_bfloat16_widens_to_float32() -> None:
    """Fault: bfloat16 bits read as float16."""
    bits = (np.array([1.5, -2.0, 0.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    tensor = Tensor(TensorSpec("bfloat16", (3,)), memoryview(bits.tobytes()))
    np.testing.assert_array_equal(tensor.numpy(), np.array([1.5, -2.0, 0.0], np.float32), strict=True)


def test_a_reference_is_copied_when_it_is_read() -> None:
    """Fault: an in-process tensor cannot become a public output."""
    held = Tensor.of(np.arange(4, dtype=np.int32))
    by_reference = Tensor(held.spec, reference=held)
    assert by_reference.numpy().tolist() == [0, 1, 2, 3]
    assert MultimodalPayload({"x": Concatenated((held,))}).numpy("x").tolist() == [0, 1, 2, 3]
    with pytest.raises(ConnectorError, match="neither"):
        copied(Tensor(held.spec))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_concatenated_equals_numpy(lengths: list[int]) -> None:
    """Fault: rows of one part land in another's place."""
    arrays = [np.full((rows, 2), index, np.int16) for index, rows in enumerate(lengths)]
    joined = Concatenated(tuple(Tensor.of(array) for array in arrays))
    expected = np.concatenate(arrays)
    assert joined.spec == TensorSpec("int16", expected.shape)
    assert copied(joined) == expected.tobytes()


def test_merge_joins_text_lists_and_rows() -> None:
    """Fault: a merged delta loses what came before it."""
    first = MultimodalPayload({"a": Tensor.of(np.array([1]))}, {"text": "ab", "ids": [1], "rate": 8, "mixed": "x"})
    second = MultimodalPayload(
        {"a": Tensor.of(np.array([2])), "b": Tensor.of(np.array([3]))},
        {"text": "c", "ids": [2, 3], "rate": 9, "mixed": 1},
    )
    joined = merge([first, second])
    assert joined.numpy("a").tolist() == [1, 2] and joined.numpy("b").tolist() == [3]
    assert joined.metadata == {"text": "abc", "ids": [1, 2, 3], "rate": 9, "mixed": 1}
    assert merge([first]) is first
    assert first.metadata["ids"] == [1]
    assert joined.nbytes == 24


def test_a_copy_of_a_payload_is_its_holders_own() -> None:
    """Fault: a view of a buffer that somebody else writes to later."""
    data = np.arange(6, dtype=np.int16).reshape(2, 3)
    source = Tensor.of(data)
    buffer = bytearray(12)
    source.copy_to(memoryview(buffer))
    copy = MultimodalPayload({"x": Tensor(source.spec, memoryview(buffer))}, {"rate": 1}, lent=True).copied()
    buffer[:] = b"\xff" * 12
    np.testing.assert_array_equal(copy.numpy("x"), data)
    assert copy.metadata == {"rate": 1} and not copy.numpy("x").flags.writeable
    assert not copy.lent
