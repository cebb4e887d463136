"""What only the connector inside one process promises."""

from __future__ import annotations

import numpy as np
import pytest

from omnistage.connectors.inproc import InprocConnector
from omnistage.core.errors import ConnectorError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.spec import TensorSpec


class Scratch:
    """A producer's tensor that it (wrongly) goes on writing to."""

    def __init__(self) -> None:
        self.data = np.zeros(8, np.float32)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec("float32", (8,))

    def copy_to(self, view: memoryview) -> None:
        view[:] = self.data.tobytes()


def test_the_payload_goes_over_by_reference() -> None:
    """Fault: a hand-off inside one process copies."""
    connector = InprocConnector()
    payload = MultimodalPayload({"t": Tensor.of(np.zeros(4))})
    ref = connector.try_put(payload)
    assert ref is not None
    assert connector.can_read(ref) and connector.get(ref) is payload


def test_a_tensor_written_after_the_hand_off_is_found_out() -> None:
    """Fault: a producer reuses its buffer while the next stage reads it."""
    connector = InprocConnector(verify=True)
    scratch = Scratch()
    ref = connector.try_put(MultimodalPayload({"t": scratch}))
    assert ref is not None
    scratch.data[3] = 1
    with pytest.raises(ConnectorError, match="written to"):
        connector.release(ref)
