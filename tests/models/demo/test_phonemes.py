"""English text in Kokoro's alphabet: nothing dropped, nothing outside the alphabet."""

import threading
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnistage.models.demo.cuts import PHONEME_LIMIT, cut_text
from omnistage.models.demo.phonemes import EnglishPhonemes, to_kokoro

ENGLISH = EnglishPhonemes()
ALPHABET = set(" ;:,.!?—…()“”AIOTWYbdfhijklmnpstuvwzæðŋɑɐɔəɛɜɡɪɹɾʃʊʌʒʤʧˈˌθᵊ")


@pytest.mark.parametrize(
    ("ipa", "ours"),
    [
        ("ˈeɪ", "ˈA"), ("oʊ", "O"), ("aɪ", "I"), ("aʊ", "W"), ("ɔɪ", "Y"), ("t͡ʃ", "ʧ"), ("d͡ʒ", "ʤ"), ("tʃ", "ʧ"),
        ("lˈɑtɚ", "lˈɑtəɹ"), ("bˈɚd", "bˈɜɹd"), ("ɝ", "ɜɹ"), ("rg", "ɹɡ"), ("iː‖|", "i"),
    ],
)  # fmt: skip
def test_the_alphabets_differ_in_these_letters(ipa: str, ours: str) -> None:
    """Fault: an IPA letter that the model does not know, or a diphthong read as two vowels."""
    assert to_kokoro(ipa) == ours


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Hello there.", "hɛlˈO ðˈɛɹ."),
        ('He said "read it" (I read it).', "hˈi sˈɛd “ɹˈid ˈɪt” (ˈI ɹˈɛd ˈɪt)."),
        ("a—b", "ə — bˈi"),
        ("GPUs", "ʤˈi pˈi jˈuz"),
        ("café", "kæfˈA"),
        ("the dog's", "ðə dˈɔɡz"),
        ("C++", "sˈi plˈʌs plˈʌs"),
    ],
)
def test_writing(text: str, phonemes: str) -> None:
    """Fault: spaces inside words, marks at the wrong side, or a word of the wrong part of speech."""
    assert ENGLISH.phonemes(text) == phonemes
    assert ENGLISH.count(text) == len(phonemes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Rayleigh", 1), ("1945", 3), ("3.14", 4), ("$5", 2), ("50%", 2), ("COVID-19", 2), ("e.g.", 2), ("C++", 3),
        ("H2O", 3), ("2nd", 1), ("1,000,000", 2), ("ω", 1), ("café", 1), ("Xyzzqwrt", 1), ("brrr", 4), ("東京", 2),
        ("3/4", 3), ("10km", 2), ("1990s", 2), ("x ≠ y", 5),
    ],
)  # fmt: skip
def test_nothing_is_silently_dropped(text: str, words: int) -> None:
    """Fault: digits, symbols and unknown words that a dictionary passes over."""
    spoken_words = ENGLISH.phonemes(text).split()
    assert len(spoken_words) == words
    assert all(set(word) & set("AIOWYiuæɑɔəɛɜɪʊʌ") for word in spoken_words)


def test_a_word_without_phonemes_is_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a word for which neither dictionary nor rules have anything vanishes."""
    silent = SimpleNamespace(
        lookup_phonemes=lambda word, role=None, do_transforms=True: None,
        guess_phonemes=lambda word, role=None: [],
        get_parts_of_speech=lambda words: ["NN"] * len(words),
    )
    english = EnglishPhonemes()
    monkeypatch.setattr(english, "_gruut", silent)
    assert english.phonemes("hi.") == "ˈAʧ ˈI."


@pytest.mark.parametrize("text", ["", "🎉", "...", "**", " \n", "—"])
def test_what_says_nothing_has_no_phonemes(text: str) -> None:
    """Fault: the synthesiser is asked to speak punctuation alone, and makes a noise."""
    assert ENGLISH.phonemes(text) == ""


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="abcdefghijklmnop ABC',.-!?012$%", max_size=60))
@example("A.A²")
@example("x.²³½")
def test_every_phoneme_is_in_the_alphabet(text: str) -> None:
    """Fault: a letter of the dictionary's IPA that the model has no token for."""
    assert set(ENGLISH.phonemes(text)) <= ALPHABET


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["1,234,567", "Hello", "≠", "x" * 30, "yes,", "no.", "$9.99", "≥≥≥≥"]), max_size=40))
def test_cuts_counted_in_phonemes_stay_short(parts: list[str]) -> None:
    """Fault: a cut that is short in letters and long in phonemes."""
    assert all(ENGLISH.count(cut) <= PHONEME_LIMIT for cut in cut_text(" ".join(parts), ENGLISH.count))


def test_threads_share_the_dictionary() -> None:
    """Fault: a database connection that refuses threads which did not open it."""
    texts = [f"word number {index}" for index in range(4)]
    found: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda text=text: found.update({text: ENGLISH.phonemes(text)})) for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == {text: EnglishPhonemes().phonemes(text) for text in texts}
