"""Renders a chat template as transformers does: Jinja2 in a sandbox, the same filters, globals and variables.

A template comes with a model and is not trusted: it may compute a string from the messages, and nothing else. Knows no
tokenizer and no files.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError

_UNREPEATABLE = ("strftime_now", "random", "lipsum")


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what an assistant said, for training; here its content is all that counts."""

    tags = {"generation"}  # noqa: RUF012 - the way Jinja2 declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. `special_tokens` (bos_token, ...) are variables of it. `is_repeatable`: equal messages are rendered
    equally at any time; a template that says the name of what tells the time or draws lots is taken at its word."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, where: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        self.is_repeatable = not any(word in source for word in _UNREPEATABLE)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BrokenCheckpointError(f"the chat template of {where} cannot be compiled: {error}") from None

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The prompt, ending where the assistant is to go on. Raises InvalidRequestError if the template refuses."""
        try:
            return self._template.render(
                messages=messages,
                **{
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": True,
                    **self._special_tokens,
                    **variables,
                },
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise InvalidRequestError(
                f"messages: the model's chat template does not accept them: {error}", field="messages"
            ) from None


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
