"""Counter-based random numbers: a draw is a function of (seed, position, stream) and of nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), vectorised in numpy. There is no
generator state, so preemption, replay and neighbours in a batch cannot change a draw. Knows nothing of requests or models.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint32)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """`counter` [N, 4] and `key` [N, 2] -> [N, 4] random words."""
    even, odd = counter.T[0::2].astype(np.uint64), counter.T[1::2].astype(np.uint64)  # both halves of a round at once
    keys = key.T.astype(np.uint32)
    for _ in range(_ROUNDS):
        products = (even * _MULTIPLIERS)[::-1]
        even = (products >> _WORD_BITS) ^ odd ^ keys
        odd = products & _LOW_WORD
        keys += _WEYL  # wraps at 32 bits, as it should
    return np.stack([even[0], odd[0], even[1], odd[1]], axis=1).astype(np.uint32)


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], streams: npt.NDArray[np.uint32]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each of N rows; `streams` [N, 2] is (choice, sub-step)."""
    counter = np.stack([*_words(positions), streams[:, 0], streams[:, 1]], axis=1)
    key = np.stack(_words(seeds), axis=1)
    bits = philox4x32(counter, key).astype(np.uint64)
    high, low = bits[:, 0] >> np.uint64(5), bits[:, 1] >> np.uint64(6)
    return (high.astype(np.float64) * 2.0**26 + low.astype(np.float64)) / 2.0**53


def _words(values: npt.NDArray[np.uint64]) -> list[npt.NDArray[np.uint32]]:
    """The low and the high half of 64-bit values."""
    return [(values & _LOW_WORD).astype(np.uint32), (values >> _WORD_BITS).astype(np.uint32)]
