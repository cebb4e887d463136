"""The tokenizer of a folder in Hugging Face layout, without transformers: tokenizer.json, or the vocabulary and merges of older
checkpoints of the Qwen family, which say how they are to be read in their class's name only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import read_json_if_any

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
_QWEN_CLASSES = frozenset({"Qwen2Tokenizer", "Qwen2TokenizerFast"})
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's vocabularies cut a text before its bytes are merged: part of the vocabulary, though no file says it."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """Without truncation and padding. Raises BrokenCheckpointError for a folder without a readable tokenizer."""
    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else _of_vocabulary(folder)
    except BrokenCheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for every fault of a file
        raise BrokenCheckpointError(f"{path} cannot be read as a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _of_vocabulary(folder: Path) -> Tokenizer:
    settings = read_json_if_any(folder, TOKENIZER_CONFIG) or {}
    named = settings.get("tokenizer_class")
    files = (folder / VOCABULARY, folder / MERGES)
    if named not in _QWEN_CLASSES or not all(file.is_file() for file in files):
        also = f"{VOCABULARY} with {MERGES} of a {' or '.join(sorted(_QWEN_CLASSES))}"
        raise BrokenCheckpointError(f"{folder} has no {TOKENIZER}; looked for the model's tokenizer, or {also}")
    tokenizer = Tokenizer(models.BPE.from_file(*map(str, files)))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, settings.get("added_tokens_decoder") or {}, folder)
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, added: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Tokens beside the vocabulary, each under the id that the folder says."""
    for token_id, stated in sorted((int(key), value) for key, value in added.items()):
        special = bool(stated.get("special"))
        token = AddedToken(
            stated["content"],
            single_word=bool(stated.get("single_word")),
            lstrip=bool(stated.get("lstrip")),
            rstrip=bool(stated.get("rstrip")),
            normalized=bool(stated.get("normalized", not special)),
            special=special,
        )
        tokenizer.add_special_tokens([token]) if special else tokenizer.add_tokens([token])
        found = tokenizer.token_to_id(token.content)
        if found != token_id:
            told = f"{folder / TOKENIZER_CONFIG} gives {token.content!r} the id {token_id}"
            raise BrokenCheckpointError(f"{told}, behind {VOCABULARY} it has {found}")
