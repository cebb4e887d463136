"""The images endpoints in the process: whole and streamed pictures, edits, and every way to ask for something wrong."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omnistage.core.errors import ErrorInfo
from omnistage.core.params import DiffusionParams
from omnistage.engine.served import ServedModel
from omnistage.serve import pictures
from omnistage.serve.routes import images as images_route
from tests.engine.models import DRAWN, EDITED, ILLUSTRATED, SPOKEN
from tests.fakes_runtime import FakeRuntime
from tests.runtime.harness import eventually
from tests.serve.files import opened, picture_file
from tests.serve.live import ask_and_leave, client_of, live, serving_of

GENERATIONS, EDITS, CHAT = "/v1/images/generations", "/v1/images/edits", "/v1/chat/completions"


async def ask(body: dict[str, Any], runtime: FakeRuntime | None = None, model: ServedModel = DRAWN) -> httpx.Response:
    async with client_of(serving_of(runtime or FakeRuntime(), model)) as client:
        return await client.post(GENERATIONS, content=json.dumps({"prompt": "a cat", **body}))


async def edit(
    data: dict[str, Any],
    files: list[tuple[str, tuple[str, bytes]]],
    runtime: FakeRuntime | None = None,
    model: ServedModel = EDITED,
) -> httpx.Response:
    async with client_of(serving_of(runtime or FakeRuntime(), model)) as client:
        return await client.post(EDITS, data={"prompt": "a dog", **data}, files=files)


def file(name: str, data: bytes) -> tuple[str, tuple[str, bytes]]:
    return name, ("a.png", data)


def drawing(runtime: FakeRuntime) -> DiffusionParams:
    [request] = runtime.submitted
    params = request.stage_params[max(request.stage_params)]
    assert isinstance(params, DiffusionParams)
    return params


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(event.split("data: ", 1)[1]) for event in response.text.split("\n\n") if event]


async def test_a_picture_comes_as_it_was_drawn() -> None:
    """Fault: channels, sides or bits are lost between the stage and the client."""
    runtime = FakeRuntime()
    response = await ask(
        {"size": "640x480", "steps": 7, "seed": 0, "guidance_scale": 0, "negative_prompt": ""}, runtime
    )
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    reply = response.json()
    [one] = reply["data"]
    picture = opened(base64.b64decode(one["b64_json"]))
    assert (picture.format, picture.size, reply["size"], reply["output_format"]) == ("PNG", (3, 2), "3x2", "png")
    assert np.asarray(picture).max() == 0 and reply["usage"]["input_tokens"] == 3
    assert drawing(runtime) == DiffusionParams(
        width=640, height=480, num_inference_steps=7, seed=0, guidance_scale=0.0, negative_prompt=""
    )
    [request] = runtime.submitted
    assert (request.wants, request.prompt.text, request.stream) == (("image",), "a cat", False)


async def test_pictures_come_in_the_order_of_their_seeds_and_in_the_form_that_was_asked_for() -> None:
    """Fault: pictures come as they ended; a data: URL names another format than it holds."""
    reply = (await ask({"n": 3, "response_format": "url", "output_format": "webp", "background": "opaque"})).json()
    heads, data = zip(*(one["url"].split(",") for one in reply["data"]), strict=True)
    assert set(heads) == {"data:image/webp;base64"} and reply["background"] == "opaque"
    shown = [opened(base64.b64decode(text)) for text in data]
    assert [picture.format for picture in shown] == ["WEBP"] * 3
    assert [round(float(np.asarray(picture.convert("RGB")).mean())) for picture in shown] == [0, 1, 2]


async def test_a_stage_that_draws_after_another_is_asked_alone() -> None:
    """Fault: the number of pictures goes to the stage that writes, whose text is then waited for."""
    runtime = FakeRuntime()
    assert len((await ask({"n": 2}, runtime, ILLUSTRATED)).json()["data"]) == 2
    [request] = runtime.submitted
    assert (drawing(runtime).n, getattr(request.stage_params[0], "n"), request.wants) == (2, 1, ("image",))  # noqa: B009


async def test_a_stream_has_partial_pictures_and_the_usage_at_its_end() -> None:
    """Fault: progress becomes events that clients cannot read; a whole picture looks like one on its way; no usage."""
    response = await ask({"stream": True, "partial_images": 2, "n": 2, "seed": 5})
    assert response.text.startswith("event: image_generation.partial_image\ndata: {")
    told = events(response)
    kinds = [(one["type"].partition(".")[2], one["index"], one.get("partial_image_index")) for one in told]
    assert kinds == [
        ("partial_image", 1, 0),
        ("partial_image", 0, 0),
        ("partial_image", 1, 1),
        ("completed", 1, None),
        ("partial_image", 0, 1),
        ("completed", 0, None),
    ]
    assert [one.get("usage") and one["usage"]["total_tokens"] for one in told if "usage" in one] == [None, 5]
    shades = [int(np.asarray(opened(base64.b64decode(one["b64_json"]))).max()) for one in told]
    assert shades == [100, 100, 101, 1, 101, 0]
    [only] = events(await ask({"stream": True}))
    assert (only["type"], only["size"], only["output_format"]) == ("image_generation.completed", "3x2", "png")


async def test_a_failure_in_mid_stream_is_one_event() -> None:
    """Fault: a stream that ends as if it were whole, or a refusal in the engine's words."""
    runtime = FakeRuntime()
    runtime.error = ErrorInfo("invalid_request", "height: 481 is not accepted; accepted: 480", field="height")
    *_, last = events(await ask({"stream": True, "size": "640x481", "partial_images": 1}, runtime))
    assert last["error"]["message"] == "size: height: 481 is not accepted; accepted: 480"
    assert (last["error"]["param"], last["error"]["code"]) == ("size", "invalid_request")


