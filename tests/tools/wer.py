"""Word error rate between a text and what a recogniser heard of it.

Both sides are normalised alike: lower case, numbers spelt out, a fixed table of British and American
spellings, no punctuation. The normalisation shares no code with what the speech synthesiser reads, but
for the names of whole numbers, so that a symbol that is dropped there counts as an error here.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from omnistage.models.demo import number_words

_SPELLINGS = {
    "colour": "color", "colours": "colors", "favourite": "favorite", "grey": "gray", "centre": "center",
    "metre": "meter", "metres": "meters", "kilometre": "kilometer", "kilometres": "kilometers", "litre": "liter",
    "litres": "liters", "theatre": "theater", "organise": "organize", "organised": "organized",
    "recognise": "recognize", "recognised": "recognized", "realise": "realize", "realised": "realized",
    "travelling": "traveling", "travelled": "traveled", "neighbour": "neighbor", "neighbours": "neighbors",
    "behaviour": "behavior", "honour": "honor", "labour": "labor", "harbour": "harbor", "flavour": "flavor",
    "flavours": "flavors", "defence": "defense", "programme": "program", "towards": "toward", "analyse": "analyze",
    "catalogue": "catalog", "dialogue": "dialog", "okay": "ok", "mr": "mister", "dr": "doctor", "mrs": "missus",
    "whilst": "while", "cheque": "check", "tyre": "tire", "plough": "plow", "aluminium": "aluminum",
}  # fmt: skip
_SYMBOLS = {"%": " percent ", "&": " and ", "+": " plus ", "=": " equals ", "°": " degrees ", "@": " at "}
_MONEY = re.compile(r"([$£€])(\d[\d,]*(?:\.\d+)?(?: (?:thousand|million|billion|trillion))?)")
_CURRENCIES = {"$": "dollars", "£": "pounds", "€": "euros"}
_NUMBER = re.compile(r"(\d[\d,]*\d|\d)(?:\.(\d+))?(st|nd|rd|th)?")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")


@dataclass(frozen=True, slots=True)
class WordErrors:
    """`errors`: substitutions, deletions and insertions; `words`: of the reference."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        return self.errors / max(1, self.words)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(self.errors + other.errors, self.words + other.words)


def normalise(text: str) -> list[str]:
    """The words that are compared."""
    decomposed = unicodedata.normalize("NFKD", text.lower()).replace("’", "'")
    text = "".join(character for character in decomposed if not unicodedata.combining(character))
    text = _MONEY.sub(lambda match: f"{match[2]} {_CURRENCIES[match[1]]}", text)
    for symbol, name in _SYMBOLS.items():
        text = text.replace(symbol, name)
    text = _NUMBER.sub(_spelt_out, text)
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)*", text)
    return [_SPELLINGS.get(word, word) for word in words]


def _spelt_out(match: re.Match[str]) -> str:
    whole, fraction, suffix = match.groups()
    if "," in whole and not _GROUPED.fullmatch(whole):
        return " ".join(" ".join(number_words.integer(part)) for part in whole.split(",") if part)
    digits = whole.replace(",", "")
    if suffix:
        return f" {' '.join(number_words.ordinal(int(digits)))} "
    if fraction:
        return f" {' '.join(number_words.decimal(f'{digits}.{fraction}'))} "
    if re.fullmatch(r"1[1-9]\d\d|20\d\d", whole):
        return f" {' '.join(number_words.year(int(whole)))} "
    return f" {' '.join(number_words.integer(digits))} "


def word_errors(reference: str, hypothesis: str) -> WordErrors:
    """The smallest number of word edits from one to the other."""
    expected, heard = normalise(reference), normalise(hypothesis)
    row = list(range(len(heard) + 1))
    for i, word in enumerate(expected, start=1):
        previous, row = row, [i]
        for j, other in enumerate(heard, start=1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (word != other)))
    return WordErrors(row[-1], len(expected))
