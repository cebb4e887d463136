"""Parameters: what is accepted, and how what is not is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import DiffusionParams, GenerationParams, SamplingParams, StageParams, overlay, params_from

OUT_OF_RANGE: list[tuple[type[StageParams], str, Any]] = [
    (SamplingParams, "n", 0),
    (SamplingParams, "n", 129),
    (SamplingParams, "temperature", -0.1),
    (SamplingParams, "temperature", float("nan")),
    (SamplingParams, "top_p", 0.0),
    (SamplingParams, "top_p", 1.01),
    (SamplingParams, "top_k", -2),
    (SamplingParams, "min_p", 1.5),
    (SamplingParams, "repetition_penalty", 0.0),
    (SamplingParams, "presence_penalty", 2.5),
    (SamplingParams, "frequency_penalty", -2.5),
    (SamplingParams, "logit_bias", {5: 101.0}),
    (SamplingParams, "logit_bias", {-1: 1.0}),
    (SamplingParams, "logprobs", 21),
    (SamplingParams, "stop", [""]),
    (SamplingParams, "stop", ["\ud800"]),
    (SamplingParams, "stop", ["a"] * 17),
    (SamplingParams, "stop_token_ids", [-1]),
    (SamplingParams, "min_tokens", -1),
    (SamplingParams, "max_tokens", 0),
    (SamplingParams, "seed", -1),
    (SamplingParams, "seed", 2**64),
    (GenerationParams, "voice", ""),
    (GenerationParams, "speed", 0.0),
    (GenerationParams, "seed", -1),
    (DiffusionParams, "n", 0),
    (DiffusionParams, "n", 11),
    (DiffusionParams, "height", 0),
    (DiffusionParams, "width", 100000),
    (DiffusionParams, "num_inference_steps", 0),
    (DiffusionParams, "guidance_scale", -1.0),
    (DiffusionParams, "true_cfg_scale", float("nan")),
    (DiffusionParams, "partial_images", -1),
    (DiffusionParams, "partial_images", 4),
]


@pytest.mark.parametrize(("kind", "name", "value"), OUT_OF_RANGE)
def test_out_of_range_names_the_field_and_what_is_accepted(kind: type[StageParams], name: str, value: Any) -> None:
    """Fault: a value that cannot work is accepted, or refused without saying which and why."""
    with pytest.raises(InvalidRequestError, match="accepted") as caught:
        params_from(kind, {name: value})
    assert str(caught.value.field).startswith(name)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (SamplingParams, {"temprature": 1.0}, "did you mean 'temperature'"),
        (SamplingParams, {"temperature": "hot"}, "temperature: 'hot' is not accepted; accepted: a number"),
        (SamplingParams, {"top_k": 1.5}, "top_k: 1.5 is not accepted; accepted: an integer"),
        (SamplingParams, {"seed": "x"}, "accepted: an integer or null"),
        (SamplingParams, {"stop": 3}, "accepted: a list of texts"),
        (SamplingParams, {"stop_token_ids": 3}, "accepted: a list of integers"),
        (SamplingParams, {"logit_bias": {"x": 1}}, "accepted: an object of token ids and numbers"),
        (SamplingParams, {"logit_bias": {"9" * 5000: 1}}, "accepted: an object of token ids and numbers"),
        (SamplingParams, {"logit_bias": {"\u0661": 1}}, "accepted: an object of token ids and numbers"),
        (GenerationParams, {"voice": 1}, "accepted: a text or null"),
        (SamplingParams, {"ignore_eos": "yes"}, "ignore_eos"),
        (SamplingParams, {"min_tokens": 5, "max_tokens": 4}, "at most max_tokens"),
        (GenerationParams, {"zzz": 1}, "accepted: seed, speed, voice"),
        (DiffusionParams, {"height": "big"}, "height: 'big'"),
    ],
)
def test_wrong_type_and_unknown_fields(kind: type[StageParams], values: dict[str, Any], says: str) -> None:
    """Fault: a misspelt field is ignored; a string is taken for a number."""
    with pytest.raises(InvalidRequestError) as caught:
        params_from(kind, values)
    assert says in str(caught.value)


def test_the_place_of_a_field_is_part_of_its_name() -> None:
    """Fault: an error in the second stage's parameters reads as one of the first."""
    for values in ({"temperature": -1.0}, {"temperature": "x"}, {"nope": 1}):
        with pytest.raises(InvalidRequestError, match=r"sampling_params_list\[1\]\.") as caught:
            params_from(SamplingParams, values, where="sampling_params_list[1].")
        assert str(caught.value.field).startswith("sampling_params_list[1].")


def test_what_json_cannot_spell_otherwise_is_understood() -> None:
    """Fault: `logit_bias` of one stage cannot be given over HTTP, as keys are texts there; one stop string is refused."""
    assert params_from(SamplingParams, {"stop": "END", "logit_bias": {"7": -1, 8: 2}}) == SamplingParams(
        stop=("END",), logit_bias={7: -1.0, 8: 2.0}
    )


def test_explicit_zero_means_zero() -> None:
    """Fault: 0, "" and False are taken for absent."""
    params = params_from(SamplingParams, {"temperature": 0, "seed": 0, "top_k": 0, "logprobs": 0, "min_p": 0.0})
    assert (params.greedy, params.seed, params.logprobs) == (True, 0, 0)
    base = SamplingParams(temperature=0.7, seed=5, ignore_eos=True)
    over = overlay(base, {"temperature": 0, "seed": 0, "ignore_eos": False})
    assert over == SamplingParams(temperature=0, seed=0, ignore_eos=False)


def test_overlay_changes_what_is_given_and_nothing_else() -> None:
    """Fault: an overlay resets other fields, or changes its base."""
    base = SamplingParams(temperature=0.7, stop=("a",), logit_bias={3: 1.0})
    over = overlay(base, {"max_tokens": 5})
    assert over == SamplingParams(temperature=0.7, stop=("a",), logit_bias={3: 1.0}, max_tokens=5)
    assert base.max_tokens is None
    with pytest.raises(InvalidRequestError):
        overlay(GenerationParams(), {"temperature": 1.0})


@given(st.floats(0, 100), st.integers(0, 2**64 - 1), st.integers(1, 128))
def test_everything_in_range_is_kept_as_given(temperature: float, seed: int, n: int) -> None:
    """Fault: a legal value is rounded or refused."""
    params = params_from(SamplingParams, {"temperature": temperature, "seed": seed, "n": n})
    assert (params.temperature, params.seed, params.n) == (temperature, seed, n)


def test_types_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the annotations of all fields are evaluated for every field of every request, 20 ms of the event loop each."""
    params_from(SamplingParams, {"seed": 1})

    def again(kind: type) -> None:
        raise AssertionError(f"the fields of {kind.__name__} are worked out again")

    monkeypatch.setattr("msgspec.structs.fields", again)
    assert params_from(SamplingParams, {"seed": 2}).seed == 2
