"""What a processor made comes back equal, or is refused by name.

Faults pinned: an array that comes back transposed, in another type or writable; a tuple that quietly becomes a list; prompts whose
embeddings are lost; one value shared by two requests.
"""

from typing import Any

import numpy as np
import pytest

from omnistage.core.errors import OmniError
from omnistage.core.payload import Tensor
from omnistage.modeling.protocols import MediaInput, ProcessedPrompt, StageInput
from omnistage.stages.prepare.coding import decode, encode
from tests.stages.prepare.family import arrays


def assert_equal(found: Any, expected: Any) -> None:
    """Equal values of equal types, arrays element by element."""
    assert type(found) is type(expected)
    match expected:
        case np.ndarray():
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert np.array_equal(found, expected)
        case Tensor():
            assert found.spec == expected.spec
            assert_equal(found.numpy(), expected.numpy())
        case dict():
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert_equal(found[name], value)
        case list():
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert_equal(one, other)
        case _:
            assert found == expected


def test_inputs_come_back_equal_in_value_and_type() -> None:
    """Fault: one of them comes back as something else, or its size is forgotten."""
    inputs = [StageInput(arrays(), 7), StageInput({"token_ids": list(range(300))}), StageInput({})]
    found = decode(encode(inputs))
    assert isinstance(found, list)
    assert [unit.nbytes for unit in found] == [7, 0, 0]
    for unit, expected in zip(found, inputs, strict=True):
        assert_equal(dict(unit.data), dict(expected.data))


def test_arrays_come_back_read_only_and_unshared() -> None:
    """Fault: two requests with one prompt write into one another's input."""
    data = encode([StageInput(arrays())])
    one, other = decode(data), decode(data)
    assert isinstance(one, list)
    assert isinstance(other, list)
    assert not one[0].data["rows"].flags.writeable
    assert one[0].data["plain"] is not other[0].data["plain"]


@pytest.mark.parametrize("order", ["<f4", ">f4"])
def test_prompts_come_back_with_embeddings_and_key(order: str) -> None:
    """Fault: embeddings, or the bytes of another machine's order, are lost on the way."""
    embeds = np.arange(4, dtype=order).reshape(2, 2)
    found = decode(encode(ProcessedPrompt((1, 2), embeds, "picture")))
    assert isinstance(found, ProcessedPrompt)
    assert (found.token_ids, found.content_key) == ((1, 2), "picture")
    assert np.array_equal(found.embeds, embeds)  # type: ignore[arg-type]
    plain = ProcessedPrompt(tuple(range(1000)))
    assert decode(encode(plain)) == plain


def test_prompts_come_back_with_their_media() -> None:
    """Fault: a field of what is encoded, of positions or of what is handed on is lost, or a list comes back for a tuple."""
    picture = MediaInput("image", "k1", ((1, 3), (5, 6)), 3, {"pixel_values": arrays()["rows"], "grid_thw": [1, 2, 6]})
    sound = MediaInput("audio", "k2", (), 0, {})
    positions = np.arange(21, dtype=np.int32).reshape(3, 7)
    prompt = ProcessedPrompt(
        tuple(range(7)),
        media=(picture, sound),
        positions=positions,
        next_position=4,
        handoff={"ids": [1, 2], "positions": positions},
        outputs_at=((1, 3), (5, 6)),
    )
    found = decode(encode(prompt))
    assert isinstance(found, ProcessedPrompt)
    for name in ("kind", "key", "spans", "tokens"):
        assert [getattr(one, name) for one in found.media] == [getattr(one, name) for one in prompt.media]
    for one, expected in zip(found.media, prompt.media, strict=True):
        assert_equal(dict(one.data), dict(expected.data))
    assert_equal(found.positions, positions)
    assert_equal(dict(found.handoff), dict(prompt.handoff))
    assert (found.next_position, found.outputs_at) == (4, ((1, 3), (5, 6)))
    nothing = decode(encode(ProcessedPrompt((1,), outputs_at=())))
    assert isinstance(nothing, ProcessedPrompt)
    assert (nothing.outputs_at, nothing.positions, nothing.next_position) == ((), None, None)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([StageInput({"size": [1, (2, 3)]})], r"inputs\[0\]\.size\[1\] as tuple"),
        ([StageInput({}), StageInput({"by": {"id": {1: 2}}})], r"inputs\[1\]\.by\.id as dict"),
        ([StageInput({"scale": np.float64(2)})], r"inputs\[0\]\.scale as float64"),
        ([StageInput({"names": np.array(["a"])})], r"inputs\[0\]\.names as ndarray"),
        (ProcessedPrompt((1,), embeds="rows"), r"prompt\.embeds as str"),
        (ProcessedPrompt((1,), handoff={"names": (1,)}), r"prompt\.handoff\.names as tuple"),
        (ProcessedPrompt((1,), media=(MediaInput("image", "", (), 0, {"grid": {1}}),)), r"media\[0\]\.grid as set"),
        ([1], "its result as list; accepted: a ProcessedPrompt or a list of StageInput"),
        (None, "its result as NoneType"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused_by_name(made: Any, said: str) -> None:
    """Fault: a model gets a list where its processor made a tuple, with helpers only."""
    with pytest.raises(OmniError, match=said):
        encode(made)
