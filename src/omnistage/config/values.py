"""The types that a configuration key can have: what each accepts, in words and as a check, and how it is read from text.

Strict: true is no integer, "1" is no integer, 1 is no text. A `Number` takes integers. Ranges include their ends.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Boolean:
    pass


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Number:
    """A finite float. `positive` leaves `low` out of the range."""

    low: float
    high: float
    positive: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """One of `choices`, or any text that is not empty when there are none."""

    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Names to texts; with `texts` False to anything (checked by whoever knows the names)."""

    texts: bool = True


ValueType = Boolean | Integer | Number | Text | Table


def accepted(kind: ValueType) -> str:
    """What `kind` accepts, as a phrase for an error or a reference page."""
    match kind:
        case Boolean():
            return "true or false"
        case Integer(low=low, high=high):
            return f"an integer in [{low}, {high}]"
        case Number(low=low, high=high, positive=positive):
            return f"a number in {'(' if positive else '['}{low:g}, {high:g}]"
        case Text(choices=()):
            return "a text that is not empty"
        case Text(choices=choices):
            return ", ".join(choices)
        case Table(texts=texts):
            return "a mapping of names to texts" if texts else "a mapping of names to values"


def conforms(kind: ValueType, value: object) -> bool:
    """True if `value` is of the type and within the range."""
    match kind, value:
        case Boolean(), bool():
            return True
        case _, bool():
            return False
        case Integer(low=low, high=high), int(number):
            return low <= number <= high
        case Number(low=low, high=high, positive=positive), int(number) | float(number):
            return math.isfinite(number) and low <= number <= high and not (positive and number == low)
        case Text(choices=choices), str(text):
            return text in choices if choices else bool(text)
        case Table(texts=texts), dict(entries):
            return all(
                isinstance(name, str) and (isinstance(entry, str) or not texts) for name, entry in entries.items()
            )
        case _:
            return False


def parsed(kind: ValueType, text: str) -> Any:
    """The value that a command line means by `text`; what cannot be read comes back as the text, for `conforms` to refuse."""
    try:
        match kind:
            case Boolean():
                return _boolean(text)
            case Integer():
                return int(text)
            case Number():
                return float(text)
            case Table():
                return json.loads(text)
            case Text():
                return text
    except ValueError:
        return text


def _boolean(text: str) -> bool | str:
    if text.lower() in _TRUE:
        return True
    return False if text.lower() in _FALSE else text
