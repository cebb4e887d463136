"""The border between torch and payload tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omnistage.core.payload import Tensor
from omnistage.core.spec import DTYPE_NBYTES
from omnistage.modeling.tensors import TorchSource, dtype_of, rows_of, to_torch


@pytest.mark.parametrize("name", DTYPE_NBYTES)
def test_every_dtype_crosses_the_border_and_comes_back(name: str) -> None:
    """Fault: a dtype that core knows and torch's side does not, or whose bytes are read as another's."""
    tensor = torch.arange(6).reshape(2, 3).to(dtype_of(name))
    source = TorchSource(tensor)
    data = bytearray(source.spec.nbytes)
    source.copy_to(memoryview(data))
    back = to_torch(Tensor(source.spec, memoryview(bytes(data))))
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("tensor", [torch.arange(12.0).reshape(3, 4).T, torch.empty(0, 4), torch.tensor(3.0)])
def test_any_layout_is_copied_in_order(tensor: torch.Tensor) -> None:
    """Fault: a transposed, empty or scalar tensor is written as its memory lies."""
    source = TorchSource(tensor)
    data = bytearray(source.spec.nbytes)
    source.copy_to(memoryview(data))
    assert np.array_equal(np.frombuffer(data, np.float32).reshape(tensor.shape), tensor.numpy())


def test_what_is_received_is_ones_own() -> None:
    """Fault: a tensor over memory that is overwritten once the bridge has returned."""
    given = torch.ones(3)
    kept = to_torch(TorchSource(given), torch.device("cpu"))
    given.zero_()
    assert kept.tolist() == [1, 1, 1]


def test_rows_come_in_several_forms() -> None:
    """Fault: a bridge that makes numpy arrays or passes payload tensors on is refused."""
    rows = np.ones((2, 3), np.float32)
    for form in (torch.from_numpy(rows), rows, Tensor.of(rows)):
        assert torch.equal(rows_of(form), torch.ones(2, 3))
    with pytest.raises(TypeError, match="not as list"):
        rows_of([[1.0]])
