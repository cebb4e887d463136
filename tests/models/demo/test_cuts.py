"""Cutting streamed text: cuts depend on the text alone, lose nothing, and stay short enough."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnistage.models.demo.cuts import PHONEME_LIMIT, CutState, cut_text, finish, push

PROSE = st.lists(
    st.sampled_from(
        [
            "Dr. ", "e.g. ", "Hello", " ", "\n", "\n\n", ", ", ". ", "...", "… ", "? ", "! ", "word ", "A", "b", "3.14 ",
            "1,000 ", "https://a.b/c?d=1. ", '"', "”", "(", ") ", "**", "# ", "`", "—", " - ", "1. ", "- ", "🎉", "。",
            "U.S. ", "etc. ", "x" * 90, "supercalifragilistic ", ": ", "; ",
        ]
    ),
    max_size=60,
).map("".join)  # fmt: skip


def count(text: str) -> int:
    """A fake phonemiser: letters and digits are heard, digits as five phonemes."""
    return sum(5 if character.isdigit() else character.isalpha() for character in text)


def streamed(deltas: list[str], limit: int = 150) -> list[str]:
    state, cuts = CutState(), []
    for delta in deltas:
        state, more = push(state, delta, count, limit)
        cuts += more
    return cuts + finish(state, count, limit)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@settings(max_examples=300, deadline=None)
@given(text=PROSE | st.text(max_size=200), borders=st.lists(st.integers(0, 400)), limit=st.integers(8, 150))
@example(text="He left... and so on. Then", borders=[10, 11], limit=150)
@example(text="It cost 3.14 in 1945. 5 more", borders=[9, 10], limit=150)
def test_cuts_depend_on_the_text_alone(text: str, borders: list[int], limit: int) -> None:
    """Fault: a border decided before the characters that could change it have come."""
    whole = cut_text(text, count, limit)
    places = sorted({0, len(text), *(border for border in borders if border < len(text))})
    assert streamed([text[a:b] for a, b in pairwise(places)], limit) == whole
    assert streamed(list(text), limit) == whole


@settings(max_examples=300, deadline=None)
@given(text=PROSE | st.text(max_size=300), limit=st.integers(5, 150))
def test_nothing_is_lost_and_no_cut_is_too_long(text: str, limit: int) -> None:
    """Fault: a word dropped or doubled at a border, or a cut that the synthesiser refuses."""
    cuts = cut_text(text, count, limit)
    assert squeezed("".join(cuts)) == squeezed(text)
    assert all(count(cut) <= limit and len(cut) <= 1000 for cut in cuts)


@settings(max_examples=100, deadline=None)
@given(text=PROSE.filter(lambda text: all(count(word) <= PHONEME_LIMIT for word in text.split())))
@example(text=". Dr. 1,000 1,000 " + "x" * 110)
def test_only_the_last_cut_can_be_silent(text: str) -> None:
    """Fault: the first cut is a heading's marks, and the early start is spent on it."""
    assert all(count(cut) > 0 for cut in cut_text(text, count)[:-1])


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("Well, yes, he said. Then, in May, he left.", ["Well,", "yes, he said.", "Then, in May, he left."]),
        ("Dr. Smith paid $3.50, e.g. for tea.", ["Dr. Smith paid $3.50,", "e.g. for tea."]),
        ("See https://a.b/c.html. It works.", ["See https://a.b/c.html.", "It works."]),
        ("It ended... Then it began… again.", ["It ended...", "Then it began… again."]),
        ('"Stop!" he said. "Why?" Nobody knew.', ['"Stop!"', 'he said.', '"Why?"', "Nobody knew."]),
        ("Steps:\n1. Mix it\n2. Bake it. Eat.", ["Steps:", "1. Mix it", "2. Bake it.", "Eat."]),
        ("### Title\n\n**Bold.** Text", ["### Title", "**Bold.**", "Text"]),
        ("---\nHello there. Bye", ["---\nHello there.", "Bye"]),
        ("The U.S. Army and J. R. Doe etc. And so on.", ["The U.S. Army and J. R. Doe etc.", "And so on."]),
        ("It was 1945. The end.", ["It was 1945.", "The end."]),
        ("He left—fast. Gone", ["He left—", "fast.", "Gone"]),
        ("你好。再见。", ["你好。", "再见。"]),
        ("🎉 Done! 🎉", ["🎉 Done!", "🎉"]),
        ("  \n ", []),
        ("", []),
    ],
)  # fmt: skip
def test_borders(text: str, cuts: list[str]) -> None:
    """Fault: a border at an abbreviation, a number, an address or a list number, or none at a real end."""
    assert cut_text(text, count) == cuts


def test_a_long_sentence_is_divided_at_clauses_then_words_then_inside_a_word() -> None:
    """Fault: the order in which the places to divide are looked for."""
    clauses = "Go! One two three, four five six, seven eight nine ten eleven twelve thirteen fourteen"
    assert cut_text(clauses, count, limit=28) == [
        "Go!", "One two three, four five six,", "seven eight nine ten eleven", "twelve thirteen fourteen",
    ]  # fmt: skip
    assert cut_text("aaaaaaaaa-bbbbbbbbb", count, limit=10) == ["aaaaaaaaa-", "bbbbbbbbb"]
    assert cut_text("x" * 25, count, limit=10) == ["xxxxxx", "xxxxxx", "xxxxxx", "xxxxxxx"]


def test_a_cut_comes_as_soon_as_nothing_can_change_it() -> None:
    """Fault: the first sound waits for the end of the sentence."""
    state, cuts = push(CutState(), "Yes, ", count)
    assert cuts == []
    state, cuts = push(state, "i", count)
    assert cuts == ["Yes,"]
    state, cuts = push(state, "t is. ", count)
    assert cuts == []
    _, cuts = push(state, "N", count)
    assert cuts == ["it is."]


def test_waiting_text_is_bounded() -> None:
    """Fault: a text without a border is kept whole."""
    state, longest = CutState(), 0
    for _ in range(300):
        state, _ = push(state, "0123456789abcdef" + "word " * 3, count)
        longest = max(longest, len(state.waiting) + sum(len(atom.word) for atom in state.pending))
    assert longest < 1300
