"""Prompts with media, for a model that reads all kinds, some, or none. (What holds for text alone: test_admission.)

Faults pinned: media out of order or at another part's place; a kind that the model cannot read; parts that are half understood.
"""

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media, Prompt
from omnistage.engine.admission import Ask, admit
from omnistage.engine.media import MediaValue
from omnistage.engine.served import ServedModel
from tests.engine.models import EDITED, THINKER

OMNI = ServedModel("omni", (THINKER,), reads=("text", "image", "audio", "video"), max_media_nbytes=1000)
SEEING = ServedModel("seeing", (THINKER,), reads=("text", "image"))
DATA = base64.b64encode(b"RIFF....WAVE").decode()
PNG = "data:image/png;base64,YWJj"
AT = "messages[0].content[0]"


def prompt_of(value: object, model: ServedModel = OMNI) -> Prompt:
    return admit(model, Ask(value)).prompt


def said(*parts: object, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


def test_parts_keep_their_order_and_their_media() -> None:
    """Fault: pictures before words that were after them; the second picture at the first one's place."""
    prompt = prompt_of(
        {
            "messages": [
                {"role": "system", "content": "Look"},
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": PNG, "detail": "auto"}},
                        {"type": "text", "text": "and"},
                        {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
                        {"type": "video", "video": b"frames"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "cat"}]},
                {"role": "user", "content": [{"type": "audio_url", "audio_url": "data:audio/wav;base64,ZGVm"}]},
                {
                    "role": "user",
                    "content": [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,Z2hp"}}],
                },
                {"role": "user", "content": [{"type": "image", "image": b"p"}, {"type": "audio", "audio": b"s"}]},
            ]
        }
    )
    assert prompt.messages == (
        {"role": "system", "content": "Look"},
        {
            "role": "user",
            "content": [
                {"type": "image", "media": 0},
                {"type": "text", "text": "and"},
                {"type": "audio", "media": 1},
                {"type": "video", "media": 2},
            ],
        },
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": [{"type": "audio", "media": 3}]},
        {"role": "user", "content": [{"type": "video", "media": 4}]},
        {"role": "user", "content": [{"type": "image", "media": 5}, {"type": "audio", "media": 6}]},
    )
    assert prompt.media == (
        Media(kind="image", data=b"abc", where="messages[1].content[0].image_url.url"),
        Media(kind="audio", data=b"RIFF....WAVE", where="messages[1].content[2].input_audio.data"),
        Media(kind="video", data=b"frames", where="messages[1].content[3].video"),
        Media(kind="audio", data=b"def", where="messages[3].content[0].audio_url"),
        Media(kind="video", data=b"ghi", where="messages[4].content[0].video_url.url"),
        Media(kind="image", data=b"p", where="messages[5].content[0].image"),
        Media(kind="audio", data=b"s", where="messages[5].content[1].audio"),
    )


def test_media_beside_a_text_are_in_the_order_of_kinds() -> None:
    """Fault: the order of a dict's keys decides which placeholder means which picture; a video of frames becomes several."""
    pixels = np.zeros((1, 2, 3), np.uint8)
    prompt = prompt_of(
        {
            "prompt": "<v> <i> <i> <a>",
            "multi_modal_data": {
                "video": [pixels, pixels],
                "audio": (np.zeros(4, np.float32), 16000),
                "image": [b"one", pixels],
            },
            "mm_processor_kwargs": {"use_audio_in_video": True, "fps": 2.0},
        }
    )
    assert prompt.text == "<v> <i> <i> <a>" and prompt.mm_processor_kwargs == {"use_audio_in_video": True, "fps": 2.0}
    assert [(media.kind, media.where) for media in prompt.media] == [
        ("image", "multi_modal_data.image[0]"),
        ("image", "multi_modal_data.image[1]"),
        ("audio", "multi_modal_data.audio"),
        ("video", "multi_modal_data.video"),
    ]
    assert prompt.media[3].array is not None and prompt.media[3].array.shape == (2, 1, 2, 3)
    ids = prompt_of(
        {"prompt_token_ids": [1], "multi_modal_data": {"video": [b"one", b"two"], "image": None, "audio": []}}
    )
    assert [media.data for media in ids.media] == [b"one", b"two"]
    assert prompt_of({"prompt": "a", "multi_modal_data": None, "mm_processor_kwargs": None}) == Prompt(text="a")


def test_a_message_of_media_alone_is_a_prompt() -> None:
    """Fault: a spoken question without a written word is refused as blank."""
    assert prompt_of(said({"type": "audio", "audio": b"s"})).media[0].data == b"s"
    with pytest.raises(InvalidRequestError, match="some text"):
        prompt_of(said({"type": "text", "text": " "}))


@pytest.mark.parametrize(
    ("part", "field", "accepted"),
    [
        ({"type": "picture"}, f"{AT}.type", "text, image_url, audio_url, video_url, input_audio, image, audio, video"),
        ({"type": ["image"]}, f"{AT}.type", "text, image_url"),
        ({"type": "file", "file": {}}, f"{AT}.type", "as this model reads text, image, audio, video only"),
        ({"type": "image_url"}, f"{AT}.image_url", "a URL, or an object with url"),
        ({"type": "image_url", "image_url": {}}, f"{AT}.image_url", "a URL, or an object with url"),
        ({"type": "image_url", "image_url": {"url": 7}}, f"{AT}.image_url.url", "a URL"),
        ({"type": "image_url", "image_url": {"url": PNG, "uri": ""}}, f"{AT}.image_url.uri", "did you mean 'url'"),
        ({"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}, f"{AT}.image_url.detail", "auto"),
        ({"type": "audio_url", "audio_url": {"url": PNG, "detail": "auto"}}, f"{AT}.audio_url.detail", "url"),
        ({"type": "image_url", "image_url": PNG, "x": 1}, f"{AT}.x", "image_url, type"),
        ({"type": "image_url", "image_url": "https://host/a.png"}, f"{AT}.image_url", "a data: URL"),
        ({"type": "image_url", "image_url": "data:audio/wav;base64,YWJj"}, f"{AT}.image_url", "image/*"),
        ({"type": "input_audio", "input_audio": DATA}, f"{AT}.input_audio", "an object with data and format"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, f"{AT}.input_audio.data", "base64"),
        ({"type": "input_audio", "input_audio": {"data": DATA}}, f"{AT}.input_audio.format", "wav, mp3"),
        ({"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}}, f"{AT}.input_audio.format", "wav"),
        ({"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}, f"{AT}.input_audio.data", "RFC"),
        ({"type": "image"}, f"{AT}.image", "an image"),
        ({"type": "video", "video": None}, f"{AT}.video", "a video"),
        ({"type": "image", "image": b""}, f"{AT}.image", "an encoded image"),
        ({"type": "image", "image": b"x" * 1001}, f"{AT}.image", "at most 1000 bytes"),
        ({"type": "image", "image": [b"a", b"b"]}, f"{AT}.image", "a uint8 array"),
    ],
)
def test_a_part_that_cannot_be_read_is_refused_by_field(part: dict[str, Any], field: str, accepted: str) -> None:
    """Fault: half of a part is read and the rest ignored; the refusal names another one."""
    with pytest.raises(InvalidRequestError) as caught:
        prompt_of(said(part))
    assert caught.value.field == field
    assert accepted in caught.value.message


@pytest.mark.parametrize(
    ("value", "field", "accepted"),
    [
        ({"prompt": "a", "multi_modal_data": [b"x"]}, "multi_modal_data", "a dict of image, mask, audio and video"),
        ({"prompt": "a", "multi_modal_data": {"images": b"x"}}, "multi_modal_data.images", "did you mean 'image'"),
        ({"prompt": "a", "multi_modal_data": {"image": [b"x", 7]}}, "multi_modal_data.image[1]", "bytes of a file"),
        (said({"type": "text", "text": "a"}, multi_modal_data={"image": b"x"}), "multi_modal_data", "content parts"),
        ({"prompt": "a", "mm_processor_kwargs": 7}, "mm_processor_kwargs", "an object"),
        ({"prompt": "a", "mm_processor_kwargs": {7: 2}}, "mm_processor_kwargs", "names of options"),
        (
            {"prompt": "a", "mm_processor_kwargs": {"fps": object()}},
            "mm_processor_kwargs",
            "numbers of at most 64 bits",
        ),
        (
            {"prompt": "a", "mm_processor_kwargs": {"use_audio_in_video": 1}},
            "mm_processor_kwargs.use_audio_in_video",
            "true or false",
        ),
        ({"prompt": " ", "multi_modal_data": {"image": b"x"}}, "prompt", "not blank"),
    ],
)
def test_media_beside_a_prompt_that_cannot_be_read(value: object, field: str, accepted: str) -> None:
    """Fault: data for a kind that there is not are dropped without a word."""
    with pytest.raises(InvalidRequestError) as caught:
        prompt_of(value)
    assert caught.value.field == field
    assert accepted in caught.value.message


def test_a_model_takes_what_it_reads_and_no_more() -> None:
    """Fault: a model without ears is asked to listen."""
    assert prompt_of(said({"type": "image_url", "image_url": PNG}), SEEING).media[0].data == b"abc"
    sound = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
    for part in (sound, {"type": "video", "video": b"x"}):
        with pytest.raises(InvalidRequestError, match="text, image_url, image, as this model reads text, image only"):
            prompt_of(said(part), SEEING)
    with pytest.raises(
        InvalidRequestError,
        match=r"multi_modal_data.audio: the model 'seeing' cannot use it: it reads text, image only",
    ):
        prompt_of({"prompt": "a", "multi_modal_data": {"audio": b"x"}}, SEEING)
    with pytest.raises(InvalidRequestError, match="false, as this model reads text, image only"):
        prompt_of({"prompt": "a", "mm_processor_kwargs": {"use_audio_in_video": True}}, SEEING)


def test_a_mask_follows_the_pictures_and_belongs_to_one() -> None:
    """Fault: a mask is drawn as a picture, or is dropped where it masks nothing, or where the model knows none."""
    given = {"mask": b"mask", "image": [b"one", b"two"]}
    media = prompt_of({"prompt": "a", "multi_modal_data": given}, EDITED).media
    assert [(one.kind, one.data) for one in media] == [("image", b"one"), ("image", b"two"), ("mask", b"mask")]
    part = {"type": "mask", "mask": b"mask"}
    assert [one.kind for one in prompt_of(said(part, {"type": "image", "image": b"a"}), EDITED).media] == [
        "mask",
        "image",
    ]
    with pytest.raises(InvalidRequestError, match=r"multi_modal_data\.mask: there is no image that it could mask"):
        prompt_of({"prompt": "a", "multi_modal_data": {"mask": b"mask"}}, EDITED)
    with pytest.raises(InvalidRequestError, match=r"multi_modal_data.mask\[1\]: a second mask"):
        prompt_of({"prompt": "a", "multi_modal_data": {"mask": [b"a", b"b"], "image": b"c"}}, EDITED)
    with pytest.raises(InvalidRequestError, match=r"multi_modal_data\.mask: the model 'seeing' cannot use it"):
        prompt_of({"prompt": "a", "multi_modal_data": given}, SEEING)


def test_media_are_read_by_the_reader_that_comes_with_the_prompt() -> None:
    """Fault: admission opens or fetches something by itself."""
    asked: list[MediaValue] = []

    def reader(found: MediaValue) -> Media:
        asked.append(found)
        return Media(kind=found.kind, data=b"x" * 400, where=found.where)

    parts = [{"type": "image_url", "image_url": "https://host/a"}, {"type": "video_url", "video_url": "https://host/b"}]
    prompt = admit(OMNI, Ask(said(*parts), read_media=reader)).prompt
    assert [media.data for media in prompt.media] == [b"x" * 400] * 2
    assert [(found.kind, found.value, found.most_nbytes) for found in asked] == [
        ("image", "https://host/a", 1000),
        ("video", "https://host/b", 600),
    ]


_NAMES = ["type", "text", "image_url", "url", "detail", "input_audio", "data", "format", "video", "image", "audio", "content",
          "role", "messages", "multi_modal_data", "mm_processor_kwargs", "use_audio_in_video", "prompt", "x"]  # fmt: skip
_LEAVES = st.sampled_from(
    [None, True, 0, 1.5, "", "text", "user", "auto", "wav", PNG, DATA, "data:,", "https://a/b", *_NAMES]
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(_JSON, st.booleans())
def test_whatever_is_sent_is_read_or_refused_by_name(value: object, as_part: bool) -> None:
    """Fault: a shape that nobody thought of is a fault of the server's."""
    asked = said(value) if as_part else value
    named, message = [], ""
    try:
        named = [media.where for media in prompt_of(asked).media]
    except InvalidRequestError as refused:
        named, message = [refused.field or ""], refused.message
    assert all(named) and len(message) < 1000
