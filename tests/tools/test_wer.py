"""The measure itself: a yardstick that forgives too much would hide dropped words."""

import pytest

from tests.tools.wer import WordErrors, normalise, word_errors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, World!", "hello world"),
        ("In 1945, $5 or 50%", "in nineteen forty five five dollars or fifty percent"),
        ("1,000,000 and 3.14", "one million and three point one four"),
        ("$95 billion", "ninety five billion dollars"),
        ("the 2nd, 3,4", "the second three four"),
        ("Colour & grey café", "color and gray cafe"),
        ("it's COVID-19", "it's covid nineteen"),
        ("Dr. Smith’s", "doctor smith's"),
        ("", ""),
    ],
)
def test_both_sides_are_written_alike(text: str, words: str) -> None:
    """Fault: "50%" and "fifty percent" counted as errors."""
    assert normalise(text) == words.split()


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a c", 1),
        ("a b c", "a x b c", 1),
        ("a b c", "a x c", 1),
        ("a b", "", 2),
        ("", "a b", 2),
        ("one two three", "three two one", 2),
    ],
)
def test_word_errors(reference: str, hypothesis: str, errors: int) -> None:
    """Fault: deletions, insertions or substitutions that are not counted."""
    assert word_errors(reference, hypothesis) == WordErrors(errors, len(reference.split()))


def test_rates_add_up() -> None:
    """Fault: an average of rates where short texts weigh as much as long ones."""
    total = WordErrors(1, 10) + WordErrors(0, 30)
    assert total.rate == pytest.approx(1 / 40)
    assert WordErrors(0, 0).rate == 0
