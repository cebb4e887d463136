"""The talker's input rows against those that transformers gives its own, and the sum that a frame becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import SamplingParams
from omnistage.core.payload import MultimodalPayload
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.protocols import StageInput
from omnistage.modeling.sampling import SampleRow
from omnistage.models.qwen3_omni import bridges
from omnistage.models.qwen3_omni.bridges import END_OF_TEXT, PAD, Heard, talker_bridge
from omnistage.models.qwen3_omni.talker import Talker
from omnistage.models.qwen3_omni.talker_loader import load
from tests.models.qwen3_omni.talkers import asked_of, heard_by_reference, prompt_of, talker_config
from tests.tiny.qwen3_omni import SHAPES, OmniShape

SHAPE = SHAPES[3]


@pytest.fixture(scope="module")
def talker(omni: Callable[[OmniShape], Path], kernels: object) -> Talker:
    return load(talker_config(omni(SHAPE)))


def bridged(items: Iterator[MultimodalPayload]) -> list[StageInput]:
    state: Heard | None = None
    made: list[StageInput] = []
    for seq, item in enumerate(items):
        state, inputs = talker_bridge(state, 0, seq, item, False)
        made += inputs
    return made


@pytest.mark.parametrize("kinds", [(), ("image",), ("audio",), ("image", "audio", "image")], ids="-".join)
def test_the_prompt_is_that_of_transformers(
    talker: Talker,
    reference: Callable[[OmniShape], Any],
    kernels: KernelOps,
    kinds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: a row of the prompt that greedy codes do not show: of a system turn, of media, of the voice, of the first token."""
    monkeypatch.setattr(bridges, "PROMPT_ROWS", 5)  # in many parts, some of which begin in the middle of media
    model, prompt = reference(SHAPE), prompt_of("What is that?", *kinds)
    asked = asked_of(model, prompt)
    for speaker, voice in (("ethan", None), ("chelsie", "Chelsie"), ("aiden", "AIDEN")):
        expected = heard_by_reference(model, prompt, speaker=speaker)
        made = bridged(asked.items(voice=voice))
        written = [unit.data["prompt"] for unit in made if "prompt" in unit.data]
        closed, *sides = made[len(written) :]
        for ops in (kernels, TorchOps()):
            rows = torch.cat([talker.embed_prompt(part, ops) for part in written])
            torch.testing.assert_close(rows, expected["inputs_embeds"], rtol=1e-5, atol=2e-5)
        assert closed.data == {"close": True}
    said = [side for unit in sides for side in unit.data["sides"]]
    assert len(said) == 8  # seven tokens behind the first, and the end
    frame = [0] * SHAPE.groups
    rows = talker.embed_frames([frame] * 9, [*said, PAD], kernels)
    of_codes = rows[-1] - expected["tts_pad_embed"][0]
    torch.testing.assert_close(rows[:-1] - of_codes, expected["trailing_text_hidden"], rtol=1e-4, atol=1e-4)


def test_a_frame_is_the_sum_of_its_codes(
    talker: Talker, reference: Callable[[OmniShape], Any], kernels: KernelOps
) -> None:
    """Fault: a code is looked up in the table of another."""
    own = reference(SHAPE).talker
    frame = [7 + 5 * place for place in range(SHAPE.groups)]
    rows = talker.embed_frames([[0] * SHAPE.groups, frame], [PAD, PAD], kernels)
    tables = [own.get_input_embeddings(), *own.code_predictor.get_input_embeddings()]
    with torch.no_grad():
        sums = [
            sum(table(torch.tensor(code)) for table, code in zip(tables, one, strict=True)) for one in ([0] * 16, frame)
        ]
    torch.testing.assert_close(rows[1] - rows[0], sums[1] - sums[0], rtol=1e-4, atol=1e-4)


def test_rows_of_frames_beside_others_are_the_same_bits(talker: Talker, kernels: KernelOps) -> None:
    """Fault: a row that is computed again in another batch is another row."""
    frames = [[(3 * row + place) % 128 for place in range(SHAPE.groups)] for row in range(9)]
    sides = [5, PAD, 9, END_OF_TEXT, 30, 31, PAD, 33, 34]
    whole = talker.embed_frames(frames, sides, kernels)
    for row in range(9):
        assert torch.equal(talker.embed_frames(frames[row : row + 1], sides[row : row + 1], kernels)[0], whole[row])
    assert len(talker.embed_frames([], [], kernels)) == 0


def test_a_frame_that_is_not_finite_is_none(talker: Talker, kernels: KernelOps) -> None:
    """Fault: code -1 is spoken."""
    hidden = torch.zeros(2, SHAPE.hidden)
    hidden[0] = float("nan")
    draws = [SampleRow(SamplingParams(temperature=0.0), 0, 0)] * 2
    broken, whole = talker.complete(hidden, [5, 6], draws, kernels)
    assert broken is None
    assert whole is not None
    assert (whole[0], len(whole)) == (6, SHAPE.groups)


def test_the_embeddings_of_the_text_stay_in_their_file(talker: Talker) -> None:
    """Fault: the talker's process holds the largest table of the thinker's."""
    table = talker._parts.text
    mapped = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "safetensors" in line]
    spans = [tuple(int(end, 16) for end in span.split("-")) for span in mapped]
    assert any(start <= table.data_ptr() < end for start, end in spans)


def test_an_unknown_voice_names_those_that_there_are(talker: Talker, kernels: KernelOps) -> None:
    """Fault: a KeyError of a name."""
    with pytest.raises(InvalidRequestError, match="aiden, chelsie, ethan"):
        talker.embed_prompt({"first": 5, "voice": "nobody"}, kernels)
