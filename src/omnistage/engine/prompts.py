"""From what a caller gives as a prompt to a `Prompt`: text, conversations, token ids, and the media that go with them.

Every refusal is an InvalidRequestError that names the field, as the caller wrote it, and what is accepted. What media are made of
is known to the reader that comes with the prompt (engine.media). A content becomes one string where there is only text in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.core.errors import InvalidRequestError, did_you_mean, shortened
from omnistage.core.request import Media, Prompt
from omnistage.engine.encoded import MediaKind
from omnistage.engine.media import GatheredState, MediaReader, is_frames
from omnistage.engine.served import DRAWING_KEYS, MEDIA_KEYS, ServedModel

SOURCES = ("prompt", "messages", "prompt_token_ids")
COMMON_KEYS = (*SOURCES, "modalities", "additional_information")
EXTRA_KEYS = ("prompt_embeds", *MEDIA_KEYS, *DRAWING_KEYS)
ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_KEYS = ("role", "content", "name", "refusal", "audio", "tool_calls", "tool_call_id")

_KINDS: tuple[MediaKind, ...] = ("image", "mask", "audio", "video")
_URL_PARTS: Mapping[str, MediaKind] = {"image_url": "image", "audio_url": "audio", "video_url": "video"}
_PARTS: Mapping[str, MediaKind] = {
    **_URL_PARTS,
    "input_audio": "audio",
    "image": "image",
    "mask": "mask",
    "audio": "audio",
    "video": "video",
}
_OTHER_PARTS = ("file", "refusal")
_URL_FORM = "a URL, or an object with url"


def is_chat(value: object) -> bool:
    """True for a list of chat messages, which is one prompt, unlike any other list."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "role" in item for item in value)


def read_prompt(model: ServedModel, value: object, read: MediaReader) -> tuple[Prompt, object]:
    """The prompt, and the value of its `modalities` key (None where it names none)."""
    reading = _Reading(model, GatheredState(read, model.max_media_nbytes))
    match value:
        case str():
            return Prompt(text=_text("prompt", value)), None
        case list() if is_chat(value):
            return Prompt(messages=reading.messages(value), media=reading.media), None
        case dict():
            return _prompt_of_dict(reading, value), value.get("modalities")
        case _:
            raise InvalidRequestError.of("prompt", value, "a string, a list of chat messages, or a dict")


def _prompt_of_dict(reading: _Reading, value: dict[str, Any]) -> Prompt:
    source = _source_of(reading.model, value)
    information = value.get("additional_information") or {}
    if not isinstance(information, dict):
        raise InvalidRequestError.of("additional_information", information, "a dict")
    data = value.get("multi_modal_data")
    if data and source == "messages":
        told = "multi_modal_data: goes with prompt or prompt_token_ids"
        raise InvalidRequestError(f"{told}; accepted beside messages: content parts", field="multi_modal_data")
    reading.data(data)
    options = _processor_options(reading.model, value.get("mm_processor_kwargs"))
    said: dict[str, Any] = {}
    match source:
        case "prompt":
            said["text"] = _text("prompt", value["prompt"])
        case "messages":
            said["messages"] = reading.messages(value["messages"])
        case _:
            said["token_ids"] = _tokens(value["prompt_token_ids"])
    return Prompt(**said, media=reading.media, mm_processor_kwargs=options, additional_information=information)


def _source_of(model: ServedModel, value: dict[str, Any]) -> str:
    """Which of SOURCES the prompt is; all its keys are known."""
    more = model.prompt_keys
    for key in value:
        if key in MEDIA_KEYS and key not in more:
            raise InvalidRequestError(f"{key}: the model {model.name!r} cannot use it: it reads text only", field=key)
        if key in EXTRA_KEYS and key not in more:
            accepted = [name for name in COMMON_KEYS if name != key] + list(more)
            raise InvalidRequestError(
                f"{key}: the model {model.name!r} cannot use it; accepted: {', '.join(accepted)}", field=str(key)
            )
        if key not in COMMON_KEYS + EXTRA_KEYS:
            raise InvalidRequestError.unknown(str(key), (*COMMON_KEYS, *more))
    given = [key for key in SOURCES if value.get(key) is not None]
    if len(given) != 1:
        raise InvalidRequestError.of("prompt", sorted(given), f"exactly one of {', '.join(SOURCES)}")
    return given[0]


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequestError.of(name, value, "a string that is not blank")
    return value


