"""What a caller may ask of each kind of stage: sampling (AR), generation (one-shot, codecs, vocoders), diffusion.

Values, checked on construction; every rejected one raises `InvalidRequestError` naming the field and what is accepted.
An explicit 0, "" or False means what it says. Knows nothing of models, devices or HTTP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from omnistage.core.errors import InvalidRequestError, did_you_mean, shortened

MAX_SEED = 2**64 - 1
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_PICTURES = 10
MAX_PARTIAL_IMAGES = 3
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024

_TOKEN_ID = re.compile("[0-9]{1,10}")
_IN_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "tuple[str, ...]": "a list of texts",
    "tuple[int, ...]": "a list of integers",
    "dict[int, float]": "an object of token ids and numbers",
}
"""Types as callers know them who never saw Python."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, tag="sampling", forbid_unknown_fields=True):
    """How an AR stage turns logits into tokens. The order is that of transformers: penalties and bias on the raw logits,
    then temperature, top-k, top-p, min-p. `temperature` 0 is greedy. `top_k` 0 or -1, `top_p` 1, `min_p` 0 switch a filter off.
    `logprobs` k returns the k most likely tokens of the distribution before temperature and filters (0: the chosen token only).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        _within("n", self.n, 1, MAX_CHOICES)
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _within("top_k", self.top_k, -1, 2**31 - 1)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for token, bias in self.logit_bias.items():
            _within("logit_bias key", token, 0, 2**31 - 1)
            _within("logit_bias", bias, -100.0, 100.0)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check_stop(self.stop)
        for token in self.stop_token_ids:
            _within("stop_token_ids", token, 0, 2**31 - 1)
        _within("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None:
            _within("max_tokens", self.max_tokens, 1, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequestError.of("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        _check_seed(self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True, tag="generation", forbid_unknown_fields=True):
    """What a generation stage needs beside its inputs. `voice` None is the model's default, `speed` 1.0 the natural pace."""

    voice: str | None = None
    speed: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.voice is not None and not self.voice:
            raise InvalidRequestError.of("voice", self.voice, "the name of a voice")
        _within("speed", self.speed, 0.25, 4.0)
        _check_seed(self.seed)


class DiffusionParams(msgspec.Struct, frozen=True, kw_only=True, tag="diffusion", forbid_unknown_fields=True):
    """How a diffusion stage denoises. Sizes in pixels; None takes the model's default; a guidance of 0 or 1 means that.
    `partial_images`: how many unfinished states of each picture a streamed answer shows."""

    n: int = 1
    height: int | None = None
    width: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    negative_prompt: str | None = None
    seed: int | None = None
    partial_images: int = 0

    def __post_init__(self) -> None:
        _within("n", self.n, 1, MAX_PICTURES)
        _within("partial_images", self.partial_images, 0, MAX_PARTIAL_IMAGES)
        for name, value, high in (
            ("height", self.height, 16384),
            ("width", self.width, 16384),
            ("num_inference_steps", self.num_inference_steps, 1000),
        ):
            if value is not None:
                _within(name, value, 1, high)
        for name, scale in (("guidance_scale", self.guidance_scale), ("true_cfg_scale", self.true_cfg_scale)):
            if scale is not None:
                _within(name, scale, 0.0, 1000.0)
        _check_seed(self.seed)


StageParams = SamplingParams | GenerationParams | DiffusionParams
"""The parameters of one stage; the kind follows the stage's execution type."""


P = TypeVar("P", bound=StageParams)


def params_from(kind: type[P], values: dict[str, Any], *, where: str = "") -> P:
    """Builds `kind` from plain values (YAML, JSON, keyword arguments), strictly typed.

    What JSON writes otherwise is understood: one stop string without its list, token ids as an object's keys.
    Raises InvalidRequestError with `where` + field name, the value and what is accepted; unknown fields get a did-you-mean.
    """
    fields = _converted(kind, values, where)
    return _checked(lambda: kind(**fields), where)


def overlay(base: P, values: dict[str, Any], *, where: str = "") -> P:
    """`base` with the given fields replaced; the same checks and errors as `params_from`."""
    if not values:
        return base
    fields = _converted(type(base), values, where)
    return _checked(lambda: msgspec.structs.replace(base, **fields), where)


def _converted(kind: type[P], values: dict[str, Any], where: str) -> dict[str, Any]:
    """`values` in the types of `kind`'s fields."""
    types = _field_types(kind)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name not in types:
            field = shortened(f"{where}{name}")
            raise InvalidRequestError(f"{field}: unknown field{did_you_mean(name, types)}", field=field)
        try:
            fields[name] = msgspec.convert(_in_our_form(name, value), types[name], strict=True)
        except msgspec.ValidationError:
            raise InvalidRequestError.of(f"{where}{name}", value, _accepted(kind, name)) from None
    return fields


def _checked(made: Callable[[], P], where: str) -> P:
    try:
        return made()
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}{error.message}", field=f"{where}{error.field}") from None


_FIELD_TYPES: dict[type[Any], dict[str, Any]] = {}


def _field_types(kind: type[Any]) -> dict[str, Any]:
    """Kept, because msgspec evaluates annotations anew at every call: 4 ms of an admission."""
    if kind not in _FIELD_TYPES:
        _FIELD_TYPES[kind] = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return _FIELD_TYPES[kind]


def _in_our_form(name: str, value: Any) -> Any:
    match name, value:
        case "stop", str():
            return [value]
        case "logit_bias", dict():
            return {int(key) if _is_token_id(key) else key: bias for key, bias in value.items()}
        case _:
            return value


def _is_token_id(key: object) -> bool:
    return isinstance(key, str) and _TOKEN_ID.fullmatch(key) is not None


def _accepted(kind: type[msgspec.Struct], name: str) -> str:
    """The type of a field in words: "a number", "an integer or null"."""
    named, _, optional = str(kind.__annotations__[name]).partition(" | ")
    return _IN_WORDS[named] + (" or null" if optional else "")


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    too_low = value <= low if open_low else value < low
    if math.isnan(value) or too_low or value > high:
        bracket = "(" if open_low else "["
        raise InvalidRequestError.of(name, value, f"a number in {bracket}{low}, {high}]")


def _check_seed(seed: int | None) -> None:
    if seed is not None:
        _within("seed", seed, 0, MAX_SEED)


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError.of("stop", len(stop), f"at most {MAX_STOP_STRINGS} strings")
    for text in stop:
        if not text or len(text) > MAX_STOP_CHARS:
            raise InvalidRequestError.of("stop", text, f"strings of 1 to {MAX_STOP_CHARS} characters")
        if not is_text(text):
            raise InvalidRequestError.no_text("stop")


def is_text(value: str) -> bool:
    """False where a lone surrogate, half a character, keeps a string from being encoded."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
