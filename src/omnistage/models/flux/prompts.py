"""A prompt as the two text encoders of FLUX.1 read it: ids of fixed lengths, padded as the models were trained. Knows no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.modeling.folder import read_json
from omnistage.modeling.text_processor import TextProcessor, load_text_processor
from omnistage.modeling.tokenizer import TOKENIZER_CONFIG, content_of
from omnistage.models.flux.settings import CLIP_TOKENIZER, T5_TOKENIZER, FluxSettings

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Ids of exactly `tokens`, the text's and then `padding`."""

    text: TextProcessor
    tokens: int
    padding: int

    def ids(self, text: str, field: str) -> Ids:
        """Raises InvalidRequestError for a text that is too long."""
        ids = self._read(text, field)
        if len(ids) > self.tokens:
            raise InvalidRequestError.of(field, f"a text of {len(ids)} tokens", f"at most {self.tokens}")
        return self._padded(ids)

    def begin(self, text: str, field: str) -> Ids:
        """Of a text of any length, with the token that ends it."""
        ids = self._read(text, field)
        return self._padded(ids if len(ids) <= self.tokens else (*ids[: self.tokens - 1], ids[-1]))

    def _read(self, text: str, field: str) -> tuple[int, ...]:
        return self.text.encode(text, field, add_special_tokens=True)

    def _padded(self, ids: tuple[int, ...]) -> Ids:
        made = np.full(self.tokens, self.padding, np.int32)
        made[: len(ids)] = ids
        return made


@dataclass(frozen=True, slots=True)
class Readers:
    """`clip` makes one vector of the whole, for which the begin of a long text will do; `t5` a row of each token."""

    clip: PromptReader
    t5: PromptReader

    def read(self, text: str, field: str) -> dict[str, Ids]:
        """ "clip" [clip tokens] and "t5" [t5 tokens]. Raises InvalidRequestError for a text that is longer than the second."""
        return {"t5": self.t5.ids(text, field), "clip": self.clip.begin(text, field)}


def load_readers(folder: Path, settings: FluxSettings) -> Readers:
    """Raises BrokenCheckpointError for a folder without two tokenizers that can be read."""
    longest = settings.t5_tokens
    return Readers(
        clip=_reader(folder / CLIP_TOKENIZER, settings.clip_vocab, settings.clip_tokens, longest),
        t5=_reader(folder / T5_TOKENIZER, settings.t5_vocab, longest, longest),
    )


def _reader(folder: Path, vocab_size: int, tokens: int, longest: int) -> PromptReader:
    """`longest`: tokens of a text that is read at all."""
    text = load_text_processor(folder, vocab_size, longest)
    padding = content_of(read_json(folder, TOKENIZER_CONFIG).get("pad_token"))
    found = None if padding is None else text.tokenizer.token_to_id(padding)
    if found is None:
        told = f"pad_token is {padding!r}; accepted: a token of the vocabulary"
        raise BrokenCheckpointError(f"{folder / TOKENIZER_CONFIG}: {told}")
    return PromptReader(text, tokens, found)


def key_of(ids: dict[str, Ids]) -> str:
    """Names their content."""
    return hashlib.blake2b(b"".join(ids[name].tobytes() for name in sorted(ids)), digest_size=16).hexdigest()