def _tokens(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise InvalidRequestError.of("prompt_token_ids", value, "a list of token ids that is not empty")
    for token in value:
        if type(token) is not int or not 0 <= token < 2**31:
            raise InvalidRequestError.of("prompt_token_ids", token, "integers in [0, 2147483647]")
    return tuple(value)


def _processor_options(model: ServedModel, value: object) -> dict[str, Any]:
    """What `mm_processor_kwargs` says. `use_audio_in_video` is known everywhere: the model hears the sound of the videos that it
    sees. Other options are the family's own, whose processor refuses what it does not know."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequestError.of("mm_processor_kwargs", value, "an object")
    if not all(isinstance(key, str) for key in value):
        raise InvalidRequestError.of("mm_processor_kwargs", list(value), "names of options")
    where, heard = "mm_processor_kwargs.use_audio_in_video", value.get("use_audio_in_video", False)
    if not isinstance(heard, bool):
        raise InvalidRequestError.of(where, heard, "true or false")
    if heard and not {"audio", "video"} <= set(model.reads):
        raise InvalidRequestError.of(where, heard, f"false, as this model reads {', '.join(model.reads)} only")
    return dict(value)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One prompt being read: for which model, and the media found so far."""

    model: ServedModel
    gathered: GatheredState

    @property
    def media(self) -> tuple[Media, ...]:
        """All of them, of which a mask belongs to a picture. Raises InvalidRequestError for one that does not."""
        media = self.gathered.media
        masks = [found for found in media if found.kind == "mask"]
        if masks and not any(found.kind == "image" for found in media):
            raise InvalidRequestError(f"{masks[0].where}: there is no image that it could mask", field=masks[0].where)
        if len(masks) > 1:
            raise InvalidRequestError(f"{masks[1].where}: a second mask; accepted: one", field=masks[1].where)
        return media

    def data(self, value: object) -> None:
        """`multi_modal_data`: per kind one value or a list of them."""
        if value is None:
            return
        if not isinstance(value, dict):
            raise InvalidRequestError.of(
                "multi_modal_data", type(value).__name__, "a dict of image, mask, audio and video"
            )
        readable = [kind for kind in _KINDS if kind in self.model.reads]
        for key in value:
            if key in _KINDS and key not in readable:
                where = f"multi_modal_data.{key}"
                told = f"the model {self.model.name!r} cannot use it: it reads {', '.join(self.model.reads)} only"
                raise InvalidRequestError(f"{where}: {told}", field=where)
            if key not in readable:
                raise _unknown_key("multi_modal_data", key, readable)
        for kind in readable:
            where, given = f"multi_modal_data.{kind}", value.get(kind)
            if isinstance(given, list) and not (kind == "video" and is_frames(given)):
                for index, item in enumerate(given):
                    self.gathered.add(kind, item, f"{where}[{index}]")
            elif given is not None:
                self.gathered.add(kind, given, where)

    def messages(self, value: object) -> tuple[dict[str, Any], ...]:
        """Keys that say nothing to a model are left out."""
        if not isinstance(value, list | tuple) or not value:
            raise InvalidRequestError.of("messages", value, "a list of messages that is not empty")
        messages = tuple(self._message(f"messages[{index}]", message) for index, message in enumerate(value))
        if not self.gathered.media and not any(message["content"].strip() for message in messages):
            raise InvalidRequestError.of("messages", [message["content"] for message in messages], "some text")
        return messages

    def _message(self, where: str, message: object) -> dict[str, Any]:
        if not isinstance(message, dict):
            raise InvalidRequestError.of(where, message, "an object with role and content")
        for key in message:
            if key not in MESSAGE_KEYS:
                raise _unknown_key(where, key, MESSAGE_KEYS)
        for key in ("tool_calls", "tool_call_id"):
            if message.get(key):
                raise InvalidRequestError(f"{where}.{key}: tools are not served by this model", field=f"{where}.{key}")
        role = message.get("role")
        if role not in ROLES:
            raise InvalidRequestError.of(f"{where}.role", role, f"one of {', '.join(ROLES)}")
        return {"role": "system" if role == "developer" else role, "content": self._content(where, message)}

    def _content(self, where: str, message: dict[str, Any]) -> str | list[dict[str, Any]]:
        match message.get("content"):
            case str() as text:
                return text
            case list() as parts if parts:
                read = [self._part(f"{where}.content[{index}]", part) for index, part in enumerate(parts)]
                texts = [part["text"] for part in read if part["type"] == "text"]
                return read if len(texts) < len(read) else "".join(texts)
            case None if message.get("role") == "assistant":
                # An answer that was spoken has no content, and its sound is named by an id that nothing is kept for.
                audio = message.get("audio")
                return (
                    str(audio.get("transcript") or "") if isinstance(audio, dict) else str(message.get("refusal") or "")
                )
            case other:
                raise InvalidRequestError.of(f"{where}.content", other, "a string or a list of content parts")

    def _part(self, where: str, part: object) -> dict[str, Any]:
        if not isinstance(part, dict):
            raise InvalidRequestError.of(where, part, "an object with a type")
        kind = part.get("type")
        readable = [name for name in _PARTS if _PARTS[name] in self.model.reads]
        if kind == "text":
            return {"type": "text", "text": _text_of(where, part)}
        if kind not in readable:
            is_known = isinstance(kind, str) and kind in (*_PARTS, *_OTHER_PARTS)
            why = f", as this model reads {', '.join(self.model.reads)} only" if is_known else ""
            raise InvalidRequestError.of(f"{where}.type", kind, ", ".join(["text", *readable]) + why)
        _require_keys(where, part, ("type", str(kind)))
        return {"type": _PARTS[str(kind)], "media": self._media(f"{where}.{kind}", str(kind), part.get(str(kind)))}

    def _media(self, where: str, name: str, value: object) -> int:
        """The index of what a part of type `name` brings as `value`."""
        kind = _PARTS[name]
        if name in _URL_PARTS:
            return self.gathered.add(kind, *_url_of(where, kind, value))
        if name == "input_audio":
            return self.gathered.add(kind, *_sound_of(where, value))
        if value is None:
            raise InvalidRequestError.of(where, value, f"{'an' if kind in ('image', 'audio') else 'a'} {kind}")
        return self.gathered.add(kind, value, where)


def _text_of(where: str, part: dict[str, Any]) -> str:
    _require_keys(where, part, ("type", "text"))
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError.of(f"{where}.text", text, "a string")
    return text


def _url_of(where: str, kind: MediaKind, value: Any) -> tuple[str, str]:
    """The URL of {"url": ...}, or of a plain string, and its name."""
    match value:
        case str() as url:
            return url, where
        case {"url": str() as url}:
            _require_keys(where, value, ("url", "detail") if kind == "image" else ("url",))
            detail = value.get("detail")
            if detail not in (None, "auto"):
                raise InvalidRequestError.of(f"{where}.detail", detail, "auto, as the model settles the size")
            return url, f"{where}.url"
        case {"url": other}:
            raise InvalidRequestError.of(f"{where}.url", other, "a URL")
    raise InvalidRequestError.of(where, value, _URL_FORM)


def _sound_of(where: str, value: object) -> tuple[str, str, object]:
    """The base64 of {"data": ..., "format": ...}, its name, and the format."""
    if not isinstance(value, dict):
        raise InvalidRequestError.of(where, value, "an object with data and format")
    _require_keys(where, value, ("data", "format"))
    data = value.get("data")
    if not isinstance(data, str):
        raise InvalidRequestError.of(f"{where}.data", data, "a string of base64")
    return data, f"{where}.data", value.get("format", "")


def _require_keys(where: str, value: Mapping[Any, Any], known: Sequence[str]) -> None:
    for key in value:
        if key not in known:
            raise _unknown_key(where, key, known)


def _unknown_key(where: str, key: object, known: Sequence[str]) -> InvalidRequestError:
    field = shortened(f"{where}.{key}")
    return InvalidRequestError(f"{field}: unknown field{did_you_mean(str(key), known)}", field=field)
