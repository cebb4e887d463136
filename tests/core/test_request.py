"""Requests as messages.

Fault pinned: a prompt's media, or what is said of them, is lost on the way to a stage.
"""

import msgspec

from omnistage.core.request import Media, OmniRequest, Prompt
from omnistage.core.spec import TensorSpec


def test_a_prompt_with_media_survives_the_way_to_a_stage() -> None:
    """Fault: raw samples arrive without their rate or shape, an encoded file with other bytes."""
    prompt = Prompt(
        messages=({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "media": 0}]},),
        media=(
            Media(kind="image", data=bytes(range(256)), where="messages[0].content[1].image_url.url"),
            Media(kind="audio", data=b"\x00" * 8, array=TensorSpec("float32", (2,)), rate=16000.0),
        ),
        mm_processor_kwargs={"use_audio_in_video": True},
    )
    request = OmniRequest(request_id="r", prompt=prompt, wants=("text",), stage_params={})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=OmniRequest) == request


def test_bytes_of_media_stand_in_no_text() -> None:
    """Fault: a log line, or the message of an error, holds a video."""
    prompt = Prompt(text="a", media=(Media(kind="video", data=b"x" * 10**6, where="messages[0]"),))
    assert len(repr(prompt)) < 500 and "1000000 bytes" in repr(prompt)


def test_a_prompt_of_text_has_no_media() -> None:
    """Fault: prompts share one dict of options."""
    first, second = Prompt(text="one"), Prompt(text="two")
    assert first.media == () and first.mm_processor_kwargs == {}
    assert first.mm_processor_kwargs is not second.mm_processor_kwargs