async def test_what_a_stage_refuses_is_a_400_that_names_what_was_sent() -> None:
    """Fault: a size that the model cannot draw is a fault of the server, or of a field that nobody sent."""
    runtime = FakeRuntime()
    runtime.error = ErrorInfo("invalid_request", "height: 481 is not accepted; accepted: 480", field="height")
    response = await ask({"size": "700x481"}, runtime)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "size")


@pytest.mark.parametrize(
    ("body", "field", "accepted"),
    [
        ({"size": "100000x100000"}, "size", "[1, 16384]"),
        ({"size": "0x64"}, "size", "[1, 16384]"),
        ({"size": "abc"}, "size", "WIDTHxHEIGHT"),
        ({"size": False}, "size", "WIDTHxHEIGHT"),
        ({"steps": 0}, "steps", "[1, 1000]"),
        ({"steps": -1}, "steps", "[1, 1000]"),
        ({"steps": 10**9}, "steps", "[1, 1000]"),
        ({"steps": 1e9}, "steps", "an integer"),
        ({"steps": False}, "steps", "an integer"),
        ({"num_inference_steps": 0}, "num_inference_steps", "[1, 1000]"),
        ({"n": 0}, "n", "[1, 10]"),
        ({"n": 11}, "n", "[1, 10]"),
        ({"n": False}, "n", "an integer"),
        ({"n": "2"}, "n", "an integer"),
        ({"seed": 2**70}, "seed", "[0, 18446744073709551615]"),
        ({"seed": -1}, "seed", "[0, 18446744073709551615]"),
        ({"seed": False}, "seed", "an integer"),
        ({"guidance_scale": -1}, "guidance_scale", "[0.0, 1000.0]"),
        ({"guidance_scale": False}, "guidance_scale", "a number"),
        ({"true_cfg_scale": 1e9}, "true_cfg_scale", "[0.0, 1000.0]"),
        ({"negative_prompt": False}, "negative_prompt", "a text or null"),
        ({"negative_prompt": 0}, "negative_prompt", "a text or null"),
        ({"stream": True, "partial_images": 4}, "partial_images", "[0, 3]"),
        ({"stream": True, "partial_images": False}, "partial_images", "an integer"),
        ({"stream": 0}, "stream", "a valid boolean"),
        ({"priority": False}, "priority", "an integer"),
        ({"prompt": ""}, "prompt", "not blank"),
        ({"prompt": None}, "prompt", "not blank"),
        ({"prompt": False}, "prompt", "not blank"),
        ({"prompt": ["a"]}, "prompt", "not blank"),
        ({"prompt": "\ud800"}, "prompt", "Unicode"),
        ({"model": 0}, "model", "a valid string"),
        ({"output_format": False}, "output_format", "png, jpeg, webp"),
        ({"output_format": "webp", "output_compression": False}, "output_compression", "[0, 100]"),
        ({"numinference_steps": 4}, "numinference_steps", "did you mean 'num_inference_steps'"),
        ({"image": "data:image/png;base64,AA"}, "image", "unknown field"),
    ],
)
async def test_bad_input_is_refused_before_anything_begins(body: dict[str, Any], field: str, accepted: str) -> None:
    """Fault: a size of gigapixels reaches a stage; 0 or false read as the default; a misspelt field is dropped."""
    runtime = FakeRuntime()
    response = await ask(body, runtime)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["type"], accepted in error["message"]) == (field, "invalid_request_error", True), (
        error
    )
    assert runtime.submitted == []


