"""From bytes to a checked body; what is refused names the field at its depth."""

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.serve.protocol.strict import Given, Strict, parse


class Inner(Strict):
    name: str | None = None
    size: int = 0


class Outer(Strict):
    needed: int
    inner: Inner | None = None
    some: list[Inner] | None = None
    free: Given = None


def test_a_body_that_is_right() -> None:
    """Fault: a value is changed on its way."""
    assert parse(Outer, b'{"needed": 1, "inner": {"name": "x"}, "free": [1, null]}') == Outer(
        needed=1, inner=Inner(name="x"), free=[1, None]
    )


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (b'{"needed": "1"}', "needed", "'1' is not accepted; accepted: a valid integer"),
        (b"{}", "needed", "is missing"),
        (b'{"neded": 1}', "neded", "did you mean 'needed'"),
        (b'{"needed": 1, "inner": {"nme": "x"}}', "inner.nme", "did you mean 'name'"),
        (b'{"needed": 1, "inner": {"zzz": "x"}}', "inner.zzz", "accepted: name, size"),
        (b'{"needed": 1, "inner": 5}', "inner", "accepted: "),
        (b'{"needed": 1, "some": [{"size": true}]}', "some.0.size", "integer"),
        (b'{"needed": 1, "some": [{"sze": 1}]}', "some.0.sze", "did you mean 'size'"),
        (b'{"needed": 1, "a b": 1}', "a b", "unknown field"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, field: str, said: str) -> None:
    """Fault: a path that leads nowhere, or a near name of another level."""
    with pytest.raises(InvalidRequestError) as caught:
        parse(Outer, body)
    assert caught.value.field == field
    assert said in caught.value.message


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"7", b'{"needed": 1', b"\xff\xfe"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    """Fault: 500 for bytes that are no JSON, or JSON that is no object."""
    with pytest.raises(InvalidRequestError, match="JSON"):
        parse(Outer, body)
