"""What is admitted and what is refused, and how a refusal reads. A trace is: what was asked, what stands in the request."""

from dataclasses import replace
from typing import Any

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams, GenerationParams, SamplingParams
from omnistage.core.request import OmniRequest
from omnistage.engine.admission import Ask, admit
from tests.engine.models import DRAWN, ILLUSTRATED, SPOKEN, WRITTEN

CHAT = [{"role": "user", "content": "Hi"}]


def sampling(request: OmniRequest) -> SamplingParams:
    params = request.stage_params[0]
    assert isinstance(params, SamplingParams)
    return params


def speech(request: OmniRequest) -> GenerationParams:
    params = request.stage_params[1]
    assert isinstance(params, GenerationParams)
    return params


def test_the_three_forms_of_a_prompt() -> None:
    """Fault: a form of prompt is read as another, or refused."""
    assert admit(SPOKEN, Ask("Hi")).prompt.text == "Hi"
    assert admit(SPOKEN, Ask(CHAT)).prompt.messages == ({"role": "user", "content": "Hi"},)
    assert admit(SPOKEN, Ask({"messages": CHAT})).prompt.messages == ({"role": "user", "content": "Hi"},)
    assert admit(SPOKEN, Ask({"prompt_token_ids": [5, 6]})).prompt.token_ids == (5, 6)
    given = admit(SPOKEN, Ask({"prompt": "Hi", "modalities": ["audio"], "additional_information": {"a": 1}}))
    assert (given.prompt.text, given.wants, given.prompt.additional_information) == ("Hi", ("audio",), {"a": 1})


