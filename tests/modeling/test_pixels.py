"""Values of an autoencoder become bytes, and what is no number becomes no picture."""

from __future__ import annotations

import pytest
import torch

from omnistage.core.errors import StageFailedError
from omnistage.modeling.pixels import pixels_of


def test_values_are_bytes_in_the_order_of_pictures() -> None:
    """Fault: channels for lines, a grey level cut off and not rounded, or values beyond the ends that wrap around."""
    values = torch.tensor([[[-1.0, 0.0, 1.0, 1.5, -7.0]], [[0.0, 0.0, 0.0, 0.0, 0.0]]])
    first, second = pixels_of(torch.stack([values, -values]).bfloat16())
    assert (first.shape, str(first.dtype)) == ((1, 5, 2), "uint8")
    assert first[0].tolist() == [[0, 128], [128, 128], [255, 128], [255, 128], [0, 128]]
    assert second[0, :, 0].tolist() == [255, 128, 0, 0, 255]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_no_picture(value: float) -> None:
    """Fault: weights that overflow are served as black pictures, and nobody is told."""
    values = torch.zeros(2, 3, 4, 4)
    values[1, 0, 0, 0] = value
    with pytest.raises(StageFailedError, match="no numbers"):
        pixels_of(values)
