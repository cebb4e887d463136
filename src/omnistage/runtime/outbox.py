"""What callers are to be told, until the runtime has time for it: first in, first out, told in slices.

What concerns replicas never waits for it: else a stage would idle while somebody's sound is copied. The release of a payload that
is still to be read waits behind the item that it belongs to.

Bounded by what is open: of a request its client window of media, the tokens of its answer (a caller acknowledges both, and the
machine holds back what goes beyond), its restarts and one end; of a control call one answer; of an item at most one release.
Knows nothing of callers. Times are seconds of time.monotonic.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

from omnistage.core.payload import PayloadRef
from omnistage.wire.messages import Close, ControlReply, Release, Reply, Restarted

SLICE_S = 0.0005
"""After this long whoever tells looks at what workers have said meanwhile."""

Told = Reply | Close | Restarted | ControlReply | Release


class OutboxState:
    """Belongs to one thread. `tell` carries out what it is given."""

    def __init__(self, tell: Callable[[Told], None], slice_s: float = SLICE_S) -> None:
        self._tell = tell
        self._slice_s = slice_s
        self._waiting: deque[Told] = deque()
        self._unread: Counter[tuple[str, str, int, int, int]] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, command: Told) -> None:
        if isinstance(command, Reply) and command.ref is not None:
            self._unread[_payload(command.ref)] += 1
        self._waiting.append(command)

    def will_read(self, ref: PayloadRef) -> bool:
        """True while an item waits whose payload this is."""
        return bool(self._unread) and _payload(ref) in self._unread

    def tell_some(self) -> None:
        """Tells what has waited longest: one at least, where any waits, and no more once a slice of time is over."""
        until = time.monotonic() + self._slice_s
        while self._waiting:
            self._tell(self._taken())
            if time.monotonic() >= until:
                return

    def _taken(self) -> Told:
        command = self._waiting.popleft()
        if isinstance(command, Reply) and command.ref is not None:
            payload = _payload(command.ref)
            self._unread[payload] -= 1
            if not self._unread[payload]:
                del self._unread[payload]
        return command


def _payload(ref: PayloadRef) -> tuple[str, str, int, int, int]:
    """What tells a payload from any other; metadata and tensors may differ from target to target."""
    return ref.connector, ref.owner, ref.epoch, ref.key, ref.generation
