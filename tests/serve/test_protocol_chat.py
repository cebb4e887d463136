"""A chat's fields: every one has an effect, a neutral value, or no meaning."""

import inspect

import pytest
from openai.types.chat import completion_create_params

from omnistage.core.errors import InvalidRequestError
from omnistage.serve.protocol.chat import (
    ASKING_FOR_NOTHING,
    WITHOUT_MEANING,
    ChatRequest,
    as_sent,
    check_combinations,
    sampling_fields,
)

NOT_SERVED = {"moderation", "prompt_cache_options", "prompt_cache_retention"}


def body(**fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "Hi"}], **fields})


def test_every_field_of_the_official_client_is_thought_of() -> None:
    """Fault: a field that the official client offers is refused as if it were misspelt."""
    official = set(inspect.get_annotations(completion_create_params.CompletionCreateParamsBase))
    assert official - set(ChatRequest.model_fields) == NOT_SERVED


def test_every_field_has_a_place() -> None:
    """Fault: a field that is declared and then forgotten, which is to accept and ignore it."""
    used = inspect.getsource(inspect.getmodule(ChatRequest) or ChatRequest) + inspect.getsource(
        __import__("omnistage.serve.routes.chat", fromlist=["router"])
    )
    placed = {*ASKING_FOR_NOTHING, *WITHOUT_MEANING}
    forgotten = [
        name
        for name in ChatRequest.model_fields
        if name not in placed and f"body.{name}" not in used and f'"{name}",' not in used
    ]
    assert forgotten == []


@pytest.mark.parametrize(("name", "values"), ASKING_FOR_NOTHING.items())
def test_values_that_ask_for_nothing_pass(name: str, values: tuple[object, ...]) -> None:
    """Fault: official clients that spell out a default are turned away."""
    for value in (None, *values):
        check_combinations(body(**{name: value}), ["text"])
    with pytest.raises(InvalidRequestError, match=name):
        check_combinations(body(**{name: {"type": "something"}}), ["text"])


def test_a_number_is_no_boolean() -> None:
    """Fault: 0 passes for false, as Python holds them equal."""
    with pytest.raises(InvalidRequestError, match="parallel_tool_calls"):
        check_combinations(body(parallel_tool_calls=0), ["text"])


def test_explicit_zeros_are_kept_and_nulls_are_not_sent() -> None:
    """Fault: 0 is taken as absent, or null as a value."""
    assert sampling_fields(body(seed=0, temperature=0, top_k=0, ignore_eos=False, top_p=None)) == {
        "seed": 0,
        "temperature": 0,
        "top_k": 0,
        "ignore_eos": False,
    }
    assert sampling_fields(body(max_tokens=5, max_completion_tokens=5)) == {"max_tokens": 5}
    assert sampling_fields(body(logprobs=False)) == {}
    assert sampling_fields(body(logprobs=True)) == {"logprobs": 0}


def test_errors_name_the_field_that_was_sent() -> None:
    """Fault: a client is told of a field that it has not sent."""
    inner = InvalidRequestError.of("max_tokens", 0, "more")
    assert as_sent(body(max_completion_tokens=0), inner).field == "max_completion_tokens"
    assert as_sent(body(max_tokens=0), inner).message == inner.message
    assert as_sent(body(), InvalidRequestError("x")).field is None
