"""The parts of the forward pass fit together: rows can be taken out between blocks, and steps be cached, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from omnistage.core.errors import StageFailedError
from omnistage.modeling.diffusion import BlockedModel, PreviewingModel, Row
from omnistage.models.flux.loader import load
from omnistage.models.flux.model import packed, unpacked
from omnistage.stages.diffusion.caches.table import step_cache
from omnistage.stages.diffusion.plan import BranchKey, PictureKey, StepPlan
from omnistage.stages.diffusion.runner import DiffusionRunner, shape_of
from tests.models.easel import Easel, stage_config
from tests.models.flux.drawing import Asked

CACHED = (
    Asked(steps=8, scale=2.0),
    Asked(prompt="a red fox", steps=6, seed=2, guidance=1.0),
    Asked(prompt="two dogs", steps=8, seed=3, guidance=6.0),
)
CACHES = {"first_block": {"residual_diff_threshold": 0.5}, "tea_cache": {"rel_l1_thresh": 0.4}}


def rows_of(easel: Easel, *asks: Asked) -> list[Row]:
    """One row of each branch, at different steps."""
    found = [easel.begin(asked) for asked in asks]
    return [
        Row(picture, branch, at) for at, (plan, picture) in enumerate(found) for branch in range(len(plan.conditions))
    ]


@torch.inference_mode()
def test_rows_taken_out_between_blocks(dev: Easel) -> None:
    """Fault: a row that goes on alone, behind the blocks of two streams or of one, has its neighbour's text or timestep."""
    model = dev.model
    assert isinstance(dev.model, BlockedModel) and isinstance(dev.model, PreviewingModel)
    rows = rows_of(dev, Asked(scale=2.0), Asked(prompt="two dogs", guidance=0.0), Asked(prompt="snow", seed=3))
    expected = model.predict(rows)
    for leaves in (1, 3):
        flow = model.open(rows)
        for index in range(leaves):
            flow = model.block(index, flow)
        flow = flow.select([3, 1]).with_hidden(flow.select([3, 1]).hidden)
        for index in range(leaves, model.num_blocks):
            flow = model.block(index, flow)
        for found, at in zip(model.close(flow), (3, 1), strict=True):
            assert torch.allclose(found, expected[at], atol=1e-5)
    assert model.num_blocks == 4


@torch.inference_mode()
def test_an_autoencoder_that_overflows_draws_nothing(dev: Easel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: black pictures, and nobody is told."""
    _, picture = dev.begin(Asked())
    monkeypatch.setattr(dev.model.parts.vae, "decode", lambda latents, **_: (latents[:, :3] * float("inf"),))
    with pytest.raises(StageFailedError, match="no numbers"):
        dev.model.decode([picture])


@torch.inference_mode()
def test_the_signal_follows_timestep_and_guidance(dev: Easel) -> None:
    """Fault: a cache that looks at the latents alone, or at a neighbour, and skips when it should not."""
    (row,), (guided,) = rows_of(dev, Asked()), rows_of(dev, Asked(guidance=9.0))
    rows = [row, Row(row.picture, 0, 2), guided]
    alone = [dev.model.signal(dev.model.open([one]))[0] for one in rows]
    together = dev.model.signal(dev.model.open(rows))
    assert torch.allclose(together, torch.stack(alone), atol=1e-5)
    assert min(float((alone[0] - other).abs().mean()) for other in alone[1:]) > 0.01


@torch.inference_mode()
def test_conditions_together_and_alone(dev: Easel) -> None:
    """Fault: a prompt reads its neighbours; what is kept is not yet what the first block reads, and is made at every step."""
    conditions = [dev.plan(Asked(prompt=text)).conditions[0] for text in ("a", "two dogs on a red table")]
    for condition, found in zip(conditions, dev.model.encode(conditions), strict=True):
        (alone,) = dev.model.encode([condition])
        assert all(torch.allclose(found[name], alone[name], atol=1e-5) for name in ("text", "pooled"))
        assert found["text"].shape == (512, 32) and found["pooled"].shape == (32,)
    (row,) = rows_of(dev, Asked())
    now, later = (dev.model.open([Row(row.picture, 0, step)]) for step in (0, 2))
    assert torch.equal(now.text[0], row.condition["text"]) and torch.equal(now.text, later.text)
    # No more of it could be kept: what the first block makes of it follows the timestep.
    after, then = (dev.model.block(0, flow).text for flow in (now, later))
    assert float((after - then).abs().mean()) > 0.01


def test_pictures_share_a_batch_by_their_shape(dev: Easel) -> None:
    """Fault: a wide picture is drawn in the places of a tall one that has as many tokens."""
    shapes = [
        shape_of(dev.begin(asked)[1]) for asked in (Asked(width=64), Asked(width=64, guidance=9.0), Asked(height=64))
    ]
    assert shapes[0] == shapes[1] != shapes[2]


def drawn(easel: Easel, folder: Path, kind: str, asks: Sequence[Asked]) -> tuple[list[torch.Tensor], float]:
    """(latents at the end, rows of blocks that were spared), all pictures in one batch as long as they last."""
    config = stage_config(folder, cache_backend=kind, cache_config=CACHES[kind])
    runner = DiffusionRunner(easel.model, step_cache(config, easel.model))
    runs = {}
    for at, asked in enumerate(asks):
        plan, picture = easel.begin(asked)
        runs[PictureKey("r", at)] = runner.prepare(plan, picture.branches, asked.seed)
    for step in range(max(run.num_steps for run in runs.values())):
        going = [key for key, run in runs.items() if step < run.num_steps]
        branches = [BranchKey(key, branch) for key in going for branch in range(len(runs[key].memories))]
        runner.step(StepPlan(tuple(going), (tuple(branches),)), runs)
    return [run.denoising.latents for run in runs.values()], runner.gauges()["block_rows_spared_total"]


@pytest.mark.parametrize("kind", CACHES)
def test_a_cached_picture_in_company_is_the_one_alone(dev: Easel, dev_folder: Path, kind: str) -> None:
    """Fault: a row that does without its blocks changes its neighbours, or gets what theirs have added."""
    together, spared = drawn(dev, dev_folder, kind, CACHED)
    assert spared > 0
    for asked, found in zip(CACHED, together, strict=True):
        (alone,), _ = drawn(dev, dev_folder, kind, [asked])
        assert float((found - alone).abs().max()) <= 1e-5


def test_latents_as_tokens_and_back() -> None:
    """Fault: height and width, or a token's four latents, change places."""
    latents = torch.arange(3 * 4 * 6).view(3, 4, 6)
    tokens = packed(latents)
    assert tokens.shape == (2, 3, 12)
    assert tokens[0, 1, :4].tolist() == [
        2,
        3,
        8,
        9,
    ]  # the second token of the first line: its four latents of channel 0
    assert torch.equal(unpacked(tokens[None])[0], latents)


def test_half_precision(dev: Easel, dev_folder: Path) -> None:
    """Fault: two formats meet in one operation."""
    half = Easel(load(stage_config(dev_folder, dtype="bfloat16")), dev.processor)
    (found,), (expected,) = half.draw([Asked(scale=2.0)]), dev.draw([Asked(scale=2.0)])
    assert found is not None and expected is not None
    assert found.latents.dtype == torch.float32
    assert float((found.latents - expected.latents).abs().mean()) == pytest.approx(0.0, abs=0.1)