def test_text_parts_are_joined_and_roles_are_kept() -> None:
    """Fault: content parts of an official client are refused, or their order is lost."""
    messages = [
        {"role": "developer", "content": "Be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "audio": {"id": "audio_1", "transcript": "c"}},
        {"role": "assistant", "content": None, "refusal": "d"},
        {"role": "user", "content": "e", "name": "me"},
    ]
    read = admit(SPOKEN, Ask(messages)).prompt.messages
    assert read is not None
    assert [(message["role"], message["content"]) for message in read] == [
        ("system", "Be brief"),
        ("user", "ab"),
        ("assistant", "c"),
        ("assistant", "d"),
        ("user", "e"),
    ]


def drawing(request: OmniRequest, stage_id: int = 1) -> DiffusionParams:
    params = request.stage_params[stage_id]
    assert isinstance(params, DiffusionParams)
    return params


def test_what_a_prompt_says_of_its_picture_wins_for_it_alone() -> None:
    """Fault: the size of one prompt is that of all, or is dropped, or an explicit "" reads as nothing said."""
    said = {"prompt": "a cat", "height": 64, "width": 32, "negative_prompt": ""}
    params = drawing(admit(DRAWN, Ask(said, fields={"height": 16, "seed": 3})), 0)
    assert (params.height, params.width, params.negative_prompt, params.num_inference_steps) == (64, 32, "", 4)
    assert drawing(admit(DRAWN, Ask({"prompt": "a", "height": None}, fields={"height": 16})), 0).height == 16
    for wrong, accepted in (({"height": 0}, r"\[1, 16384\]"), ({"width": "9"}, "an integer or null")):
        with pytest.raises(InvalidRequestError, match=f"{next(iter(wrong))}: .* accepted: .*{accepted}"):
            admit(DRAWN, Ask({"prompt": "a", **wrong}))


def test_a_field_goes_to_the_maker_that_is_named() -> None:
    """Fault: four pictures are asked for, and the thinker writes four answers."""
    drawn = admit(ILLUSTRATED, Ask("a cat", fields={"n": 4, "temperature": 0}, fields_of="image", wants=("image",)))
    assert (drawing(drawn).n, sampling(drawn).n, sampling(drawn).temperature) == (4, 1, 0)
    written = admit(ILLUSTRATED, Ask("a cat", fields={"n": 4}, wants=("text",)))
    assert (drawing(written).n, sampling(written).n) == (1, 4)


@pytest.mark.parametrize(
    ("prompt", "field", "said"),
    [
        ("", "prompt", "not blank"),
        ("  \n", "prompt", "not blank"),
        (7, "prompt", "a string, a list of chat messages, or a dict"),
        ([], "prompt", "a string, a list of chat messages, or a dict"),
        ({"prompt": 7}, "prompt", "not blank"),
        ({}, "prompt", "exactly one of"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompt", "exactly one of"),
        ({"prompt_token_ids": []}, "prompt_token_ids", "not empty"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids", "integers in"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids", "integers in"),
        ({"promt": "a"}, "promt", "did you mean 'prompt'"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "multi_modal_data", "cannot use it"),
        ({"prompt": "a", "height": 64}, "height", "cannot use it"),
        ({"prompt": "a", "additional_information": "x"}, "additional_information", "a dict"),
        ({"prompt": "a", "additional_information": {"x": object()}}, "additional_information", "at most 64 bits"),
        ({"prompt": "a", "additional_information": {"x": 2**70}}, "additional_information", "at most 64 bits"),
        ({"prompt": "a", "additional_information": {"x": "\ud800"}}, "additional_information", "Unicode text"),
        ("a \udcff", "prompt", "Unicode text"),
        ([{"role": "user", "content": "a \ud800"}], "messages", "Unicode text"),
        ({"messages": []}, "messages", "not empty"),
        ({"messages": "Hi"}, "messages", "not empty"),
        ({"messages": ["Hi"]}, "messages[0]", "role and content"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages", "some text"),
        ([{"role": "king", "content": "Hi"}], "messages[0].role", "one of system"),
        ([{"role": "user"}], "messages[0].content", "a string or a list"),
        ([{"role": "user", "content": []}], "messages[0].content", "a string or a list"),
        ([{"role": "user", "content": "a", "contnt": 1}], "messages[0].contnt", "did you mean"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls", "not served"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]", "an object with a type"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text", "a string"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}],
            "messages[0].content[0].x",
            "accepted",
        ),
        ([{"role": "user", "content": [{"type": "picture"}]}], "messages[0].content[0].type", "text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
            "messages[0].content[0].type",
            "this model reads text only",
        ),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_by_field(prompt: object, field: str, said: str) -> None:
    """Fault: a bad prompt is accepted, or the refusal does not say which part of it and what would be right."""
    with pytest.raises(InvalidRequestError) as caught:
        admit(SPOKEN, Ask(prompt))
    assert caught.value.field == field
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("asked", "wants"), [(None, ("text", "audio")), (["audio", "text"], ("text", "audio")), (["text"], ("text",))]
)
def test_modalities_come_in_the_order_of_the_pipeline(asked: object, wants: tuple[str, ...]) -> None:
    """Fault: the order in which a caller lists modalities changes the answer."""
    assert admit(SPOKEN, Ask({"prompt": "a", "modalities": asked})).wants == wants


def test_some_modalities_are_made_only_for_whoever_asks() -> None:
    """Fault: every answer comes with a picture that nobody asked for, or none can be asked for."""
    model = replace(ILLUSTRATED, default_modalities=("text",))
    assert admit(ILLUSTRATED, Ask("a")).wants == ("text", "image")
    assert admit(model, Ask("a")).wants == ("text",)
    assert admit(model, Ask({"prompt": "a", "modalities": ["image"]})).wants == ("image",)


@pytest.mark.parametrize("asked", [[], ["video"], ["smell", "text"], "text", [1], {}])
def test_modalities_the_model_does_not_make_are_refused_with_the_list(asked: object) -> None:
    """Fault: an unknown or empty selection is answered with something else."""
    with pytest.raises(InvalidRequestError, match=r"modalities: .* accepted: a list of one or more of text, audio"):
        admit(SPOKEN, Ask({"prompt": "a", "modalities": asked}))


def test_what_a_call_says_overlays_the_defaults_and_constraints_win() -> None:
    """Fault: precedence. defaults < fields < the stage's entry < constraints; stop ids of both sides hold."""
    ask = Ask(
        "a", [{"top_k": 5, "stop_token_ids": [9]}], {"temperature": 0.0, "top_k": 3, "voice": "echo", "speed": 2.0}
    )
    request = admit(SPOKEN, ask)
    params = sampling(request)
    assert (params.max_tokens, params.temperature, params.top_k, params.stop_token_ids) == (64, 0.0, 5, (2, 9))
    assert (speech(request).voice, speech(request).speed) == ("am_michael", 2.0)


def test_an_object_says_every_field_but_those_that_are_none() -> None:
    """Fault: SamplingParams(temperature=1.0) is taken as silent because 1.0 is also the class's default."""
    params = sampling(admit(SPOKEN, Ask("a", [SamplingParams(temperature=1.0, stop=("x",))])))
    assert (params.temperature, params.max_tokens, params.stop) == (1.0, 64, ("x",))
    assert sampling(admit(SPOKEN, Ask("a", SamplingParams(top_k=7)))).top_k == 7
    assert speech(admit(SPOKEN, Ask("a", [None, GenerationParams(voice="alloy")]))).voice == "af_heart"


def test_one_seed_makes_the_whole_answer_repeatable() -> None:
    """Fault: an explicit seed 0 is taken as absent, or one stage stays unseeded."""
    for ask in (Ask("a", fields={"seed": 0}), Ask("a", [{"seed": 0}])):
        request = admit(SPOKEN, ask)
        assert [params.seed for params in request.stage_params.values()] == [0, 0]
    unseeded = {admit(SPOKEN, Ask("a")).stage_params[0].seed for _ in range(8)}
    assert len(unseeded) == 8
    assert None not in unseeded


@pytest.mark.parametrize(
    ("ask", "field", "said"),
    [
        ({"sampling_params_list": [{}, {}, {}]}, "sampling_params_list", "at most 2 (thinker, speaker)"),
        ({"sampling_params_list": [GenerationParams()]}, "sampling_params_list[0]", "SamplingParams or an object"),
        ({"sampling_params_list": [7]}, "sampling_params_list[0]", "SamplingParams or an object"),
        ({"sampling_params_list": [{"temperture": 1}]}, "sampling_params_list[0].temperture", "did you mean"),
        ({"sampling_params_list": [{"temperature": -1.0}]}, "sampling_params_list[0].temperature", "[0.0, 100.0]"),
        (
            {"sampling_params_list": [{}, {"voice": "bob"}]},
            "sampling_params_list[1].voice",
            "af_heart, am_michael, alloy",
        ),
        ({"fields": {"temperature": "hot"}}, "temperature", "a number"),
        ({"fields": {"max_tokens": 0}}, "max_tokens", "[1, "),
        ({"fields": {"voice": "bob"}}, "voice", "af_heart, am_michael, alloy, echo"),
        ({"fields": {"voice": ""}}, "voice", "af_heart"),
        ({"fields": {"voice": 3}}, "voice", "af_heart"),
        ({"fields": {"guidance_scale": 1.0}}, "guidance_scale", "accepted"),
        ({"fields": {"seed": -1}}, "seed", "[0, "),
        ({"fields": {"seed": "x"}}, "seed", "int"),
        ({"fields": {"n": 2}}, "n", "1 where more than text"),
        ({"priority": 1.5}, "priority", "an integer"),
        ({"priority": 2**40}, "priority", "an integer"),
    ],
)
def test_a_parameter_that_is_wrong_is_refused_by_field(ask: dict[str, Any], field: str, said: str) -> None:
    """Fault: a parameter out of range, of the wrong type or unknown is clamped, ignored or answered without its name."""
    with pytest.raises(InvalidRequestError) as caught:
        admit(SPOKEN, Ask("a", **ask))
    assert caught.value.field == field
    assert said in caught.value.message


def test_several_choices_are_for_text_alone() -> None:
    """Fault: n is refused where it makes sense."""
    assert sampling(admit(SPOKEN, Ask("a", fields={"n": 3}, wants=("text",)))).n == 3


def test_a_voice_where_there_is_none() -> None:
    """Fault: a voice for a model that only writes is accepted and ignored."""
    with pytest.raises(InvalidRequestError, match="voice: unknown field"):
        admit(WRITTEN, Ask("a", fields={"voice": "alloy"}))


def test_ids_are_the_engine_s_own_and_limits_are_the_deployment_s() -> None:
    """Fault: two requests share an id, or a request has no deadline."""
    first, second = admit(SPOKEN, Ask("a")), admit(SPOKEN, Ask("a", timeout_s=5.0, stream=True, priority=-2))
    assert first.request_id != second.request_id
    assert (first.timeout_s, second.timeout_s, second.stream, second.priority) == (600.0, 5.0, True, -2)
