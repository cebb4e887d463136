"""The library of this machine, compiled once."""

from __future__ import annotations

import pytest

from omnistage.modeling.kernels.build import build
from omnistage.modeling.kernels.native import KernelOps


@pytest.fixture(scope="session")
def kernels() -> KernelOps:
    path = build()
    if path is None:
        pytest.skip("this machine has no C++ compiler")
    return KernelOps(path)