@pytest.mark.parametrize("edited", [False, True], ids=["drawn", "edited"])
async def test_an_explicit_nothing_means_that(edited: bool) -> None:
    """Fault: a 0, a false or an empty text that is legal is taken for the default, or refused."""
    nothing = {
        "seed": 0,
        "guidance_scale": 0,
        "true_cfg_scale": 0,
        "partial_images": 0,
        "output_compression": 0,
        "priority": 0,
    }
    said = {**nothing, "stream": False, "negative_prompt": "", "output_format": "jpeg"}
    runtime = FakeRuntime()
    if edited:
        form = {name: value if isinstance(value, str) else json.dumps(value) for name, value in said.items()}
        response = await edit(form, [file("image", picture_file())], runtime)
    else:
        response = await ask(said, runtime)
    assert response.status_code == 200, response.text
    assert (response.headers["content-type"], response.json()["output_format"]) == ("application/json", "jpeg")
    drawn = drawing(runtime)
    assert (drawn.seed, drawn.guidance_scale, drawn.true_cfg_scale) == (0, 0.0, 0.0)
    assert (drawn.negative_prompt, drawn.partial_images) == ("", 0)


async def test_seeds_go_on_from_the_last_one_to_the_first() -> None:
    """Fault: a 500, or a refusal, for a seed that is legal with more than one picture."""
    runtime = FakeRuntime()
    assert len((await ask({"seed": 2**64 - 1, "n": 2}, runtime)).json()["data"]) == 2
    assert (drawing(runtime).seed, drawing(runtime).n) == (2**64 - 1, 2)


async def test_a_null_is_a_field_that_was_not_sent() -> None:
    """Fault: a client that writes all of its fields is refused."""
    names = (
        "n",
        "size",
        "seed",
        "steps",
        "guidance_scale",
        "stream",
        "output_format",
        "response_format",
        "background",
        "model",
    )
    runtime = FakeRuntime()
    response = await ask(dict.fromkeys(names), runtime)
    assert response.status_code == 200
    assert drawing(runtime).num_inference_steps == 4


async def test_an_edit_shows_the_model_its_pictures_and_the_mask() -> None:
    """Fault: pictures in another order, a mask among them, or the pictures of one request in the record of another."""
    first, second, mask = picture_file(), picture_file(4, 4, "JPEG"), picture_file(mode="RGBA")
    runtime = FakeRuntime()
    files = [file("image[]", first), file("mask", mask), file("image[]", second)]
    response = await edit({"n": "2", "stream": "true"}, files, runtime)
    assert [one["type"] for one in events(response)] == ["image_edit.completed"] * 2
    [request] = runtime.submitted
    assert [(one.kind, one.data, one.where) for one in request.prompt.media] == [
        ("image", first, "image[0]"),
        ("image", second, "image[1]"),
        ("mask", mask, "mask"),
    ]
    assert (request.prompt.text, drawing(runtime).n) == ("a dog", 2)


