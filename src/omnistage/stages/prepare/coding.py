"""What a processor made, as bytes and back: tensors laid out as in any payload, everything else as plain data.

Equal on both sides: a numpy array comes back as one (read-only), any other tensor as core's own. What would come back as something
else (a tuple, an object of the family's) is refused by name. Knows no processes and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from omnistage.connectors.base import lay_out, read, write
from omnistage.core.errors import StageFailedError
from omnistage.core.payload import MultimodalPayload, PayloadRef, Tensor, TensorSource
from omnistage.core.spec import DTYPE_NBYTES
from omnistage.modeling.protocols import MediaInput, ProcessedPrompt, StageInput

Prepared = ProcessedPrompt | list[StageInput]
"""What a processor makes: a prompt in an AR stage, inputs in a generation stage."""

_PLAIN = (type(None), bool, int, float, str, bytes)
_ALONE = "tensor"


class _Carried(msgspec.Struct, frozen=True):
    """A mapping: tensors and plain data in one payload that carries its bytes. `arrays` were numpy's."""

    ref: PayloadRef
    arrays: tuple[str, ...] = ()


class _Media(msgspec.Struct, frozen=True):
    kind: str
    key: str
    spans: tuple[tuple[int, int], ...]
    tokens: int
    data: _Carried


class _Prompt(msgspec.Struct, frozen=True, tag="prompt", kw_only=True):
    token_ids: tuple[int, ...]
    content_key: str
    embeds: _Carried | None = None
    media: tuple[_Media, ...] = ()
    positions: _Carried | None = None
    next_position: int | None = None
    handoff: _Carried | None = None
    outputs_at: tuple[tuple[int, int], ...] | None = None


class _Input(msgspec.Struct, frozen=True):
    data: _Carried
    nbytes: int


class _Inputs(msgspec.Struct, frozen=True, tag="inputs"):
    inputs: tuple[_Input, ...]


_DECODER = msgspec.msgpack.Decoder(_Prompt | _Inputs)


def encode(value: Prepared) -> bytes:
    """Raises StageFailedError, with the path and the type, for what cannot travel."""
    match value:
        case ProcessedPrompt():
            return msgspec.msgpack.encode(_packed_prompt(value))
        case list() if all(isinstance(unit, StageInput) for unit in value):
            units = enumerate(value)
            return msgspec.msgpack.encode(
                _Inputs(tuple(_Input(_carried(unit.data, f"inputs[{at}]."), unit.nbytes) for at, unit in units))
            )
    raise _refused("its result", value, "a ProcessedPrompt or a list of StageInput")


def decode(data: bytes) -> Prepared:
    """A fresh value every time; its tensors are read-only views of fresh bytes."""
    match _DECODER.decode(data):
        case _Prompt() as prompt:
            return _unpacked_prompt(prompt)
        case _Inputs(inputs=inputs):
            return [StageInput(_unpacked(unit.data), unit.nbytes) for unit in inputs]


def _packed_prompt(prompt: ProcessedPrompt) -> _Prompt:
    return _Prompt(
        token_ids=tuple(map(int, prompt.token_ids)),
        content_key=prompt.content_key,
        embeds=_carried_tensor(prompt.embeds, "prompt.embeds"),
        media=tuple(_packed_media(media, f"prompt.media[{at}]") for at, media in enumerate(prompt.media)),
        positions=_carried_tensor(prompt.positions, "prompt.positions"),
        next_position=prompt.next_position,
        handoff=_carried(prompt.handoff, "prompt.handoff.") if prompt.handoff else None,
        outputs_at=prompt.outputs_at,
    )


def _unpacked_prompt(prompt: _Prompt) -> ProcessedPrompt:
    return ProcessedPrompt(
        prompt.token_ids,
        _tensor_of(prompt.embeds),
        prompt.content_key,
        tuple(MediaInput(one.kind, one.key, one.spans, one.tokens, _unpacked(one.data)) for one in prompt.media),
        _tensor_of(prompt.positions),
        prompt.next_position,
        {} if prompt.handoff is None else _unpacked(prompt.handoff),
        prompt.outputs_at,
    )


def _packed_media(media: MediaInput, where: str) -> _Media:
    return _Media(media.kind, media.key, media.spans, media.tokens, _carried(media.data, f"{where}."))


def _carried_tensor(value: object, where: str) -> _Carried | None:
    match value:
        case None:
            return None
        case np.ndarray() | TensorSource():
            return _carried({_ALONE: value}, f"{where}.")
    raise _refused(where, value, "a numpy array or a payload's tensor")


def _tensor_of(carried: _Carried | None) -> Any:
    return None if carried is None else _unpacked(carried)[_ALONE]


def _carried(data: Mapping[str, Any], where: str) -> _Carried:
    tensors: dict[str, TensorSource] = {}
    metadata: dict[str, Any] = {}
    arrays = []
    for name, value in data.items():
        match value:
            case np.ndarray() if value.dtype.name in DTYPE_NBYTES:
                tensors[name] = Tensor.of(value.astype(value.dtype.newbyteorder("="), copy=False))
                arrays.append(name)
            case TensorSource():
                tensors[name] = value
            case _:
                metadata[name] = _checked(value, f"{where}{name}")
    payload = MultimodalPayload(tensors, metadata)
    places, nbytes = lay_out(payload)
    inline = bytearray(nbytes)
    write(payload, places, memoryview(inline))
    return _Carried(PayloadRef("", "", 0, 0, places, metadata, nbytes, bytes(inline)), tuple(arrays))


def _unpacked(carried: _Carried) -> dict[str, Any]:
    payload = read(carried.ref, memoryview(carried.ref.inline or b""))
    arrays = {name: payload.numpy(name) for name in carried.arrays}
    return {**payload.metadata, **payload.tensors, **arrays}


def _checked(value: Any, where: str) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        for at, held in enumerate(value):
            _checked(held, f"{where}[{at}]")
        return value
    if type(value) is dict and all(type(name) is str for name in value):
        for name, held in value.items():
            _checked(held, f"{where}.{name}")
        return value
    raise _refused(where, value, "None, numbers, texts, bytes, lists and dicts of them; tensors beside them by name")


def _refused(where: str, value: object, accepted: str) -> StageFailedError:
    return StageFailedError(f"the processor made {where} as {type(value).__name__}; accepted: {accepted}")
