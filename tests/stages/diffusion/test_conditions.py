"""Encoded conditions: kept within their bytes, never shared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from omnistage.stages.diffusion.conditions import ConditionCache, copied
from tests.drawing.painter import Words


def test_what_one_request_writes_no_other_one_reads() -> None:
    """Fault: a model that changes a condition in place changes the pictures of strangers."""
    cache = ConditionCache(1000)
    made = Words("a", torch.ones(4))
    cache.put("a", made)
    made.vector.zero_()
    first = cache.get("a")
    assert isinstance(first, Words)
    first.vector.mul_(2)
    again = cache.get("a")
    assert isinstance(again, Words)
    assert again.vector.tolist() == [1.0] * 4
    assert (cache.get("b"), cache.hits, cache.misses) == (None, 2, 1)


def test_bytes_are_those_of_what_is_kept() -> None:
    """Fault: a row keeps the whole batch that it was made in, and counts as one."""
    cache = ConditionCache(40)
    batch = torch.ones(100, 4)
    cache.put("a", batch[3])
    kept = cache.get("a")
    assert isinstance(kept, torch.Tensor)
    assert (cache.nbytes, kept.untyped_storage().nbytes()) == (16, 16)
    cache.put("b", batch[:2])
    assert (cache.nbytes, cache.get("a")) == (32, None)
    cache.put("c", batch[:3])
    assert (cache.nbytes, cache.get("c")) == (0, None)


class Pair(NamedTuple):
    one: torch.Tensor
    other: list[np.ndarray[tuple[int], np.dtype[np.float64]]]


def test_containers_of_every_kind_are_copied_to_their_leaves() -> None:
    """Fault: a tensor in a list in a tuple is shared after all."""
    pair = Pair(torch.ones(1), [np.ones(1)])
    same = copied({"pair": pair, "words": ("text", 3, None), "kind": Words})
    pair.one.zero_()
    pair.other[0][0] = 0
    assert isinstance(same["pair"], Pair)
    assert (same["pair"].one.item(), same["pair"].other[0][0]) == (1.0, 1.0)
    assert (same["words"], same["kind"]) == (("text", 3, None), Words)
