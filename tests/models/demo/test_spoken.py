"""What is read aloud: nothing that can be said is dropped, nothing that is decoration is said."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.models.demo.spoken import Mark, Word, spoken

PARTS = ("cat", "dog", "7", "12", "$5", "3.14", "%", "+", "=", "@", "NASA", "e.g.", "2nd", "ω", "é")


def said(text: str) -> str:
    """Words and marks; spelt ones in capitals."""
    return " ".join(
        token.text.upper() if isinstance(token, Word) and token.spelled else token.text for token in spoken(text)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Rayleigh", "rayleigh"),
        ("1945", "nineteen forty five"),
        ("3.14", "three point one four"),
        ("$5", "five dollars"),
        ("$1", "one dollar"),
        ("£3.50", "three pounds and fifty pence"),
        ("$1.5 million", "one point five million dollars"),
        ("50%", "fifty percent"),
        ("-5 °C", "minus five degrees celsius"),
        ("10km and 1 kg", "ten kilometers and one kilogram"),
        ("5-10, 5–10", "five to ten , five to ten"),
        ("1,000,000", "one million"),
        ("2,5", "two , five"),
        ("007", "zero zero seven"),
        ("2nd", "second"),
        ("1990s", "nineteen nineties"),
        ("10:05 am", "ten oh five A M"),
        ("10:00", "ten o'clock"),
        ("16:9", "sixteen to nine"),
        ("2024-01-05", "january fifth twenty twenty four"),
        ("555-1234", "five five five , one two three four"),
        ("v1.2.3", "V one point two point three"),
        (".5", "point five"),
        ("COVID-19", "covid nineteen"),
        ("H2O, MP3", "H two O , M P three"),
        ("C++ and C#", "C plus plus and C sharp"),
        ("e.g. i.e. U.S. a.m.", "E G I E U S A M"),
        ("Dr. No", "doctor no"),
        ("NASA, the FBI, GPUs", "nasa , the F B I , G P U'S"),
        ("DO NOT", "do not"),
        ("World War II", "world war two"),
        ("JavaScript OpenAI", "java script open A I"),
        ("E=mc²", "E equals M C squared"),
        ("x < 3 & y ≠ 7", "X less than three and Y not equal to seven"),
        ("½ cup", "one half cup"),
        ("a@b.com", "a at B dot com"),
        ("https://a.org/b?c=1.", "https colon slash slash a dot org slash B question mark C equals one ."),
        ("foo_bar, 3*4", "foo underscore bar , three times four"),
        ("well-known - yes—no", "well known — yes — no"),
        ("it’s don't dogs'", "it's don't dogs"),
        ("café Straße œuvre", "cafe strasse oeuvre"),
        ("ω π", "omega pi"),
        ("да", "de a"),
        ("か안", "ka an"),
        ("漢", "ideograph"),
        ("#1 #tag", "number one hashtag tag"),
        ('He said "yes" (no).', "he said “ yes ” ( no ) ."),
        ("So...", "so …"),
    ],
)
def test_readings(text: str, expected: str) -> None:
    """Fault: a number, symbol, acronym or foreign letter dropped or misread."""
    assert said(text).replace("https", "H T T P S") == expected.replace("https", "H T T P S")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## Title\n\n**Bold** _it_ ~~old~~ `code`", "title bold it old code"),
        ("- one\n* two\n> three", "one two three"),
        ("---\n***\n```\nend", "end"),
        ("|a|b|\n|---|---|", ", a , B ,"),
        ("🎉 ok ✨👍🏽 ✓ → ", "ok to"),
        ("[link]", "link"),
        ("\x00\u200b", ""),
    ],
)
def test_decoration_is_silent(text: str, expected: str) -> None:
    """Fault: markdown marks, emoji or control characters read aloud."""
    assert said(text) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_every_letter_and_digit_is_said(text: str) -> None:
    """Fault: a character that no rule takes, or one that a rule swallows."""
    tokens = spoken(text)
    assert all(token.text for token in tokens)
    words = [token.text for token in tokens if isinstance(token, Word)]
    assert all(set(word) <= set("abcdefghijklmnopqrstuvwxyz'") for word in words)
    marks = {token.text for token in tokens if isinstance(token, Mark)}
    assert marks <= set(",.!?;:…—()“”")


@settings(max_examples=500, deadline=None)
@given(st.characters(categories=["L", "N"]))
def test_a_letter_or_digit_alone_is_said(character: str) -> None:
    """Fault: a script or number form without a reading."""
    assert any(isinstance(token, Word) for token in spoken(character)), unicodedata.name(character, "?")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_words_apart_are_all_said(parts: list[str]) -> None:
    """Fault: a rule that takes its neighbour's characters."""
    words = [token.text for token in spoken(" , ".join(parts)) if isinstance(token, Word)]
    alone = [token.text for part in parts for token in spoken(part) if isinstance(token, Word)]
    assert words == alone
