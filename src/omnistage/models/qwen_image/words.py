"""The words that a small model was taught. A prompt without any would be drawn as whatever, so it is refused. Knows no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.modeling.folder import read_json

_WORD = re.compile(r"\w+(?:-\w+)*")
_SHOWN = 12
"""Words in a refusal, evenly spread over the alphabet."""


@dataclass(frozen=True, slots=True)
class KnownWords:
    """`words` as they were taught: another spelling, capitals too, is another word to such a model."""

    words: frozenset[str]

    def knows(self, text: str) -> bool:
        """True if a word of `text` is known."""
        return not self.words.isdisjoint(_WORD.findall(text))

    def check(self, text: str, field: str) -> None:
        """Raises InvalidRequestError for a text in which no word is known."""
        if self.knows(text):
            return
        words = sorted(self.words)
        some = ", ".join(words[:: -(-len(words) // _SHOWN)])
        accepted = f"a text with at least one of the {len(words)} words that this model knows, spelt so: {some}, ..."
        raise InvalidRequestError.of(field, text, accepted)


def known_words(folder: Path, extras: Mapping[str, Any]) -> KnownWords | None:
    """What a pipeline's `extras` name as `known_words`: a JSON file of the folder, {"words": [...]}. None where they name none.
    Raises BrokenCheckpointError."""
    name = extras.get("known_words")
    if name is None:
        return None
    match read_json(folder, str(name)).get("words"):
        case [*words] if words and all(isinstance(word, str) for word in words):
            return KnownWords(frozenset(words))
        case found:
            raise BrokenCheckpointError(f"{folder / name}: words is {found!r}; accepted: a list of words")
