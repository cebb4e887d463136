"""What the images endpoints read out of their fields."""

import json
from typing import Any

import httpx
import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.serve.pictures import PictureFormat
from omnistage.serve.protocol.images import (
    MOST_IMAGES,
    WITHOUT_MEANING,
    EditRequest,
    GenerationRequest,
    as_sent,
    as_url,
    drawing_fields,
    edit_request,
    picture_format,
    prompt_of,
)
from omnistage.serve.protocol.strict import parse


def generation(**fields: Any) -> GenerationRequest:
    return parse(GenerationRequest, json.dumps({"prompt": "a cat", **fields}).encode())


def edit(data: dict[str, Any], *files: tuple[str, bytes], most_nbytes: int = 1000) -> EditRequest:
    named = [(name, ("file", content)) for name, content in files]
    request = httpx.Request("POST", "http://test", data=data, files=named)
    return edit_request(request.headers["content-type"], request.read(), most_nbytes)


def test_every_field_has_its_name_in_the_engine() -> None:
    """Fault: a field is accepted and ignored, or width and height change places; 0 and "" read as nothing."""
    body = generation(
        n=2, size="640x480", seed=0, steps=7, guidance_scale=0, true_cfg_scale=0.0, negative_prompt="", partial_images=3,
        stream=True,
    )  # fmt: skip
    assert drawing_fields(body) == {
        "n": 2, "width": 640, "height": 480, "seed": 0, "num_inference_steps": 7, "guidance_scale": 0, "true_cfg_scale": 0.0,
        "negative_prompt": "", "partial_images": 3,
    }  # fmt: skip
    assert drawing_fields(generation(num_inference_steps=0, steps=None, size="auto")) == {"num_inference_steps": 0}
    nulls = dict.fromkeys(GenerationRequest.model_fields.keys() - {"prompt"})
    assert drawing_fields(generation(**nulls)) == {}
    assert picture_format(generation(**nulls)) == PictureFormat() and not as_url(generation(**nulls))
    assert generation(**dict.fromkeys(set(WITHOUT_MEANING) - {"input_fidelity"}, "x")).prompt == "a cat"


def test_a_form_says_the_same_as_json() -> None:
    """Fault: "2" is no number, a prompt of digits is one, or the order of pictures is lost."""
    data = {
        "prompt": "123", "n": "2", "seed": "0", "steps": "7", "guidance_scale": "0", "true_cfg_scale": "1.5", "stream": "true",
        "partial_images": "1", "negative_prompt": "null", "output_format": "webp", "output_compression": "50", "size": "64x32",
        "user": "7", "quality": "high", "input_fidelity": "high", "priority": "-1",
    }  # fmt: skip
    body = edit(data, ("image[]", b"one"), ("mask", b"mask"), ("image[]", b"two"))
    assert drawing_fields(body) == {
        "n": 2, "width": 64, "height": 32, "seed": 0, "num_inference_steps": 7, "guidance_scale": 0, "true_cfg_scale": 1.5,
        "negative_prompt": "null", "partial_images": 1,
    }  # fmt: skip
    assert (body.stream, body.priority, picture_format(body)) == (True, -1, PictureFormat("webp", 50))
    prompt = prompt_of(body)
    images, mask = prompt["multi_modal_data"]["image"], prompt["multi_modal_data"]["mask"]
    assert (prompt["prompt"], [(one.data, one.where) for one in images], (mask.kind, mask.data, mask.where)) == (
        "123",
        [(b"one", "image[0]"), (b"two", "image[1]")],
        ("mask", b"mask", "mask"),
    )
    [alone] = edit({"prompt": "a", "n": "null"}, ("image", b"one")).media
    assert (alone.where, drawing_fields(edit({"prompt": "a", "n": "null"}, ("image", b"one")))) == ("image", {})


