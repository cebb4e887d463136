"""English words of numbers: cardinals, ordinals, years, decimals. Pure; knows no text around a number.

Integers of more than 15 digits and those with leading zeros are read digit by digit.
"""

from __future__ import annotations

_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_MAX_DIGITS = 15


def cardinal(number: int) -> list[str]:
    """Words of 0 <= number < 10**15: 1205 -> one thousand two hundred five."""
    for scale, name in _SCALES:
        if number >= scale:
            rest = number % scale
            return cardinal(number // scale) + [name] + (cardinal(rest) if rest else [])
    if number >= 20:
        ten, unit = divmod(number, 10)
        return [_TENS[ten]] + ([_UNITS[unit]] if unit else [])
    return [_UNITS[number]]


def ordinal(number: int) -> list[str]:
    """22 -> twenty second."""
    *head, last = cardinal(number)
    if last in _IRREGULAR_ORDINALS:
        return [*head, _IRREGULAR_ORDINALS[last]]
    return [*head, last[:-1] + "ieth" if last.endswith("y") else last + "th"]


def plural(words: list[str]) -> list[str]:
    """nineteen ninety -> nineteen nineties."""
    *head, last = words
    return [*head, last[:-1] + "ies" if last.endswith("y") else last + ("es" if last.endswith("x") else "s")]


def year(number: int) -> list[str]:
    """A year of four digits: 1945 -> nineteen forty five, 1905 -> nineteen oh five, 2004 -> two thousand four."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return [*cardinal(century), "hundred"]
    return cardinal(century) + (["oh", _UNITS[rest]] if rest < 10 else cardinal(rest))


def digits(text: str) -> list[str]:
    """Every digit by its name; other characters are passed over."""
    return [_UNITS[int(character)] for character in text if character in "0123456789"]


def integer(text: str) -> list[str]:
    """A string of ASCII digits as one reads it: 0042 -> zero zero four two."""
    if len(text) > _MAX_DIGITS or (len(text) > 1 and text[0] == "0"):
        return digits(text)
    return cardinal(int(text))


def decimal(text: str) -> list[str]:
    """`3.14` -> three point one four; `1.2.3` (a version) -> one point two point three."""
    head, *parts = text.split(".")
    if len(parts) == 1:
        return [*integer(head), "point", *digits(parts[0])]
    words = integer(head)
    for part in parts:
        words += ["point", *integer(part)]
    return words
