"""The contract of the data plane: how one stage's payload becomes readable in another.

A connector moves bytes and knows nothing of requests' routes, stages or models. Three calls carry every hand-off:
`try_put` (sender; never blocks), `get` (receiver), `release` (sender's side again, when the last reader is done).
Payloads up to INLINE_NBYTES travel inside their reference and occupy nothing.

A receiver's IO thread must not wait for bytes. So it asks `can_read` first, and parks an item whose answer is False: a connector
whose bytes are somewhere else begins to fetch them when it is asked, calls back (`arrived`, given to it when it is made) when they
have come or will not come, and then answers True; `get` after that does not wait, and raises what went wrong. For one that only
needs a descriptor nothing is fetched; the descriptor's arrival is the call back. Whoever calls `get` without having asked waits,
at most for the connector's own deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from omnistage.config.stage import EdgeId
from omnistage.core.errors import ConnectorError
from omnistage.core.payload import MultimodalPayload, PayloadRef, Tensor, TensorPlace
from omnistage.core.spec import DTYPE_NBYTES

INLINE_NBYTES = 64 * 1024
ALIGNMENT_NBYTES = 64


class OmniConnector(Protocol):
    """Thread-safe. `name` stands in every reference that this connector makes."""

    name: str

    def try_put(self, payload: MultimodalPayload, *, oldest_of: EdgeId | None = None) -> PayloadRef | None:
        """Copies the payload once; None means no room now, try again later. `oldest_of`: the edge on which it is the
        oldest request's; one payload of it finds room however full everything is, for only that request can make room.

        Raises PayloadTooLargeError for what can never fit.
        """

    def can_read(self, ref: PayloadRef) -> bool:
        """False while the bytes of `ref` are not within reach yet; may begin to fetch them."""

    def get(self, ref: PayloadRef) -> MultimodalPayload:
        """Read-only views, without a copy, valid until `release`. Raises ConnectorError for bytes that are out of reach."""

    def release(self, ref: PayloadRef) -> None:
        """Frees what the reference occupies here. Stale, foreign and inline references are no-ops (stale ones are counted)."""

    def health(self) -> Mapping[str, float]:
        """Figures for metrics, at least `used_nbytes` and `capacity_nbytes`."""

    def close(self) -> None:
        """Forgets everything; idempotent."""


Connectors = Mapping[str, OmniConnector]
"""The connectors of one process by name; every edge and every reference names one."""


def lay_out(payload: MultimodalPayload) -> tuple[tuple[TensorPlace, ...], int]:
    """Aligned places of the payload's tensors, and the bytes they need together. KeyError for a dtype that cannot travel."""
    places: list[TensorPlace] = []
    end = 0
    for name, tensor in payload.tensors.items():
        spec = tensor.spec
        places.append(TensorPlace(name, spec, end))
        end += -(-spec.nbytes // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
    return tuple(places), end


def write(payload: MultimodalPayload, places: tuple[TensorPlace, ...], view: memoryview) -> None:
    """Copies every tensor to its place in `view`: the one copy of a hand-off."""
    for place in places:
        nbytes = place.spec.nbytes
        if nbytes:
            payload.tensors[place.name].copy_to(view[place.offset : place.offset + nbytes])


def read(ref: PayloadRef, view: memoryview) -> MultimodalPayload:
    """The payload of `ref` over `view`, whose first byte is the payload's first. Views come out read-only, and are lent unless
    the reference carries the bytes. Raises ConnectorError for a tensor that does not lie in it."""
    frozen = view.toreadonly()
    tensors = {place.name: Tensor(place.spec, _cut(place, frozen)) for place in ref.tensors}
    return MultimodalPayload(tensors, ref.metadata, lent=ref.inline is None)


def _cut(place: TensorPlace, view: memoryview) -> memoryview:
    """References come from other processes: what they say is believed only as far as it stays within the payload."""
    spec, begin = place.spec, place.offset
    is_whole = spec.dtype in DTYPE_NBYTES and min(spec.shape, default=0) >= 0 and begin >= 0
    if is_whole and (end := begin + spec.nbytes) <= len(view):
        return view[begin:end]
    what = f"tensor {place.name!r} ({spec.dtype} {list(spec.shape)}) at {begin}"
    raise ConnectorError(f"{what} does not lie in its payload of {len(view)} bytes")


def inline_ref(
    payload: MultimodalPayload,
    places: tuple[TensorPlace, ...],
    nbytes: int,
    *,
    connector: str,
    owner: str,
    epoch: int,
    key: int,
) -> PayloadRef | None:
    """A reference that carries the bytes itself, or None if they are too many. `places` and `nbytes` are `lay_out`'s."""
    if nbytes > INLINE_NBYTES:
        return None
    data = b""
    if nbytes:
        room = bytearray(nbytes)
        write(payload, places, memoryview(room))
        data = bytes(room)
    return PayloadRef(connector, owner, epoch, key, places, dict(payload.metadata), nbytes, data)


def check_spec(payload: MultimodalPayload) -> None:
    """Raises KeyError early (in the sender) for a dtype that cannot travel."""
    for tensor in payload.tensors.values():
        DTYPE_NBYTES[tensor.spec.dtype]
