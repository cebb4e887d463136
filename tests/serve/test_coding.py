"""Files inside of JSON."""

import base64
import json

import pytest

from omnistage.serve.coding import base64_of, filled, filled_nbytes, hole, url_head
from omnistage.serve.render.sse import encode


@pytest.mark.parametrize("nbytes", [0, 1, 2, 3, 255, 48 * 2**10, 48 * 2**10 + 1, 200_000])
def test_a_file_stands_where_its_hole_was(nbytes: int) -> None:
    """Fault: another alphabet, line breaks, padding between the pieces, or a length that is not what is sent."""
    data = (bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]
    text = encode({"said": "nul \0 and \\u0000", "url": hole(url_head("png")), "other": [hole()], "end": 1})
    pieces = list(filled(text, [data, b"abc"]))
    assert max(map(len, pieces)) <= 64 * 2**10
    assert sum(map(len, pieces)) == filled_nbytes(text, [data, b"abc"])
    assert json.loads(b"".join(pieces)) == {
        "said": "nul \0 and \\u0000",
        "url": "data:image/png;base64," + base64.b64encode(data).decode(),
        "other": ["YWJj"],
        "end": 1,
    }
    assert base64_of(data) == base64.b64encode(data)


def test_no_hole_stays_open() -> None:
    """Fault: pictures that moved to each other's places, or one that is missing, without anybody noticing."""
    text = encode([hole(), hole()])
    for files in ([], [b"a"], [b"a"] * 3):
        with pytest.raises(AssertionError, match="each file has its hole"):
            list(filled(text, files))
