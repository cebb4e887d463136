"""Base64 that stands in JSON."""

import base64
import json

import pytest

from omnistage.serve.coding import base64_of, quoted
from omnistage.serve.render.sse import encode


@pytest.mark.parametrize("nbytes", [0, 1, 2, 3, 255, 100_000])
def test_it_is_what_every_decoder_reads(nbytes: int) -> None:
    """Fault: another alphabet, line breaks, or no padding."""
    data = bytes(range(256)) * (nbytes // 256 + 1)
    data = data[:nbytes]
    assert base64_of(data) == base64.b64encode(data)
    written = encode({"url": quoted(data, b"data:image/png;base64,")})
    assert json.loads(written) == {"url": "data:image/png;base64," + base64.b64encode(data).decode()}
