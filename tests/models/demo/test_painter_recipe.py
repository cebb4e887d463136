"""The painter's training, for a few steps: what comes out is a folder that this package draws with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch

from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.params import DiffusionParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.diffusion import Row
from omnistage.models.qwen_image.loader import load
from omnistage.models.qwen_image.model import packed as model_packed
from omnistage.models.qwen_image.processor import load_processor
from tools.painter.data import HELD_OUT, PICKED, Captioned, training_set
from tools.painter.dit import packed
from tools.painter.recipe import Recipe, make
from tools.painter.training import Schedule, train

SHORT = Schedule(2, 1e-3, warm=1, kept=0.5)
SMOKE = Recipe(vae_width=4, width=32, layers=1, batch=3, vae_batch=2, vae=SHORT, broad=SHORT, narrow=SHORT)


def glyphs() -> Captioned:
    """Noise under every name that is picked."""
    noise = np.random.default_rng(0).integers(0, 256, (len(PICKED), 64, 64, 3), np.uint8)
    return Captioned(PICKED, noise)


def test_the_chosen_set_is_that_of_the_checkpoint() -> None:
    """Fault: captions that the shipped painter does not know, or held-out ones among those that are shown."""
    chosen, held = training_set(glyphs())
    assert (len(PICKED), len(chosen.captions), sorted(held.captions)) == (295, 453, sorted(HELD_OUT))
    assert not set(held.captions) & set(chosen.captions)


def test_the_mean_of_the_weights_is_kept() -> None:
    """Fault: the last, noisy weights are written, or ones that were never trained."""
    weight = torch.nn.Parameter(torch.tensor([4.0]))
    train([weight], lambda: weight.square().sum(), Schedule(300, 0.1, warm=1, kept=0.9))
    assert abs(weight.item()) < 0.1


def test_latents_are_packed_as_the_family_packs_them() -> None:
    """Fault: a painter that is trained on other tokens than it will draw."""
    latents = torch.randn(2, 16, 8, 6)
    assert torch.equal(packed(latents)[1], model_packed(latents[1]))


def test_a_few_steps_make_a_folder_that_draws(tmp_path: Path) -> None:
    """Fault: a script that has not run since it was written; a layout, or a template of prompts, that is not the family's."""
    some = glyphs()
    few = Captioned(some.captions[:40], some.pictures[:40])
    losses = make(few, few, tmp_path, SMOKE)
    assert losses.keys() == {"vae", "broad", "narrow"} and all(map(math.isfinite, losses.values()))
    assert "heart" in json.loads((tmp_path / "known_words.json").read_text())["words"]
    assert drawn(tmp_path, "red heart").shape == (64, 64, 3)


@torch.inference_mode()
def drawn(folder: Path, text: str) -> np.ndarray:
    """By one step."""
    config = DiffusionStageConfig(stage_id=0, model_stage="painter", model_path=str(folder), loader="", process="p")
    model, processor = load(config), load_processor(config)
    asked = DiffusionParams(height=64, width=64, num_inference_steps=1)
    request = OmniRequest(request_id="r", prompt=Prompt(text=text), wants=("image",), stage_params={0: asked})
    plan = model.plan(request, asked, processor(request)[0].data)
    picture = model.prepare(plan, tuple(model.encode(plan.conditions)), torch.Generator().manual_seed(0))
    (prediction,) = model.predict([Row(picture, 0, 0)])
    picture.latents = picture.solver.step(prediction, 0, picture.latents)
    return np.asarray(model.decode([picture])[0])
