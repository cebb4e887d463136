"""The codes behind the first: against transformers' own predictor, beside others, by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnistage.core.params import SamplingParams
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.philox import uniforms
from omnistage.modeling.sampling import SampleRow
from omnistage.models.qwen3_omni.code_predictor import CodePredictor, draw_settings
from omnistage.models.qwen3_omni.talker_loader import load
from tests.models.qwen3_omni.talkers import talker_config
from tests.tiny.qwen3_omni import SHAPES, OmniShape

GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=0.3, top_k=2)
ROWS = 11


def draws(params: SamplingParams, count: int = ROWS, *, seed: int = 0) -> list[SampleRow]:
    return [SampleRow(params, seed + row, 3 * row, (row % 2, 0)) for row in range(count)]


def rows_of(shape: OmniShape, count: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(shape.seed)
    return tuple(torch.randn(count, shape.hidden, generator=random) * scale for scale in (1.0, 4.0))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def predictor(omni: Callable[[OmniShape], Path]) -> Callable[[OmniShape], CodePredictor]:
    return lambda shape: load(talker_config(omni(shape)))._parts.predictor


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.groups}-groups")
def test_the_best_codes_are_those_of_transformers(
    predictor: Callable[[OmniShape], CodePredictor],
    reference: Callable[[OmniShape], Any],
    kernels: KernelOps,
    shape: OmniShape,
) -> None:
    """Fault: a head or a table of another code, a position off by one, a cache that remembers the frame before."""
    own, (hidden, firsts) = reference(shape).talker.code_predictor, rows_of(shape)
    expected = own.generate(
        inputs_embeds=torch.stack([hidden, firsts], dim=1), max_new_tokens=shape.groups - 1, do_sample=False
    )
    model = predictor(shape)
    for ops in (kernels, TorchOps()):
        for _ in range(2):
            found = model.predict(hidden, firsts, draws(GREEDY), ops)
            assert torch.tensor(found).T.tolist() == expected.tolist()


def test_rows_beside_others_are_rows_alone(predictor: Callable[[OmniShape], CodePredictor], kernels: KernelOps) -> None:
    """Fault: a code that depends on who else speaks; greedy rows among drawn ones that are drawn."""
    shape = SHAPES[3]
    model, (hidden, firsts) = predictor(shape), rows_of(shape)
    mixed = [
        draw if row % 3 else greedy
        for row, (draw, greedy) in enumerate(zip(draws(SAMPLED), draws(GREEDY), strict=True))
    ]
    whole = model.predict(hidden, firsts, mixed, kernels)
    for row in range(ROWS):
        alone = model.predict(hidden[row : row + 1], firsts[row : row + 1], mixed[row : row + 1], kernels)
        assert [codes[row] for codes in whole] == [codes[0] for codes in alone]
    best = model.predict(hidden, firsts, draws(GREEDY), kernels)
    assert [[codes[row] for row in range(0, ROWS, 3)] for codes in whole] == [codes[::3] for codes in best]


def test_seeds_reproduce_and_differ(predictor: Callable[[OmniShape], CodePredictor], kernels: KernelOps) -> None:
    """Fault: codes are drawn with the stage's own parameters, or with one chance for all of a frame."""
    model, (hidden, firsts) = predictor(SHAPES[3]), rows_of(SHAPES[3])

    def drawn(asked: Sequence[SampleRow]) -> list[list[int]]:
        return model.predict(hidden, firsts, asked, kernels)

    assert drawn(draws(SAMPLED, seed=5)) == drawn(draws(SAMPLED, seed=5))
    assert drawn(draws(SAMPLED, seed=5)) != drawn(draws(SAMPLED, seed=6))
    assert drawn(draws(SAMPLED, seed=5)) == drawn(draws(SamplingParams(temperature=2.0), seed=5))
    assert drawn(draws(SAMPLED, seed=5)) == model.predict(hidden, firsts, draws(SAMPLED, seed=5), TorchOps())


def test_what_codes_are_drawn_with() -> None:
    """Fault: the stream of another code or choice, the seed of another row; the talker's own top-k."""
    asked = [SampleRow(SAMPLED, 11, 4, (1, 0)), SampleRow(GREEDY, 12, 5, (0, 0)), SampleRow(SAMPLED, 13, 6, (0, 0))]
    settings = draw_settings(asked, 3)
    assert settings is not None
    assert settings["temperature"].tolist() == [[1.0, 0.0, 1.0]] * 3
    assert settings["top_k"][:, [0, 2]].tolist() == [[50, 50]] * 3
    assert settings["top_p"][:, [0, 2]].tolist() == [[0.8, 0.8]] * 3
    for place, row in ((0, asked[0]), (2, asked[2])):
        for code in (1, 2, 3):
            stream = np.array([[row.stream[0], code]], np.uint32)
            chance = uniforms(np.array([row.seed], np.uint64), np.array([row.position], np.uint64), stream)[0]
            assert settings["chance"][code - 1, place] == chance
    assert draw_settings([asked[1]], 3) is None


def test_logits_that_are_not_finite(predictor: Callable[[OmniShape], CodePredictor], kernels: KernelOps) -> None:
    """Fault: a frame of a row that went wrong, or others' frames with it."""
    model, (hidden, firsts) = predictor(SHAPES[0]), rows_of(SHAPES[0])
    expected = model.predict(hidden, firsts, draws(GREEDY), kernels)
    hidden[4] = float("nan")
    found = model.predict(hidden, firsts, draws(GREEDY), kernels)
    assert found[0][4] == -1
    assert [codes[:4] + codes[5:] for codes in found] == [codes[:4] + codes[5:] for codes in expected]


def test_layers_are_held_once(omni: Callable[[OmniShape], Path]) -> None:
    """Fault: every sub-step brings the layers that it shares with the others."""
    links = load(talker_config(omni(SHAPES[3])))._parts.predictor._chain.links
    assert len({id(link.layers) for link in links}) == 1
    assert len({id(link.head) for link in links}) == SHAPES[3].groups - 1