@pytest.mark.parametrize(
    ("data", "files", "model", "field", "accepted"),
    [
        ({}, [file("image", picture_file()), file("mask", picture_file(4, 4, mode="RGBA"))], EDITED, "mask", "8x6"),
        ({}, [file("image", picture_file()), file("mask", picture_file())], EDITED, "mask", "seen through"),
        ({}, [file("image", picture_file()[:-30])], EDITED, "image", "a whole picture (PNG, JPEG, WEBP)"),
        ({}, [file("image[]", picture_file()), file("image[]", b"<svg/>")], EDITED, "image[1]", "a whole picture"),
        *[
            ({}, [file("image", picture_file(form=form))], EDITED, "image", "a whole picture (PNG, JPEG, WEBP)")
            for form in ("GIF", "BMP", "TIFF", "PPM")
        ],
        (
            {},
            [file("image", picture_file()), file("mask", picture_file(form="GIF"))],
            EDITED,
            "mask",
            "a whole picture",
        ),
        ({"image_url": "http://a/b.png"}, [file("image", picture_file())], EDITED, "image_url", "did you mean 'image'"),
        ({}, [file("image", picture_file())], DRAWN, "image", "reads text only"),
        ({}, [file("image", picture_file())] * 17, EDITED, "image", "at most 16"),
        ({}, [file("mask", picture_file(mode="RGBA"))], EDITED, "image", "is missing"),
        ({"n": "0"}, [file("image", picture_file())], EDITED, "n", "[1, 10]"),
        ({"n": "false"}, [file("image", picture_file())], EDITED, "n", "an integer"),
        ({"n": ""}, [file("image", picture_file())], EDITED, "n", "an integer"),
        ({"steps": "1e9"}, [file("image", picture_file())], EDITED, "steps", "an integer"),
        ({"seed": str(2**70)}, [file("image", picture_file())], EDITED, "seed", "[0, 18446744073709551615]"),
        ({"guidance_scale": "nan"}, [file("image", picture_file())], EDITED, "guidance_scale", "a number"),
        ({"guidance_scale": "NaN"}, [file("image", picture_file())], EDITED, "guidance_scale", "[0.0, 1000.0]"),
        ({"size": "100000x100000"}, [file("image", picture_file())], EDITED, "size", "[1, 16384]"),
        ({"maks": "x"}, [file("image", picture_file())], EDITED, "maks", "did you mean 'mask'"),
    ],
)
async def test_a_bad_edit_is_refused_before_anything_begins(
    data: dict[str, Any], files: list[tuple[str, tuple[str, bytes]]], model: ServedModel, field: str, accepted: str
) -> None:
    """Fault: what is no picture reaches a stage, or a refusal does not say which file it means."""
    runtime = FakeRuntime()
    response = await edit(data, files, runtime, model)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], accepted in error["message"]) == (field, True), error
    assert runtime.submitted == []


async def test_a_model_that_draws_nothing_is_a_501_and_another_one_a_404() -> None:
    """Fault: a model that speaks fails at drawing, or a typo in its name draws."""
    runtime = FakeRuntime()
    response = await ask({"n": 0}, runtime, SPOKEN)
    assert (response.status_code, response.json()["error"]["code"]) == (501, "unsupported")
    assert "it makes text, audio, and no image" in response.json()["error"]["message"]
    assert (await edit({}, [file("image", picture_file())], runtime, SPOKEN)).status_code == 501
    assert (await ask({"model": "other"}, runtime)).status_code == 404
    assert runtime.submitted == []


async def test_a_large_form_is_not_held() -> None:
    """Fault: what will be refused is read to its end."""
    response = await edit({}, [file("image", bytes(30_000))])
    assert (response.status_code, response.json()["error"]["code"]) == (413, "payload_too_large")


