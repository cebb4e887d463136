"""A decoder in one call against its operations one by one, with one thread and two."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnistage.modeling.attention import CacheShape, PagedCache
from omnistage.modeling.kernels.blocks import DecoderWeights, GatedWeights, LayerWeights, Mlp
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.mlp import ExpertsMlp, GatedMlp
from omnistage.modeling.rotary import RotationCache
from omnistage.modeling.step import BlockTable, StepRows
from tests.modeling.kernels.steps import (
    attention_weights,
    caches,
    drawn,
    experts_weights,
    gated_weights,
    panels,
    quick,
    steps,
)
from tests.modeling.kernels.steps import threads as threads


@given(step=steps(), hidden=st.sampled_from([16, 48]), has_norms=st.booleans(), embeds=st.booleans(), data=st.data())
@quick
def test_a_decoder_is_its_operations(
    kernels: KernelOps, step: dict[str, Any], hidden: int, has_norms: bool, embeds: bool, data: st.DataObject
) -> None:
    """To the bit those of the library one by one: steps of few rows and of many, captured or not, say the same."""
    random, dtype, rows, vocab = step["random"], step["dtype"], step["rows"], 41

    def mlp() -> Mlp:
        if not data.draw(st.booleans()):
            return GatedMlp(gated_weights(random, dtype, hidden, 32))
        experts, per_row = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
        return ExpertsMlp(experts_weights(random, dtype, hidden, experts=experts, per_row=per_row, is_shared=embeds))

    layers = [
        LayerWeights(attention_weights(step, hidden, has_norms=has_norms, has_bias=False), mlp()) for _ in range(2)
    ]
    norm, head = 1 + drawn(random, dtype, hidden), panels(random, dtype, vocab, hidden)
    embedding = head if data.draw(st.booleans()) else drawn(random, dtype, vocab, hidden)
    weights = DecoderWeights(embedding, layers, norm, head, 1e-5)
    rotations = RotationCache(step["dim"], 10000.0, torch.device("cpu")).reaching(150)
    shape = CacheShape(2, step["kv_heads"], step["dim"], step["size"], dtype, torch.device("cpu"))
    kept = [caches(step) for _ in layers]
    rows.tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=rows.num_rows, max_size=rows.num_rows))
    rows.logit_rows = sorted(data.draw(st.sets(st.integers(0, rows.num_rows - 1))))
    rows.embeds = drawn(random, dtype, rows.num_rows, hidden) if embeds else None
    layered = data.draw(st.sets(st.integers(0, 1)))
    rows.layered = {layer: drawn(random, dtype, rows.num_rows, hidden) for layer in layered}
    if data.draw(st.booleans()):
        rows.rotary = rotations = rotations[torch.randint(0, 150, (rows.num_rows,), generator=random)]
    captured = data.draw(st.sets(st.integers(0, 2)))

    def run(decoder: Any) -> list[torch.Tensor]:
        cache = PagedCache(shape, step["num_blocks"])
        cache.keys, cache.values = ([layer[part].clone() for layer in kept] for part in (0, 1))
        made = decoder(weights, rows, rotations, cache, sorted(captured))
        assert made.hidden.keys() == captured
        return [made.logits.clone(), *made.hidden.values(), *cache.keys, *cache.values]

    one_by_one = run(partial(TorchOps.decoder, kernels))
    for _ in range(2):  # the second time over another cache
        ours = run(kernels.decoder)
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(ours, one_by_one, strict=True))


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_token_beyond_the_vocabulary_is_not_read(kernels: KernelOps, is_tied: bool) -> None:
    """Fault: a prompt of numbers that are no tokens is answered from what lies behind the embeddings."""
    random = torch.Generator()
    step = {"random": random, "dtype": torch.float32, "dim": 16, "heads": 1, "kv_heads": 1}
    zeros = partial(panels, random, torch.float32)
    gated = GatedWeights(zeros(32, 16), zeros(16, 16))
    layer = LayerWeights(attention_weights(step, 16, has_norms=False, has_bias=False), GatedMlp(gated))
    head = zeros(40, 16)
    weights = DecoderWeights(head if is_tied else torch.zeros(40, 16), [layer], torch.ones(16), head, 1e-5)
    cache = PagedCache(CacheShape(1, 1, 16, 16, torch.float32, torch.device("cpu")), 2)
    for token in (40, -1, 2**40):
        rows = StepRows(BlockTable.of([[1]]), [0], [0], [1], 16, torch.device("cpu"), [token], [0])
        with pytest.raises(IndexError):
            kernels.decoder(weights, rows, torch.zeros(4, 16), cache, ())


def test_additions_that_the_library_would_misread_are_made_by_torch(kernels: KernelOps) -> None:
    """Fault: what is layered comes in another dtype, or with gaps in it, and is read as if it were plain."""
    random = torch.Generator().manual_seed(3)
    step = {"random": random, "dtype": torch.float32, "dim": 16, "heads": 1, "kv_heads": 1}
    layers = [
        LayerWeights(
            attention_weights(step, 16, has_norms=False, has_bias=False),
            GatedMlp(gated_weights(random, torch.float32, 16, 16)),
        )
        for _ in range(2)
    ]
    head = panels(random, torch.float32, 40, 16)
    weights = DecoderWeights(head, layers, torch.ones(16), head, 1e-5)
    table = RotationCache(16, 10000.0, torch.device("cpu")).reaching(8)
    plain = drawn(random, torch.float32, 3, 16)

    def logits(given: torch.Tensor) -> torch.Tensor:
        cache = PagedCache(CacheShape(2, 1, 16, 16, torch.float32, torch.device("cpu")), 2)
        rows = StepRows(BlockTable.of([[1]]), [0], [0], [3], 16, torch.device("cpu"), [1, 2, 3], [0, 1, 2])
        rows.layered = {0: given}
        return kernels.decoder(weights, rows, table, cache, ()).logits.clone()

    expected = logits(plain)
    assert torch.allclose(logits(torch.zeros(3, 32)[:, ::2].copy_(plain)), expected, atol=1e-5)
    assert torch.allclose(logits(plain.double()), expected, atol=1e-5)
    assert not torch.allclose(logits(torch.zeros(3, 16)), expected, atol=1e-3)
