"""The transformer predicts what diffusers' does, with references too, moving and still."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omnistage.models.qwen_image.settings import Grid, transformer_shape
from omnistage.models.qwen_image.transformer import RowInput, Transformer
from omnistage.models.qwen_image.weights import read_transformer
from tests.tiny.qwen_image import write_transformer

CASES: tuple[tuple[bool, tuple[Grid, ...], tuple[Grid, ...]], ...] = (
    (False, ((4, 2),), ((2, 4),)),
    (False, ((4, 2), (3, 3)), ((2, 4), (3, 3))),
    (True, ((4, 2), (3, 3)), ((4, 2), (9, 1))),
    (True, ((4, 2),), ((4, 2),)),
)
"""Whether references stand still, and the grids of two rows."""


@torch.inference_mode()
@pytest.mark.parametrize(("still", "one", "other"), CASES)
def test_two_rows_at_their_own_timesteps(
    tmp_path: Path, still: bool, one: tuple[Grid, ...], other: tuple[Grid, ...]
) -> None:
    """Fault: a row is modulated by its neighbour's timestep or turned as its neighbour; references are as noisy as the picture,
    or the picture as clean as they are."""
    theirs = write_transformer(tmp_path, zero_cond_t=still)
    shape = transformer_shape(tmp_path)
    ours = Transformer(shape, read_transformer(tmp_path, shape, torch.float32))
    draw = torch.Generator().manual_seed(0)
    rows, expected = [], []
    for grids, length, time in ((one, 7, 0.9), (other, 4, 0.3)):
        hidden = torch.randn(length, shape.text_size, generator=draw)
        tokens = torch.randn(sum(tall * wide for tall, wide in grids), shape.channels, generator=draw)
        targets = grids[0][0] * grids[0][1]
        references = tokens[targets:] if len(grids) > 1 else None
        rows.append(RowInput(tokens[:targets], references, grids, ours.embed_text(hidden), time))
        expected.append(
            theirs(
                hidden_states=tokens[None],
                encoder_hidden_states=hidden[None],
                timestep=torch.tensor([time]),
                img_shapes=[[(1, *grid) for grid in grids]],
                return_dict=False,
            )[0][0, :targets]
        )
    flow = ours.open(rows)
    for index in range(shape.num_layers):
        flow = ours.block(index, flow)
    for found, wanted in zip(ours.close(flow), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-5)
