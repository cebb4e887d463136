"""Payloads of every kind, through every connector: dtypes, shapes, sources that are not contiguous, metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.core.payload import MultimodalPayload, PayloadRef, Tensor, TensorSource
from omnistage.core.spec import DTYPE_NBYTES, TensorSpec
from tests.connectors.pairs import CONNECTORS


@dataclass(frozen=True)
class Strided:
    """A producer's tensor over any view of an array, which need not be contiguous; its elements are the bytes of `dtype`."""

    dtype: str
    view: np.ndarray

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.dtype, self.view.shape)

    def copy_to(self, view: memoryview) -> None:
        np.frombuffer(view, self.view.dtype).reshape(self.view.shape)[...] = self.view

    @property
    def data(self) -> bytes:
        return np.ascontiguousarray(self.view).tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> Strided:
    dtype = draw(st.sampled_from(sorted(DTYPE_NBYTES)))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 64]), max_size=3)) + draw(st.sampled_from([[], [9000], [1]]))
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
    elements = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[DTYPE_NBYTES[dtype]]
    if np.prod(shape, dtype=np.int64) > 60_000:
        shape = shape[-1:]
        steps = steps[-1:]
    whole = np.arange(np.prod([size * 2 for size in shape], dtype=np.int64)).astype(elements)
    view = whole.reshape([size * 2 for size in shape])
    for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
        view = np.moveaxis(np.moveaxis(view, axis, 0)[::step][:size], 0, axis)
    if dtype == "bool":
        view = view & 1
    return Strided(dtype, view.T if draw(st.booleans()) else view)


METADATA = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def bytes_of(tensor: TensorSource) -> bytes:
    data = bytearray(tensor.spec.nbytes)
    tensor.copy_to(memoryview(data))
    return bytes(data)


@pytest.mark.parametrize("name", sorted(CONNECTORS))
def test_any_payload_comes_as_it_was_put(name: str) -> None:
    """Fault: an empty tensor, one without dimensions, a strided one or one of an odd dtype shifts or scrambles bytes."""
    pair = CONNECTORS[name]()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.text(max_size=6), tensors(), max_size=4), METADATA)
    def carry(given_tensors: dict[str, Strided], metadata: dict[str, Any]) -> None:
        ref = pair.sender.try_put(MultimodalPayload(given_tensors, metadata))
        assert ref is not None
        ref = msgspec.msgpack.decode(msgspec.msgpack.encode(ref), type=PayloadRef)
        got = pair.receiver.get(ref)
        assert got.tensors.keys() == given_tensors.keys() and dict(got.metadata) == metadata
        for key, tensor in given_tensors.items():
            assert got.tensors[key].spec == tensor.spec
            assert bytes_of(got.tensors[key]) == tensor.data
            if name != "inproc":
                assert isinstance(got.tensors[key], Tensor)
        del got
        pair.sender.release(ref)

    carry()
    assert pair.sender.health()["used_nbytes"] == 0
    pair.close()
