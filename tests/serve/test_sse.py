"""Events as bytes."""

import json

from omnistage.serve.render.sse import DONE, event


def test_any_text_stays_within_its_event() -> None:
    """Fault: a line break, a quote or a character outside ASCII ends an event early or is lost."""
    text = 'a\n\ndata: "é\u2028\x00'
    data = event({"text": text})
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    assert json.loads(data[6:])["text"] == text
    assert DONE == b"data: [DONE]\n\n"
