"""The parts of the forward pass fit together: rows can be taken out between blocks, and tokens lie as the autoencoder has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omnistage.modeling import progress
from omnistage.modeling.diffusion import BlockedModel, PreviewingModel, Row
from omnistage.models.qwen_image.loader import load
from omnistage.models.qwen_image.model import packed, unpacked
from tests.models.easel import Easel, stage_config
from tests.models.qwen_image.drawing import Asked


def rows_of(easel: Easel, *asks: Asked) -> list[Row]:
    """One row of each branch, at different steps."""
    found = [easel.begin(asked) for asked in asks]
    return [
        Row(picture, branch, at) for at, (plan, picture) in enumerate(found) for branch in range(len(plan.conditions))
    ]


@torch.inference_mode()
def test_rows_taken_out_between_blocks(easel: Easel) -> None:
    """Fault: a row that goes on alone has its neighbour's timestep, rotations or mask."""
    model = easel.model
    assert isinstance(easel.model, BlockedModel) and isinstance(easel.model, PreviewingModel)
    asks = (Asked(scale=2.0), Asked(prompt="two dogs on a table", height=64, width=16), Asked(prompt="size", seed=3))
    rows = rows_of(easel, *asks)
    expected = model.predict(rows)
    flow = model.block(0, model.open(rows))
    flow = flow.select([3, 1]).with_hidden(flow.select([3, 1]).hidden)
    for index in range(1, model.num_blocks):
        flow = model.block(index, flow)
    for found, at in zip(model.close(flow), (3, 1), strict=True):
        assert torch.allclose(found, expected[at], atol=1e-5)


@torch.inference_mode()
def test_the_signal_follows_the_timestep(easel: Easel) -> None:
    """Fault: a cache that looks at the latents alone, or at a neighbour, and skips when it should not."""
    (row,) = rows_of(easel, Asked())
    later = Row(row.picture, 0, 2)
    now, then = (easel.model.signal(easel.model.open([one]))[0] for one in (row, later))
    both = easel.model.signal(easel.model.open([row, later]))
    assert now.shape == (16, 64)
    assert torch.allclose(both[0], now, atol=1e-5) and torch.allclose(both[1], then, atol=1e-5)
    assert float((now - then).abs().mean()) > 0.01


def test_latents_as_tokens_and_back() -> None:
    """Fault: height and width, or a token's four latents, change places."""
    latents = torch.arange(3 * 4 * 6).view(3, 4, 6)
    tokens = packed(latents)
    assert tokens.shape == (6, 12)
    assert tokens[1, :4].tolist() == [2, 3, 8, 9]  # the second token of the first line: its four latents of channel 0
    assert torch.equal(unpacked(tokens, (2, 3)), latents)


@torch.inference_mode()
def test_conditions_together_and_alone(easel: Easel) -> None:
    """Fault: a prompt reads the padding or the length of its neighbours."""
    conditions = [easel.plan(Asked(prompt=text)).conditions[0] for text in ("a", "two dogs on a red table", "a cat")]
    together = easel.model.encode(conditions)
    for condition, found in zip(conditions, together, strict=True):
        (alone,) = easel.model.encode([condition])
        assert torch.allclose(found["text"], alone["text"], atol=1e-5)
    assert len({condition.key for condition in conditions}) == 3
    assert easel.plan(Asked(seed=9)).conditions[0].key == easel.plan(Asked(steps=9)).conditions[0].key


def test_loading_tells_of_all_parts_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the encoder's weights are told as nearly all there are, and those of the transformer not at all."""
    monkeypatch.setattr(progress, "LEAST_PAUSE_S", 0.0)
    told: list[tuple[float, str]] = []
    with progress.listening(lambda fraction, note: told.append((fraction, note))):
        load(stage_config(folder))
    nbytes = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert {note.partition(" of ")[2] for _, note in told} == {f"{nbytes // 10**6} MB of weights"}
    encoder = (folder / "text_encoder" / "model.safetensors").stat().st_size / nbytes
    assert told[0][0] < encoder < told[-1][0]


@torch.inference_mode()
def test_half_precision(folder: object) -> None:
    """Fault: two formats meet in one operation."""
    from omnistage.models.qwen_image.processor import load_processor

    config = stage_config(folder, dtype="bfloat16")
    easel = Easel(load(config), load_processor(config))
    full = Easel(load(stage_config(folder)), easel.processor)
    (drawn,), (expected,) = easel.draw([Asked(scale=2.0)]), full.draw([Asked(scale=2.0)])
    assert drawn is not None and expected is not None
    assert drawn.latents.dtype == torch.float32
    assert float((drawn.latents - expected.latents).abs().mean()) == pytest.approx(0.0, abs=0.1)
