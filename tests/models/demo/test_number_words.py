"""Names of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.models.demo import number_words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety nine"),
        (100, "one hundred"),
        (1205, "one thousand two hundred five"),
        (1_000_000, "one million"),
        (12_000_000_001, "twelve billion one"),
        (999 * 10**12, "nine hundred ninety nine trillion"),
    ],
)
def test_cardinals(number: int, words: str) -> None:
    """Fault: a scale left out or doubled."""
    assert " ".join(number_words.cardinal(number)) == words


@given(st.integers(0, 10**15 - 1))
def test_cardinals_can_be_read_back(number: int) -> None:
    """Fault: two numbers with the same name, or a rest that is dropped."""
    values = {word: value for value, word in enumerate(number_words._UNITS)}
    values |= {word: 10 * ten for ten, word in enumerate(number_words._TENS) if ten > 1}
    scales = {name: scale for scale, name in number_words._SCALES}
    total = group = 0
    for word in number_words.cardinal(number):
        if word == "hundred":
            group *= 100
        elif word in scales:
            total, group = total + group * scales[word], 0
        else:
            group += values[word]
    assert total + group == number


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "first"), (2, "second"), (12, "twelfth"), (20, "twentieth"), (21, "twenty first"), (100, "one hundredth")],
)
def test_ordinals(number: int, words: str) -> None:
    """Fault: regular endings on irregular words."""
    assert " ".join(number_words.ordinal(number)) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1945, "nineteen forty five"),
        (1905, "nineteen oh five"),
        (1900, "nineteen hundred"),
        (2000, "two thousand"),
        (2004, "two thousand four"),
        (2024, "twenty twenty four"),
    ],
)
def test_years(number: int, words: str) -> None:
    """Fault: a year read as a quantity."""
    assert " ".join(number_words.year(number)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3.14", "three point one four"),
        ("0.05", "zero point zero five"),
        ("1.2.13", "one point two point thirteen"),
    ],
)
def test_decimals(text: str, words: str) -> None:
    """Fault: the digits behind the point read as a whole number, or a zero lost."""
    assert " ".join(number_words.decimal(text)) == words


def test_digits_one_by_one() -> None:
    """Fault: a leading zero lost, or a number without a name refused."""
    assert number_words.integer("007") == ["zero", "zero", "seven"]
    assert number_words.integer("1" * 16) == ["one"] * 16
    assert number_words.plural(["nineteen", "ninety"]) == ["nineteen", "nineties"]
    assert number_words.plural(["six"]) == ["sixes"]
