"""What a tensor is, apart from its bytes."""

import subprocess
import sys

import numpy as np
import pytest

from omnistage.core.spec import DTYPE_NBYTES, TensorSpec


@pytest.mark.parametrize("dtype", sorted(set(DTYPE_NBYTES) - {"bfloat16"}))
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (5, 7)])
def test_it_takes_as_many_bytes_as_numpy_has_for_it(dtype: str, shape: tuple[int, ...]) -> None:
    """Fault: room for another number of bytes than a tensor has."""
    assert TensorSpec(dtype, shape).nbytes == np.zeros(shape, dtype).nbytes


def test_bfloat16_has_two_bytes() -> None:
    assert TensorSpec("bfloat16", (2, 3)).nbytes == 12


def test_a_request_costs_no_library() -> None:
    """Fault: whoever reads a pipeline or a request pays for numpy."""
    code = "import sys; import omnistage.core.request; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
