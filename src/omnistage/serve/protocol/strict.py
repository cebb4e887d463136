"""From a request's bytes to a checked model: JSON, unknown fields, types. Every mistake is an InvalidRequestError.

Ranges are not checked here: they belong to `core.params` and admission, so that Python and HTTP say the same. Fields that
those check are declared `Given`: anything, with a schema for the documentation.
"""

from __future__ import annotations

import asyncio
import json
import re
import typing
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, WithJsonSchema

from omnistage.core.errors import InvalidRequestError, did_you_mean, shortened
from omnistage.core.params import is_text

LONG_NBYTES = 256 * 2**10

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Given = Annotated[Any, WithJsonSchema({})]
"""A field that is checked further down."""


class Strict(BaseModel):
    """No coercion, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


M = TypeVar("M", bound=Strict)


async def parsed(kind: type[M], body: bytes) -> M:
    """As `parse`. A long body is read in a thread: others have their turn meanwhile."""
    return parse(kind, body) if len(body) < LONG_NBYTES else await asyncio.to_thread(parse, kind, body)


def parse(kind: type[M], body: bytes) -> M:
    """`body` as a `kind`. Names the first field that is wrong."""
    try:
        text = body.decode()
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    if _SURROGATE.search(text):
        _require_text(data)
    return checked(kind, data)


def checked(kind: type[M], data: dict[str, Any]) -> M:
    """`data` as a `kind`. Names the first field that is wrong."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _refusal(kind, error) from None


def _require_text(data: dict[str, Any]) -> None:
    """JSON can spell half a character, which neither a stage nor an answer can write. Raises InvalidRequestError."""
    for name, value in data.items():
        if not is_text(json.dumps([name, value], ensure_ascii=False)):
            raise InvalidRequestError.no_text(shortened(name.encode(errors="backslashreplace").decode()))


def _refusal(kind: type[BaseModel], error: ValidationError) -> InvalidRequestError:
    # An unknown field is told before a missing one: it is most likely the same field, misspelt.
    first = min(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    path = [
        part
        for part in first["loc"]
        if isinstance(part, int) or part.isidentifier() or first["type"] == "extra_forbidden"
    ]
    field = ".".join(str(part) for part in path)
    match first["type"]:
        case "extra_forbidden":
            name, known = shortened(field), _fields_at(kind, path[:-1])
            return InvalidRequestError(f"{name}: unknown field{did_you_mean(str(path[-1]), known)}", field=name)
        case "missing":
            return InvalidRequestError(f"{field}: is missing", field=field)
        case _:
            return InvalidRequestError.of(field, first["input"], first["msg"].removeprefix("Input should be "))


def _fields_at(kind: type[BaseModel], path: list[int | str]) -> list[str]:
    """The names that the model at `path` below `kind` has."""
    for part in path:
        if isinstance(part, str):  # an index leads to what its list is of
            kind = next(_models_in(kind.model_fields[part].annotation))
    return list(kind.model_fields)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The models that an annotation speaks of, inside unions and lists too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)
