"""Prompts of a text model: chat template and tokenizer of a folder in Hugging Face layout, without transformers.

text is tokenised with the tokenizer's own special tokens; messages are rendered by the chat template, which writes them
itself; token_ids pass through. Importing transformers' tokenizers would cost seconds; equality with them is a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.chat_template import ChatTemplate
from omnistage.modeling.folder import CONFIG, GENERATION_CONFIG, eos_token_ids, read_json_if_any
from omnistage.modeling.protocols import ProcessedPrompt
from omnistage.modeling.tokenizer import TOKENIZER_CONFIG, content_of, load_tokenizer

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TextProcessor:
    """A Processor and RepeatableProcessor of modeling.protocols. `vocab_size` is the model's: ids from it on are refused. A text
    that has more characters than `max_tokens` tokens can spell is refused unread: reading megabytes takes seconds, and others
    wait."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        eos_token_ids: frozenset[int],
        vocab_size: int,
        max_tokens: int,
        bos_token_id: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._bos_token_id = bos_token_id
        self._max_tokens = max_tokens
        self.max_chars = max_tokens * max(map(len, tokenizer.get_vocab()), default=1)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._eos_token_ids

    def __call__(self, request: OmniRequest) -> ProcessedPrompt:
        return ProcessedPrompt(self.ids_of(request.prompt))

    def ids_of(self, prompt: Prompt) -> tuple[int, ...]:
        """Raises InvalidRequestError for a prompt that is blank, unknown to the template or out of the vocabulary."""
        match prompt:
            case Prompt(token_ids=tuple() as token_ids):
                return self._checked(token_ids)
            case Prompt(messages=tuple() as messages):
                extra = prompt.additional_information.get("chat_template_kwargs", {})
                return self.encode(self.render(messages, extra), "messages", add_special_tokens=False)
            case Prompt(text=str() as text) if text.strip():
                return self._with_bos(self.encode(text, "prompt", add_special_tokens=True))
        raise InvalidRequestError.of("prompt", prompt.text, "a text that is not blank, messages or token ids")

    def depends_on_prompt_alone(self, prompt: Prompt) -> bool:
        """False where the chat template looks at the clock, for example."""
        return prompt.messages is None or self._template is None or self._template.is_repeatable

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Messages as the text that a model of text alone reads: the parts of a content are lines."""
        flat = [_with_plain_content(message, f"messages[{index}]") for index, message in enumerate(messages)]
        return self.fill(flat, variables)

    def fill(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The chat template over messages as they are."""
        if self._template is None:
            raise InvalidRequestError("messages: this model has no chat template; accepted: prompt", field="messages")
        if not messages:
            raise InvalidRequestError.of("messages", [], "at least one message")
        return self._template.render(messages, **variables)

    def encode(self, text: str, field: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """`field` is what messages call the text. Raises InvalidRequestError for one that is too long or makes no token."""
        if len(text) > self.max_chars:
            accepted = f"at most {self.max_chars}, more than {self._max_tokens} tokens hold"
            raise InvalidRequestError.of(field, f"{text[:20]}... of {len(text)} characters", accepted)
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        if not ids:
            raise InvalidRequestError.of(field, text, "a text with at least one token")
        return self._checked(ids)

    def _with_bos(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        bos = self._bos_token_id
        return token_ids if bos is None or token_ids[0] == bos else (bos, *token_ids)

    def _checked(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        if not token_ids:
            raise InvalidRequestError.of("prompt_token_ids", [], "at least one token id")
        for token in token_ids:
            if not 0 <= token < self._vocab_size:
                raise InvalidRequestError.of("prompt_token_ids", token, f"ids in [0, {self._vocab_size - 1}]")
        return token_ids


def load_text_processor(folder: Path, vocab_size: int, max_tokens: int) -> TextProcessor:
    """The processor of a folder, for prompts of at most `max_tokens`. Raises BrokenCheckpointError for a folder without a
    readable tokenizer."""
    tokenizer = load_tokenizer(folder)
    largest = max(tokenizer.get_vocab(with_added_tokens=False).values(), default=0)
    # Added tokens may lie beyond it: some checkpoints have a padding token that no model reads.
    if largest >= vocab_size:
        told = f"the tokenizer of {folder} has token ids up to {largest}, the model's vocabulary {vocab_size}"
        raise BrokenCheckpointError(f"{told}: it is another model's tokenizer")
    settings = read_json_if_any(folder, TOKENIZER_CONFIG) or {}
    special = dict(_special_tokens(settings))
    source = _template_source(folder, settings)
    bos = special.get("bos_token") if settings.get("add_bos_token") is True else None
    return TextProcessor(
        tokenizer,
        ChatTemplate(source, special, where=str(folder)) if source is not None else None,
        eos_token_ids=_eos(folder, tokenizer, special),
        vocab_size=vocab_size,
        max_tokens=max_tokens,
        bos_token_id=tokenizer.token_to_id(bos) if bos is not None else None,
    )


def _eos(folder: Path, tokenizer: Tokenizer, special: Mapping[str, str]) -> frozenset[int]:
    """What ends a text, as `generate` of transformers reads it; the tokenizer's own token where no config says."""
    stated = eos_token_ids(folder, GENERATION_CONFIG, CONFIG)
    token = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return stated or (frozenset([token]) if token is not None else frozenset())


def _special_tokens(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _SPECIAL_TOKENS:
        text = content_of(settings.get(name))
        if text is not None:
            yield name, text


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Where several files have a template, the one that transformers would take; of a list, the one named default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    stated = (read_json_if_any(folder, "chat_template.json") or {}).get("chat_template", settings.get("chat_template"))
    match stated:
        case str() as source:
            return source
        case [*entries]:
            named = {entry.get("name"): entry.get("template") for entry in entries if isinstance(entry, dict)}
            return named.get("default")
    return None


def _with_plain_content(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Content given in parts becomes one text, a line for each."""
    if not isinstance(message.get("role"), str):
        raise InvalidRequestError.of(f"{where}.role", message.get("role"), "the name of a role")
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    return {**message, "content": "\n".join(_text_of(part, f"{where}.content[{i}]") for i, part in enumerate(content))}


def _text_of(part: Any, where: str) -> str:
    match part:
        case {"type": "text", "text": str() as text}:
            return text
        case {"type": "text"}:
            raise InvalidRequestError.of(f"{where}.text", part.get("text"), "a text")
        case {"type": kind}:
            raise InvalidRequestError.of(f"{where}.type", kind, "text")
    raise InvalidRequestError.of(where, part, 'an object with "type": "text"')
