"""The tokenizer of a folder in Hugging Face layout, without transformers: tokenizer.json, or the vocabulary and merges of older
checkpoints of Qwen and CLIP, which say how they are to be read in their class's name only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.folder import read_json_if_any

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""How these vocabularies cut a text before its bytes are merged: part of the vocabulary, though no file says it."""


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
    make = _KINDS.get(str(settings.get("tokenizer_class")).removesuffix("Fast"))
    files = (folder / VOCABULARY, folder / MERGES)
    if make is None or not all(file.is_file() for file in files):
        also = f"{VOCABULARY} with {MERGES} of a {' or '.join(sorted(_KINDS))}"
        raise BrokenCheckpointError(f"{folder} has no {TOKENIZER}; looked for the model's tokenizer, or {also}")
    tokenizer = make(files, settings)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, settings.get("added_tokens_decoder") or {}, folder)
    return tokenizer


def _qwen(files: tuple[Path, Path], _settings: Mapping[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE.from_file(*map(str, files)))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def _clip(files: tuple[Path, Path], settings: Mapping[str, Any]) -> Tokenizer:
    """Small letters only; a text stands between a first token and a last."""
    first, last, unknown = (
        content_of(settings.get(name)) or default
        for name, default in (
            ("bos_token", "<|startoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("unk_token", "<|endoftext|>"),
        )
    )
    tokenizer = Tokenizer(models.BPE.from_file(*map(str, files), end_of_word_suffix="</w>", unk_token=unknown))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens([first, last])
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.RobertaProcessing(
        (last, ids[last]), (first, ids[first]), trim_offsets=False, add_prefix_space=False
    )
    return tokenizer


_KINDS: Mapping[str, Callable[[tuple[Path, Path], Mapping[str, Any]], Tokenizer]] = {
    "CLIPTokenizer": _clip,
    "Qwen2Tokenizer": _qwen,
}
"""By `tokenizer_class`, which may end in Fast too."""


def content_of(token: object) -> str | None:
    """Of a special token, as a JSON file states it: a text, or an object with its `content`."""
    match token:
        case str() as text:
            return text
        case {"content": str() as text}:
            return text
    return None


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