@pytest.mark.parametrize(
    ("fields", "field", "accepted"),
    [
        ({"prompt": None}, "prompt", "a string that is not blank"),
        ({"size": "abc"}, "size", "WIDTHxHEIGHT in pixels, such as 1024x1024, or auto"),
        ({"size": "64X64"}, "size", "WIDTHxHEIGHT"),
        ({"size": "64x64 "}, "size", "WIDTHxHEIGHT"),
        ({"size": "-1x64"}, "size", "WIDTHxHEIGHT"),
        ({"size": "1" * 5000 + "x1"}, "size", "WIDTHxHEIGHT"),
        ({"size": 64}, "size", "WIDTHxHEIGHT"),
        ({"size": False}, "size", "WIDTHxHEIGHT"),
        ({"size": [64, 64]}, "size", "WIDTHxHEIGHT"),
        ({"steps": 5, "num_inference_steps": 6}, "steps", "the same as num_inference_steps"),
        ({"partial_images": 1}, "partial_images", "where stream is true"),
        ({"output_format": "gif"}, "output_format", "one of png, jpeg, webp"),
        ({"output_format": 0}, "output_format", "one of png, jpeg, webp"),
        ({"output_format": "webp", "output_compression": 101}, "output_compression", "an integer in [0, 100]"),
        ({"output_format": "webp", "output_compression": -1}, "output_compression", "an integer in [0, 100]"),
        ({"output_format": "webp", "output_compression": 50.0}, "output_compression", "an integer in [0, 100]"),
        ({"output_format": "webp", "output_compression": False}, "output_compression", "an integer in [0, 100]"),
        ({"output_compression": 0}, "output_compression", "100 for png"),
        ({"background": "transparent"}, "background", "one of auto, opaque, as this server"),
        ({"background": False}, "background", "one of auto, opaque"),
        ({"response_format": "file"}, "response_format", "one of b64_json, url"),
        ({"response_format": False}, "response_format", "one of b64_json, url"),
        ({"response_format": "url", "stream": True}, "response_format", "one of b64_json, as events"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(fields: dict[str, Any], field: str, accepted: str) -> None:
    """Fault: a wrong value is taken for a near one, or refused without saying what is right."""

    def read(body: GenerationRequest) -> object:
        return prompt_of(body), drawing_fields(body), picture_format(body), as_url(body)

    with pytest.raises(InvalidRequestError) as caught:
        read(generation(**fields))
    assert caught.value.field == field
    assert accepted in caught.value.message and len(caught.value.message) < 300


def test_a_quality_of_100_asks_for_nothing() -> None:
    """Fault: what OpenAI's clients send by default is refused; an explicit 0 is taken for the default."""
    assert picture_format(generation(output_compression=100)) == PictureFormat()
    assert picture_format(generation(output_format="jpeg", output_compression=0)) == PictureFormat("jpeg", 0)
    assert picture_format(generation(background="opaque")) == PictureFormat(opaque=True)


@pytest.mark.parametrize(
    ("data", "files", "field", "accepted"),
    [
        ({"prompt": "a"}, [], "image", "is missing"),
        ({"prompt": "a"}, [("imge", b"a")], "imge", "a file is not accepted"),
        ({"prompt": "a", "stpes": "7"}, [("image", b"a")], "stpes", "did you mean 'steps'"),
        ({"prompt": "a", "image[0]": "x"}, [("image", b"a")], "image[0]", "unknown field"),
        ({}, [("image", b"a")], "prompt", "is missing"),
        ({"prompt": ["a", "b"]}, [("image", b"a")], "prompt", "once"),
        ({"prompt": "a"}, [("image", b"a"), ("mask", b"b"), ("mask", b"c")], "mask", "once"),
        ({"prompt": "a"}, [("image", b"")], "image", "is empty"),
        ({"prompt": "a"}, [("image", b"a"), ("image", b"")], "image[1]", "is empty"),
        ({"prompt": "a"}, [("image", b"a"), ("mask", b"")], "mask", "is empty"),
        ({"prompt": "a"}, [("image[]", b"a")] * (MOST_IMAGES + 1), "image", "at most 16"),
        ({"prompt": "a"}, [("image", b"a" * 600), ("mask", b"a" * 600)], "image", "at most 1000 bytes"),
        ({"prompt": "a", "stream": "0"}, [("image", b"a")], "stream", "a valid boolean"),
        ({"prompt": "a", "stream": "yes"}, [("image", b"a")], "stream", "a valid boolean"),
    ],
)
def test_a_form_that_is_wrong_is_refused_by_name(
    data: dict[str, Any], files: list[tuple[str, bytes]], field: str, accepted: str
) -> None:
    """Fault: pictures beyond the bound are held; a misspelt field is dropped; a field that came twice counts once."""
    with pytest.raises(InvalidRequestError) as caught:
        edit(data, *(files or [("mask", b"x")]))
    assert caught.value.field == field
    assert accepted in caught.value.message


@pytest.mark.parametrize(
    ("field", "sent", "message"),
    [
        ("height", "size", "size: height: 481 is"),
        ("num_inference_steps", "steps", "steps: 481 is"),
        ("multi_modal_data", "image", "image: 481 is"),
        ("multi_modal_data.mask", "mask", "mask: 481 is"),
        ("seed", "seed", "seed: 481 is"),
    ],
)
def test_refusals_name_what_the_client_wrote(field: str, sent: str, message: str) -> None:
    """Fault: a client that sent a size is told of a height."""
    told = as_sent(generation(steps=481), InvalidRequestError.of(field, 481, "less"))
    assert (told.field, told.message.startswith(message)) == (sent, True)
    long = as_sent(generation(num_inference_steps=9), InvalidRequestError.of("num_inference_steps", 9, "less"))
    assert long.field == "num_inference_steps"
