"""Prepared inputs by the content of their prompt: the least recently used go first, bytes are bounded.

Values are bytes (prepare.coding): whoever takes one decodes a fresh value, so no two requests share an object. Knows no requests.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import msgspec

from omnistage.core.request import Prompt

CACHE_NBYTES = 32 * 2**20


def content_key(prompt: Prompt) -> bytes:
    """Equal for equal prompts, and for no others. What media are called in messages to the caller (`where`) is no part of them."""
    told = msgspec.structs.replace(prompt, media=())
    digest = hashlib.blake2b(msgspec.msgpack.encode(told), digest_size=32)
    for media in prompt.media:  # their bytes are hashed where they lie, each preceded by their number
        digest.update(msgspec.msgpack.encode((media.kind, media.array, media.rate, len(media.data))))
        digest.update(media.data)
    return digest.digest()


class PreparedCache:
    """See the module. A value of more than `limit_nbytes` is not kept."""

    def __init__(self, limit_nbytes: int = CACHE_NBYTES) -> None:
        self._limit_nbytes = limit_nbytes
        self._values: OrderedDict[bytes, bytes] = OrderedDict()
        self.nbytes = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        """None is not counted: the request may look again before it is prepared."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
            self.hits += 1
        return value

    def put(self, key: bytes, value: bytes) -> None:
        held = self._values.pop(key, None)
        self.nbytes -= 0 if held is None else _weight(held)
        self._values[key] = value
        self.nbytes += _weight(value)
        while self.nbytes > self._limit_nbytes:
            _, oldest = self._values.popitem(last=False)
            self.nbytes -= _weight(oldest)


def _weight(value: bytes) -> int:
    """With its key, and what Python keeps of each."""
    return len(value) + 256
