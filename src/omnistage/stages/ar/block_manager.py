"""Blocks of the key/value cache: who holds which, and which full blocks can be shared. Knows no tensors and no requests.

A block has `block_size` tokens. Block 0 is the null block and is never given out. A full block may carry a digest of
(everything before it, its tokens, content key); an unreferenced block keeps its digest, and so its use, until the
least recently used of them is taken for something else. Blocks that are not full are never shared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence


def chain_digest(parent: bytes, tokens: Sequence[int], content_key: str = "") -> bytes:
    """The digest of a full block behind `parent` (b"" for the first). 128 bits: equal digests are taken as equal blocks."""
    content = content_key.encode()
    head = len(parent).to_bytes(2, "little") + parent + len(content).to_bytes(4, "little") + content
    return hashlib.blake2b(head + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockManager:
    """Reference counts over `num_blocks` blocks. Every block is fresh, idle (unreferenced, digest kept) or referenced."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 1 and block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        self._fresh = list(range(num_blocks - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._digests: dict[int, bytes] = {}
        self._holders: dict[bytes, int] = {}

    @property
    def capacity(self) -> int:
        """Blocks that can be given out at all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that could be given out now, the idle ones included."""
        return len(self._fresh) + len(self._idle)

    def references(self, block: int) -> int:
        return self._references[block]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest prefix of a digest chain. They are not acquired."""
        blocks: list[int] = []
        for digest in digests:
            block = self._holders.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def acquire(self, blocks: Sequence[int]) -> None:
        """One more reference to each, idle ones included."""
        for block in blocks:
            self._idle.pop(block, None)
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None and no change. Fresh blocks go first, then the idle longest unused."""
        if count > self.num_free:
            return None
        blocks = [self._fresh.pop() if self._fresh else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less to each. The last of a prefix becomes idle first, so that it is evicted first."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is released more often than it was acquired"
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._digests:
                self._idle[block] = None
            else:
                self._fresh.append(block)

    def publish(self, block: int, digest: bytes) -> None:
        """Lets others find a full, computed block. Where another block holds the same content already, that one stays."""
        assert self._references[block] > 0
        if digest not in self._holders and block not in self._digests:
            self._holders[digest] = block
            self._digests[block] = digest

    def forget(self) -> int:
        """From now on nothing that was computed is found again; whoever holds blocks keeps them. How many could be found."""
        known = len(self._holders)
        self._fresh.extend(self._idle)
        self._idle.clear()
        self._digests.clear()
        self._holders.clear()
        return known

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        del self._holders[self._digests.pop(block)]
        return block
