"""English text as Kokoro's phonemes.

What it does: reads a text with `spoken`, asks gruut for the IPA of every word, and writes the result
in Kokoro's alphabet, punctuation included. `phonemes(text)` is a pure function of the text; it is
"" for a text that says nothing. Every word of `spoken` is said: one that gruut has no phonemes for
is spelt. Importing this module imports gruut (0.6 s); making an `EnglishPhonemes` loads it (0.2 s).

What it does not know: the vocabulary's ids, voices, cutting.

Kokoro's alphabet differs from IPA as gruut writes it: diphthongs and affricates are one letter,
rhotic vowels are two, there is no length mark. The length of the string is the phoneme count.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache

from gruut.const import TextProcessorSettings
from gruut.lang import get_settings
from gruut.phonemize import SqlitePhonemizer
from gruut.utils import find_lang_dir, remove_non_word_chars

from omnistage.models.demo.spoken import Mark, Token, Word, spoken

_LANGUAGE = "en_US"
_CACHED_TEXTS = 4096

# Longer ones first: they are replaced in this order.
_ALPHABET = (
    ("eɪ", "A"), ("oʊ", "O"), ("aɪ", "I"), ("aʊ", "W"), ("ɔɪ", "Y"), ("t͡ʃ", "ʧ"), ("tʃ", "ʧ"), ("d͡ʒ", "ʤ"),
    ("dʒ", "ʤ"), ("ˈɚ", "ˈɜɹ"), ("ˌɚ", "ˌɜɹ"), ("ɚ", "əɹ"), ("ɝ", "ɜɹ"), ("r", "ɹ"), ("g", "ɡ"), ("ː", ""),
    ("‖", ""), ("|", ""),
)  # fmt: skip
_LETTERS = {
    "a": "ˈA", "b": "bˈi", "c": "sˈi", "d": "dˈi", "e": "ˈi", "f": "ˈɛf", "g": "ʤˈi", "h": "ˈAʧ", "i": "ˈI",
    "j": "ʤˈA", "k": "kˈA", "l": "ˈɛl", "m": "ˈɛm", "n": "ˈɛn", "o": "ˈO", "p": "pˈi", "q": "kjˈu", "r": "ˈɑɹ",
    "s": "ˈɛs", "t": "tˈi", "u": "jˈu", "v": "vˈi", "w": "dˈʌbᵊlju", "x": "ˈɛks", "y": "wˈI", "z": "zˈi",
}  # fmt: skip
_OPENING = "(“"


def to_kokoro(ipa: str) -> str:
    """One word's IPA in Kokoro's alphabet."""
    for theirs, ours in _ALPHABET:
        ipa = ipa.replace(theirs, ours)
    return ipa


class EnglishPhonemes:
    """Text to phonemes. Calls from several threads are safe; results are cached by text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gruut = _open_gruut()
        self.phonemes = lru_cache(maxsize=_CACHED_TEXTS)(self._phonemes)

    def count(self, text: str) -> int:
        """The number of phonemes of `text`: what a cut's length and the style row are measured in."""
        return len(self.phonemes(text))

    def _phonemes(self, text: str) -> str:
        with self._lock:
            tokens = spoken(text, self._known)
            if not any(isinstance(token, Word) for token in tokens):
                return ""
            return _written(tokens, self._said(tokens))

    def _said(self, tokens: Sequence[Token]) -> list[str]:
        """The phonemes of every token, marks as they are. Parts of speech choose between "read" and "read"."""
        parts_of_speech = self._gruut.get_parts_of_speech([token.text for token in tokens])
        return [
            token.text if isinstance(token, Mark) else self._word(token, f"gruut:{part}")
            for token, part in zip(tokens, parts_of_speech, strict=True)
        ]

    def _word(self, word: Word, role: str) -> str:
        if word.spelled:
            return _spelt(word.text)
        found = self._gruut.lookup_phonemes(word.text, role) or self._gruut.guess_phonemes(word.text, role)
        return to_kokoro("".join(found or ())) or _spelt(word.text)

    def _known(self, word: str) -> bool:
        return bool(self._gruut.lookup_phonemes(word, do_transforms=False))


def _open_gruut() -> TextProcessorSettings:
    """gruut's dictionary, guesser and tagger, loaded. Its own way to the dictionary binds it to one thread."""
    path = find_lang_dir(_LANGUAGE) / "lexicon.db"
    connection = sqlite3.connect(str(path), check_same_thread=False)
    dictionary = SqlitePhonemizer(connection, word_transform_funcs=[remove_non_word_chars])  # dog's -> dogs
    gruut = get_settings(_LANGUAGE, lookup_phonemes=dictionary)
    gruut.guess_phonemes("warm")
    gruut.get_parts_of_speech(["warm"])
    return gruut


def _spelt(letters: str) -> str:
    """Letter by letter; "u's" is the plural or possessive of a letter."""
    names = " ".join(_LETTERS[letter] for letter in letters.removesuffix("'s") if letter in _LETTERS)
    return names + "z" if letters.endswith("'s") else names


def _written(tokens: Sequence[Token], said: Sequence[str]) -> str:
    """Words apart by spaces; closing marks stand at the word before them, opening ones at the word after."""
    text = ""
    for token, phonemes in zip(tokens, said, strict=True):
        closing = isinstance(token, Mark) and token.text not in _OPENING and token.text != "—"
        text += phonemes if not text or closing or text[-1] in _OPENING else " " + phonemes
    return text
