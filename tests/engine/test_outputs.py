"""Parts and whole outputs: joined parts equal the whole."""

import numpy as np

from omnistage.core.errors import ErrorInfo
from omnistage.core.output import OmniRequestOutput
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import Usage
from omnistage.engine.admission import Ask, admit
from omnistage.engine.outputs import failed_output, last_part, part_of, whole
from omnistage.runtime.base import ClientClosed, ClientItem
from tests.engine.models import DRAWN, SPOKEN


def item(kind: str, payload: MultimodalPayload, source: int = 0) -> OmniRequestOutput:
    return part_of(ClientItem("r", source, 0, kind, payload, False))


def test_text_joins_by_choice() -> None:
    """Fault: the choices of one request are mixed, or log probabilities are lost in joining."""
    entry = {"token_id": 1, "logprob": -0.5, "top": []}
    parts = [
        item(
            "text",
            MultimodalPayload(metadata={"choices": [{"text": "a", "token_ids": [1], "index": 1, "logprobs": [entry]}]}),
        ),
        item("text", MultimodalPayload(metadata={"choices": [{"text": "x", "index": 0}]})),
        item(
            "text",
            MultimodalPayload(
                metadata={"choices": [{"text": "b", "token_ids": [2], "index": 1, "finish_reason": "length"}]}
            ),
        ),
        last_part(SPOKEN, admit(SPOKEN, Ask("a", wants=("text",))), ClientClosed("r", "finished", reasons={0: "stop"})),
    ]
    joined = whole(parts)
    assert [(choice.index, choice.text, choice.token_ids) for choice in joined.outputs] == [
        (0, "x", ()),
        (1, "ab", (1, 2)),
    ]
    assert joined.outputs[1].finish_reason == "length"
    assert joined.outputs[1].logprobs == (entry,)
    assert joined.outputs[0].logprobs is None
    assert (joined.text, joined.finished, joined.finish_reason, joined.final_output_type) == ("x", True, "stop", "text")


def test_sound_joins_along_time_and_its_description_is_not_joined() -> None:
    """Fault: samples are lost at the borders, or the voice's name is written twice."""
    parts = [
        item(
            "audio",
            MultimodalPayload({"audio": Tensor.of(np.full(2, value, np.float32))}, {"sample_rate": 8000, "voice": "v"}),
            1,
        )
        for value in (0.1, 0.2)
    ]
    request = admit(SPOKEN, Ask("a"))
    closed = ClientClosed("r", "finished", None, {1: Usage(audio_seconds=0.5)}, {}, {0: "length"})
    joined = whole([*parts, last_part(SPOKEN, request, closed, {"attempts": 2})])
    assert joined.multimodal_output.numpy("audio").tolist() == np.array([0.1, 0.1, 0.2, 0.2], np.float32).tolist()
    assert joined.multimodal_output.metadata == {"sample_rate": 8000, "voice": "v"}
    assert (joined.stage_id, joined.final_output_type, joined.finish_reason) == (1, "audio", "length")
    assert joined.metrics["usage"][1]["audio_seconds"] == 0.5
    assert joined.metrics["attempts"] == 2


def picture(value: int, **metadata: object) -> OmniRequestOutput:
    return item("image", MultimodalPayload({"image": Tensor.of(np.full((2, 3, 3), value, np.uint8))}, metadata))


def test_pictures_are_arrays_in_the_order_of_their_index() -> None:
    """Fault: pictures come in the order in which they happened to end, on top of each other, or among them one on its way."""
    steps = item("image", MultimodalPayload(metadata={"progress": {"step": 1, "steps": 4, "index": 0}}))
    parts = [steps, picture(9, partial=0, index=1), picture(1, index=1, seed=8), picture(0, index=0, seed=7)]
    assert [len(part.images) for part in parts] == [0, 0, 1, 1]
    assert parts[0].multimodal_output.metadata["progress"]["step"] == 1
    assert parts[1].multimodal_output.numpy("image").max() == 9
    closed = ClientClosed("r", "finished", None, {0: Usage(images=2)}, {}, {0: "stop"})
    joined = whole([*parts, last_part(DRAWN, admit(DRAWN, Ask("a")), closed)])
    assert [(image.shape, int(image.max())) for image in joined.images] == [((2, 3, 3), 0), ((2, 3, 3), 1)]
    assert joined.multimodal_output == MultimodalPayload({}, {"seeds": [7, 8]})
    assert (joined.finished, joined.final_output_type, joined.metrics["usage"][0]["images"]) == (True, "image", 2)


def test_a_failed_output_says_why() -> None:
    """Fault: a prompt that failed looks like an empty answer."""
    output = failed_output("0", ErrorInfo("stage_failed", "broken", "speaker"))
    assert output.finished
    assert output.error == ErrorInfo("stage_failed", "broken", "speaker")
