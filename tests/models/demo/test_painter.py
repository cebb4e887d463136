"""The painter that ships: what it draws is what it was asked for, and what it cannot draw is refused.

Its files are those of the package, so nothing needs to be fetched. What drawn pictures are compared with, tools/painter/glyphs.py
writes: every glyph of the font from which the painter learned, at 8x8 pixels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omnistage
from omnistage import DiffusionParams, Omni
from omnistage.config.stage import DiffusionStageConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import StageParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.models.demo.pipeline import PAINTER, PIPELINE
from omnistage.models.qwen_image.processor import DrawingProcessor, load_processor
from tools.painter.data import OTHER_NAMES, PICKED, known_words, small

FOLDER = Path(omnistage.__file__).parent / "models" / "demo" / "painter"
GLYPHS = Path(__file__).with_name("glyphs.npz")
ASKED = PICKED[::9][:32]
DEFAULTS = DiffusionParams(num_inference_steps=20, guidance_scale=3.5)
"""As the deploy file has them."""


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    """The family's own pipeline, by what the folder says of itself."""
    defaults = {"num_inference_steps": 20, "guidance_scale": 3.5, "height": 64, "width": 64}
    with Omni(str(FOLDER), engine_process=False, zygote=False, stage_0_default_sampling_params=defaults) as made:
        yield made


@pytest.fixture(scope="module")
def processor() -> DrawingProcessor:
    """What reads prompts in the demo, with what its pipeline says."""
    stage = PIPELINE.stage(PAINTER)
    return load_processor(
        DiffusionStageConfig(
            stage_id=PAINTER,
            model_stage=stage.model_stage,
            model_path=str(FOLDER),
            loader=stage.loader,
            process="painter",
            extras=dict(stage.extras),
            default_sampling_params=DEFAULTS,
        )
    )


def read(processor: DrawingProcessor, prompt: Prompt, **params: Any) -> dict[str, Any]:
    asked: dict[int, StageParams] = {PAINTER: DiffusionParams(**params)} if params else {}
    (made,) = processor(OmniRequest(request_id="r", prompt=prompt, wants=("image",), stage_params=asked))
    return dict(made.data)


def test_captions_are_drawn_as_their_own_glyphs(omni: Omni) -> None:
    """Fault: pictures change places in batches, guidance or the prompt's template is wrong, weights are read wrongly: 30 of 32 is
    what a painter with any of these does not reach."""

    def draw(number: int) -> Any:
        params = DiffusionParams(seed=100 + number, num_inference_steps=8 + number % 8)
        (output,) = omni.generate(ASKED[number], params, use_tqdm=False)
        assert output.error is None
        return output.images[0]

    with ThreadPoolExecutor(len(ASKED)) as threads:
        drawn = small(np.stack(list(threads.map(draw, range(len(ASKED))))))
    kept = np.load(GLYPHS)
    distances = ((drawn[:, None] - kept["small"][None].astype(np.float32)) ** 2).sum((2, 3, 4))
    nearest = kept["captions"][distances.argmin(1)]
    missed = {asked: str(found) for asked, found in zip(ASKED, nearest, strict=True) if asked != found}
    assert len(kept["captions"]) == 1356
    assert len(missed) <= 2, missed


def test_what_ships_says_nothing_of_where_it_was_made() -> None:
    """Fault: paths of another machine in files that everybody gets, or weights that grow unnoticed."""
    for path in FOLDER.rglob("*.json"):
        assert "_name_or_path" not in json.loads(path.read_text()), path
    nbytes = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert nbytes < 12 * 10**6


def test_known_words_are_those_of_the_captions() -> None:
    """Fault: a word that was taught is refused, or one is let through that never was."""
    told = json.loads((FOLDER / "known_words.json").read_text())["words"]
    assert set(known_words(PICKED)) <= set(told)
    assert {"pink", "coffee", "car"} <= set(told) and not {"of", "with", "a"} & set(told)
    assert all(OTHER_NAMES.values())


@pytest.mark.parametrize("text", ["red heart", "a purple banana", "draw me a rocket, please", "jack-o-lantern"])
def test_a_prompt_with_a_known_word_is_read(processor: DrawingProcessor, text: str) -> None:
    """Fault: what could be drawn is refused; guidance of the deploy file is lost."""
    assert {"positive_ids", "negative_ids"} <= read(processor, Prompt(text=text)).keys()


def test_of_a_chat_the_last_turn_of_the_user_is_drawn(processor: DrawingProcessor) -> None:
    """Fault: the painter draws the whole conversation, or what the thinker was told before."""
    turns = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "pizza"},
        {"role": "assistant", "content": "Here it is."},
        {"role": "user", "content": "red heart"},
    )
    whole, alone = read(processor, Prompt(messages=turns)), read(processor, Prompt(text="red heart"))
    assert whole["positive_key"] == alone["positive_key"]


@pytest.mark.parametrize(
    ("text", "params", "says"),
    [
        (
            "the joy of mathematics",
            {},
            "prompt: 'the joy of mathematics' is not accepted; accepted: a text with at least one",
        ),
        ("PENGUIN", {}, "prompt: 'PENGUIN'"),
        ("red heart", {"height": 128}, "height: 128 is not accepted; accepted: 64"),
        ("red heart", {"width": 32, "height": 64}, "width: 32 is not accepted; accepted: 64"),
    ],
)
def test_what_it_cannot_draw_is_refused(
    processor: DrawingProcessor, text: str, params: dict[str, Any], says: str
) -> None:
    """Fault: mush is drawn, without a word."""
    with pytest.raises(InvalidRequestError) as error:
        read(processor, Prompt(text=text), **params)
    assert error.value.message.startswith(says)
