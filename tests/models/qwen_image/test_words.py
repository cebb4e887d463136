"""Prompts in which a small model knows no word."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.models.qwen_image.words import KnownWords, known_words

NAMED = {"known_words": "words.json"}


@pytest.mark.parametrize("text", ["cat", "a cat, please", "(cat)", "cat\ndog", "t-shirt"])
def test_one_known_word_is_enough(text: str) -> None:
    """Fault: punctuation beside a word makes it another one."""
    assert KnownWords(frozenset({"cat", "t-shirt"})).knows(text)


@pytest.mark.parametrize("text", ["dog", "cats", "Cat", "concat", "shirt", "cat-like", "\U0001f408"])
def test_without_one_the_field_and_some_words_are_named(text: str) -> None:
    """Fault: a part of a word, or another spelling, passes for one that was taught."""
    with pytest.raises(InvalidRequestError, match=r"of the 2 words .*: cat, t-shirt") as error:
        KnownWords(frozenset({"cat", "t-shirt"})).check(text, "messages[0].content")
    assert error.value.field == "messages[0].content"


def test_a_refusal_is_short() -> None:
    """Fault: hundreds of words in an error."""
    with pytest.raises(InvalidRequestError) as error:
        KnownWords(frozenset(f"word{number}" for number in range(1000))).check("cat" * 1000, "prompt")
    assert len(error.value.message) < 500


def test_the_file_is_named_by_the_pipeline(tmp_path: Path) -> None:
    """Fault: a large model refuses prompts, or a broken file refuses all of them."""
    assert known_words(tmp_path, {}) is None
    with pytest.raises(BrokenCheckpointError, match=r"words\.json"):
        known_words(tmp_path, NAMED)
    for wrong in ("{}", '{"words": []}', '{"words": ["cat", 1]}'):
        (tmp_path / "words.json").write_text(wrong)
        with pytest.raises(BrokenCheckpointError, match="accepted: a list of words"):
            known_words(tmp_path, NAMED)
    (tmp_path / "words.json").write_text('{"words": ["cat"]}')
    assert known_words(tmp_path, NAMED) == KnownWords(frozenset({"cat"}))
