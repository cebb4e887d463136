"""Pictures in OpenAI's shapes."""

import json

from omnistage.core.request import Usage
from omnistage.serve.coding import filled
from omnistage.serve.render.images import (
    ImageFrame,
    ShownPicture,
    completed_event,
    images_object,
    partial_event,
    size_of,
    usage_object,
)
from omnistage.serve.render.sse import encode

FRAME = ImageFrame("image_edit", 100, "webp", "opaque")
SHOWN = ShownPicture("3x2", 4)
FILE = b"\x00\x0f\xbf"
SHARED = {"background": "opaque", "output_format": "webp", "quality": "auto", "size": "3x2"}
USED = {
    "input_tokens": 3,
    "input_tokens_details": {"text_tokens": 3, "image_tokens": 0},
    "output_tokens": 4,
    "total_tokens": 7,
}
USAGE = Usage(prompt_tokens=3, completion_tokens=4, images=1)


def read(data: bytes) -> dict[str, object]:
    """The event's value; its name must be its type."""
    name, value, end = b"".join(filled(data, [FILE])).decode().split("\n", 2)
    event = json.loads(value.removeprefix("data: "))
    assert (name, end) == (f"event: {event['type']}", "\n")
    return dict(event)


def test_a_whole_reply_names_what_it_holds() -> None:
    """Fault: a data: URL stands where base64 is looked for, or the base64 is escaped."""
    for url, shown in ((False, {"b64_json": "AA+/"}), (True, {"url": "data:image/webp;base64,AA+/"})):
        text = encode(images_object(FRAME, [SHOWN, SHOWN], USAGE, url=url))
        reply = json.loads(b"".join(filled(text, [FILE, FILE])))
        assert reply == {"created": 100, "data": [shown] * 2, **SHARED, "usage": USED}
    assert images_object(FRAME, [], USAGE)["data"] == []
    assert (usage_object(USAGE), size_of((2, 3, 4))) == (USED, "3x2")


def test_events_tell_a_picture_on_its_way_from_a_whole_one() -> None:
    """Fault: official clients cannot tell what came, or of which of several pictures."""
    shared = {"b64_json": "AA+/", "created_at": 100, "index": 4, **SHARED}
    assert read(partial_event(FRAME, SHOWN, 2)) == {
        "type": "image_edit.partial_image",
        "partial_image_index": 2,
        **shared,
    }
    assert read(completed_event(FRAME, SHOWN, USAGE)) == {"type": "image_edit.completed", "usage": USED, **shared}
    assert read(completed_event(FRAME, SHOWN, None))["usage"] is None
