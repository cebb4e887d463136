"""The types of keys: strict about types, ranges with their ends, text from a command line."""

import math
from typing import Any

import pytest

from omnistage.config.values import Boolean, Integer, Number, Table, Text, ValueType, accepted, conforms, parsed

INTEGER, NUMBER, POSITIVE = Integer(1, 3), Number(0, 1), Number(0, 1, positive=True)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Boolean(), [True, False], [0, 1, "true", None]),
        (INTEGER, [1, 3], [0, 4, True, 1.0, "1", None]),
        (NUMBER, [0, 1, 0.5], [-0.1, 1.1, True, math.nan, math.inf, "0", None]),
        (POSITIVE, [0.1, 1], [0, 0.0]),
        (Text(), ["a"], ["", 1, None]),
        (Text(("a", "b")), ["a", "b"], ["c", ""]),
        (Table(), [{}, {"a": "b"}], [{"a": 1}, {1: "b"}, [], "x", None]),
        (Table(texts=False), [{"a": 1}], [{1: 1}, []]),
    ],
)
def test_a_type_takes_its_own_values_and_no_others(kind: ValueType, good: list[Any], bad: list[Any]) -> None:
    """Fault: true taken for 1, text for a number, an end of a range left out."""
    assert [value for value in good if not conforms(kind, value)] == []
    assert [value for value in bad if conforms(kind, value)] == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Boolean(), "true or false"),
        (INTEGER, "an integer in [1, 3]"),
        (NUMBER, "a number in [0, 1]"),
        (POSITIVE, "a number in (0, 1]"),
        (Text(), "a text that is not empty"),
        (Text(("a", "b")), "a, b"),
        (Table(), "a mapping of names to texts"),
        (Table(texts=False), "a mapping of names to values"),
    ],
)
def test_what_is_accepted_is_said_in_words(kind: ValueType, words: str) -> None:
    """Fault: an error that does not say what would have been right."""
    assert accepted(kind) == words


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Boolean(), "TRUE", True),
        (Boolean(), "off", False),
        (Boolean(), "0", False),
        (Boolean(), "perhaps", "perhaps"),
        (INTEGER, "2", 2),
        (INTEGER, "two", "two"),
        (NUMBER, "0.5", 0.5),
        (Text(), "0", "0"),
        (Table(), '{"a": "b"}', {"a": "b"}),
        (Table(), "{", "{"),
    ],
)
def test_text_is_read_by_type_and_stays_text_when_it_cannot_be(kind: ValueType, text: str, value: Any) -> None:
    """Fault: `--devices 0` read as a number; an unreadable value that crashes in place of being refused."""
    read = parsed(kind, text)
    assert read == value
    assert type(read) is type(value)