async def test_no_picture_is_encoded_and_no_form_read_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: everybody waits while one picture is encoded, or the files of one form are read."""
    threads: dict[str, set[bool]] = {}

    def watch(module: Any, name: str) -> None:
        work = getattr(module, name)

        def watched(*words: Any, **more: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return work(*words, **more)

        monkeypatch.setattr(module, name, watched)

    watch(pictures, "encoded")
    watch(pictures, "_size")
    watch(images_route, "edit_request")
    await ask({"n": 2})
    await ask({"stream": True, "partial_images": 1})
    await edit({}, [file("image", picture_file())])
    async with client_of(serving_of(FakeRuntime(), DRAWN)) as client:
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "a cat"}], "modalities": ["image"], "stream": stream}
            assert (await client.post(CHAT, json=body)).status_code == 200
    assert threads == {"encoded": {False}, "_size": {False}, "edit_request": {False}}


async def test_a_chat_answers_with_pictures() -> None:
    """Fault: a chat that was asked for a picture answers without one, or shows it on its way."""
    runtime = FakeRuntime()
    body = {"messages": [{"role": "user", "content": "Draw a cat"}], "modalities": ["text", "image"]}
    async with client_of(serving_of(runtime, ILLUSTRATED)) as client:
        whole = (await client.post(CHAT, json=body)).json()["choices"][0]["message"]
        streamed = await client.post(
            CHAT, json={**body, "stream": True, "sampling_params_list": [None, {"partial_images": 2}]}
        )
        text = await client.post(CHAT, json={**body, "modalities": ["text"]})
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in streamed.text.split("\n\n") if "{" in line]
    [part] = [part for delta in deltas for part in delta.get("images", ())]
    assert whole["images"] == [part] and whole["content"] == "Hello world."
    head, data = part["image_url"]["url"].split(",")
    assert (part["type"], head, opened(base64.b64decode(data)).size) == ("image_url", "data:image/png;base64", (3, 2))
    assert "images" not in text.json()["choices"][0]["message"]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """The official client of a server that edits."""
    with (
        live(serving_of(FakeRuntime(), EDITED)) as base,
        openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=10) as one,
    ):
        yield one


def test_the_official_client_draws(client: openai.OpenAI) -> None:
    """Fault: OpenAI's client cannot read a reply or an event, or what it sends is not read."""
    reply = client.images.generate(
        model="editor", prompt="a cat", n=2, size="1024x1024", quality="high", style="vivid", user="someone", moderation="low",
        extra_body={"steps": 4, "seed": 1},
    )  # fmt: skip
    assert reply.data is not None and reply.usage is not None
    assert [opened(base64.b64decode(one.b64_json or "")).size for one in reply.data] == [(3, 2)] * 2
    assert (reply.size, reply.output_format, reply.usage.total_tokens) == ("3x2", "png", 5)
    stream = client.images.generate(model="editor", prompt="a cat", stream=True, partial_images=2, output_format="jpeg")
    told = list(stream)
    assert [event.type for event in told] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert opened(base64.b64decode(told[0].b64_json)).format == "JPEG"
    assert told[-1].type == "image_generation.completed" and told[-1].usage.total_tokens == 5
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.generate(model="editor", prompt="a cat", size="100000x100000")
    assert caught.value.param == "size"


def test_the_official_client_edits(client: openai.OpenAI) -> None:
    """Fault: the forms of OpenAI's client are not read: one file, several, a mask, numbers as texts."""
    one, other, mask = picture_file(), picture_file(4, 4), picture_file(mode="RGBA")
    for image in (one, [one, other]):
        reply = client.images.edit(model="editor", image=image, mask=mask, prompt="a dog", n=2, output_format="webp")
        assert reply.data is not None
        assert [opened(base64.b64decode(shown.b64_json or "")).format for shown in reply.data] == ["WEBP"] * 2
    told = list(client.images.edit(model="editor", image=one, prompt="a dog", stream=True, partial_images=1))
    assert [event.type for event in told] == ["image_edit.partial_image", "image_edit.completed"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.edit(model="editor", image=other, mask=mask, prompt="a dog")
    assert caught.value.param == "mask"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_ends_its_request(streamed: bool) -> None:
    """Fault: the stages go on drawing for nobody."""
    runtime = FakeRuntime()
    runtime.gate.clear()
    with live(serving_of(runtime, DRAWN)) as base:
        ask_and_leave(base, GENERATIONS, {"prompt": "a cat", "stream": streamed}, runtime)
        assert eventually(lambda: bool(runtime.aborted))
        assert list(runtime.aborted) == [runtime.submitted[0].request_id], "the end of a server aborts everything"


async def test_the_server_answers_while_it_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: /health waits for a picture that is being encoded."""
    encoding, answered = threading.Event(), threading.Event()
    work = pictures.encoded

    def slow(*words: Any) -> bytes:
        encoding.set()
        answered.wait(5)
        return work(*words)

    monkeypatch.setattr(pictures, "encoded", slow)
    async with client_of(serving_of(FakeRuntime(), DRAWN)) as client:
        drawing = asyncio.create_task(client.post(GENERATIONS, json={"prompt": "a cat"}))
        assert await asyncio.to_thread(encoding.wait, 5)
        assert (await client.get("/health")).status_code == 200 and not drawing.done()
        answered.set()
        assert (await drawing).status_code == 200
