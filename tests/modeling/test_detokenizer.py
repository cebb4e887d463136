"""Text as it comes is the whole text, and never half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from omnistage.modeling.detokenizer import DetokenizerState
from tests.tiny.checkpoints import SPECIAL_TOKENS, TEXTS, VOCAB_SIZE, train_tokenizer

BYTE_LEVEL = train_tokenizer()


def byte_fallback() -> Tokenizer:
    """A decoder in the manner of SentencePiece: word marks, bytes for what is not in the vocabulary, first space dropped."""
    words = ["▁Hi", "▁", "there", "▁you"]
    tokens = words + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    state = DetokenizerState(tokenizer, skip_special_tokens=skip)
    return [*(state.push(token) for token in ids), state.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_whole_and_in_whole_characters(text: str) -> None:
    """Fault: a character that is spread over tokens comes as replacement characters, or twice."""
    found = pieces(BYTE_LEVEL, BYTE_LEVEL.encode(text).ids)
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found)


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    """Fault: everything is kept until the end."""
    found = pieces(BYTE_LEVEL, BYTE_LEVEL.encode("The quick brown fox 🙂 jumps").ids)
    assert found[-1] == ""
    assert sum(map(bool, found)) > 5


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40), skip=st.booleans())
def test_any_tokens_joined_are_the_whole_decode(ids: list[int], skip: bool) -> None:
    """Fault: invalid bytes, special tokens or a moved window change the text."""
    assert "".join(pieces(BYTE_LEVEL, ids, skip=skip)) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


def test_invalid_bytes_are_not_kept_back_for_ever() -> None:
    """Fault: a model that writes rubbish stays silent until its end."""
    token = id_of(BYTE_LEVEL, "ÿ")  # the byte 0xFF, which begins no character
    found = pieces(BYTE_LEVEL, [token] * 20)
    assert len("".join(found[:-1])) >= 16


def test_special_tokens_show_only_when_asked_for() -> None:
    """Fault: an explicit skip_special_tokens=False is ignored."""
    ids = [id_of(BYTE_LEVEL, SPECIAL_TOKENS[0]), *BYTE_LEVEL.encode("fox").ids]
    assert "".join(pieces(BYTE_LEVEL, ids)) == "fox"
    assert "".join(pieces(BYTE_LEVEL, ids, skip=False)) == "<|bos|>fox"


def test_a_first_token_that_is_decoded_differently() -> None:
    """Fault: the space before a word is lost at a border of the window, or a byte character is shown in parts."""
    tokenizer = byte_fallback()
    euro = [id_of(tokenizer, f"<0x{byte:02X}>") for byte in "€".encode()]
    ids = [0, 3, *euro, 0, *euro, *euro, 1, 2]
    found = pieces(tokenizer, ids)
    assert "".join(found) == tokenizer.decode(ids) == "Hi you€ Hi€€ there"
    assert not any("\ufffd" in piece for piece in found)
