"""What the thinker's stage sends, and what the talker's stage is given of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omnistage.core.errors import StageFailedError
from omnistage.core.params import GenerationParams, SamplingParams
from omnistage.core.payload import MultimodalPayload, Tensor, merge
from omnistage.core.request import OmniRequest, Prompt
from omnistage.models.qwen3_omni import bridges
from omnistage.models.qwen3_omni.bridges import END_OF_TEXT, MEDIA, for_code2wav, for_talker, talker_bridge
from omnistage.models.qwen3_omni.handoff import ASSISTANT_ROWS, TalkerPrompt

REQUEST = OmniRequest(
    request_id="r",
    prompt=Prompt(text="?"),
    wants=("audio",),
    stage_params={0: SamplingParams(), 1: SamplingParams(), 2: GenerationParams(voice="Chelsie")},
)


def prompt(media_rows: int = 3, *, shift: int = 0) -> TalkerPrompt:
    length = 8 + ASSISTANT_ROWS
    positions = np.tile(np.arange(length, dtype=np.int32), (3, 1))
    positions[:, 5:] -= shift
    rows = np.arange(2, 2 + media_rows, dtype=np.int32)
    return TalkerPrompt(np.arange(30, 38, dtype=np.int32), rows, positions, length - shift)


def first_capture(said: TalkerPrompt, **metadata: Any) -> MultimodalPayload:
    handoff = said.to_handoff()
    arrays = {name: Tensor.of(value) for name, value in handoff.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in handoff.items() if not isinstance(value, np.ndarray)}
    return MultimodalPayload(arrays, {"prompt": plain, **metadata})


def choice(*tokens: int, index: int = 0, reason: str | None = None, stop: int | str | None = None) -> dict[str, Any]:
    return {"index": index, "text": "", "token_ids": list(tokens), "finish_reason": reason, "stop_reason": stop}


def rows(*values: float) -> Tensor:
    return Tensor.of(np.array(values, np.float32)[:, None])


def given(*captures: MultimodalPayload) -> list[dict[str, Any]]:
    """What the talker's stage is given of some captures of the thinker's."""
    state, made = None, []
    for seq, capture in enumerate(captures):
        item = for_talker(capture, REQUEST)
        if item is not None:
            state, inputs = talker_bridge(state, 0, seq, item, False)
            made += [dict(unit.data) for unit in inputs]
    state, inputs = talker_bridge(state, 0, len(captures), None, True)
    return made + [dict(unit.data) for unit in inputs]


def test_text_becomes_a_prompt_and_sides() -> None:
    """Fault: the first token is said twice, the end is not told, or told before its time."""
    found = given(
        first_capture(prompt(0), choices=[choice(5)]),
        MultimodalPayload(metadata={"choices": [choice(6)]}),
        MultimodalPayload(metadata={"choices": [choice(7, 9, reason="stop", stop=9)]}),
    )
    assert found[0]["prompt"]["user_ids"].tolist() == list(range(30, 38))
    assert found[1:] == [
        {"prompt": {"first": 5, "voice": "Chelsie"}},
        {"close": True},
        {"sides": [6]},
        {"sides": [7, END_OF_TEXT]},
    ]


@pytest.mark.parametrize(
    ("last", "sides"),
    [
        (choice(9, reason="stop", stop=9), [END_OF_TEXT]),
        (choice(9, reason="length"), [9, END_OF_TEXT]),
        (choice(9, reason="stop", stop="over"), [9, END_OF_TEXT]),
    ],
)
def test_only_a_token_that_ends_the_answer_is_not_spoken(last: dict[str, Any], sides: list[int]) -> None:
    """Fault: the end of a turn is read out; the last word of an answer that was cut is lost."""
    found = given(first_capture(prompt(0), choices=[choice(5)]), MultimodalPayload(metadata={"choices": [last]}))
    assert found[-1] == {"sides": sides}


def test_one_item_may_bring_all() -> None:
    """Fault: what an edge that does not stream gathers is read as one step."""
    parts = [
        for_talker(first_capture(prompt(2)), REQUEST),
        for_talker(MultimodalPayload({"hidden_3": rows(1, 2)}, {"choices": [choice(5)]}), REQUEST),
        for_talker(MultimodalPayload(metadata={"choices": [choice(6, 7, reason="length")]}), REQUEST),
    ]
    whole = merge([part for part in parts if part is not None])
    _, inputs = talker_bridge(None, 0, 0, whole, True)
    assert [list(unit.data) for unit in inputs] == [["prompt"], ["prompt"], ["close"], ["sides"]]
    assert inputs[3].data["sides"] == [6, 7, END_OF_TEXT]
    assert [part.numpy().tolist() for part in inputs[0].data["prompt"]["media"]] == [[[1.0], [2.0]]]


def test_the_prompt_waits_for_its_rows_of_media() -> None:
    """Fault: a prompt with rows that have not come; rows in another order; text before its prompt."""
    found = given(
        first_capture(prompt(3)),
        MultimodalPayload({"hidden_3": rows(1)}),
        MultimodalPayload({"hidden_3": rows()}),
        MultimodalPayload({"hidden_3": rows(2, 3)}, {"choices": [choice(5)]}),
        MultimodalPayload(metadata={"choices": [choice(6, reason="length")]}),
    )
    assert [list(unit) for unit in found] == [["prompt"], ["prompt"], ["close"], ["sides"]]
    assert [part.numpy().ravel().tolist() for part in found[0]["prompt"]["media"]] == [[1.0], [2.0, 3.0]]


def test_rows_are_copied() -> None:
    """Fault: rows that change when the sender's memory is given away."""
    buffer = bytearray(np.ones((2, 1), np.float32).tobytes())
    lent = Tensor(rows(1, 1).spec, memoryview(buffer))
    item = MultimodalPayload({MEDIA: lent}, {}, lent=True)
    state, _ = talker_bridge(None, 0, 0, item, False)
    buffer[:] = b"\xff" * len(buffer)
    assert MultimodalPayload({MEDIA: state.media[0]}).numpy(MEDIA).tolist() == [[1.0], [1.0]]


def test_positions_go_along_where_they_are_others_than_places() -> None:
    """Fault: a prompt with pictures is turned as if it had none."""
    plain = given(first_capture(prompt(0), choices=[choice(5)]))[0]
    assert set(plain) == {"prompt"}
    moved = given(first_capture(prompt(0, shift=3), choices=[choice(5)]))[:2]
    positions = np.concatenate([unit["positions"] for unit in moved], axis=1)
    assert positions.tolist() == prompt(0, shift=3).positions.tolist()
    assert [unit["next_position"] for unit in moved] == [8 + ASSISTANT_ROWS - 3] * 2


def test_a_long_prompt_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: nothing else is done while the rows of a long prompt are made; a row of media in the wrong part, or of another."""
    monkeypatch.setattr(bridges, "PROMPT_ROWS", 3)
    found = given(
        first_capture(prompt(4)),
        MultimodalPayload({"hidden_3": rows(1, 2)}, {"choices": [choice(5)]}),
        MultimodalPayload({"hidden_3": rows(3, 4)}),
    )
    parts = [unit["prompt"] for unit in found[:3]]
    assert [part["user_ids"].tolist() for part in parts] == [[30, 31, 32], [33, 34, 35], [36, 37]]
    assert [part["media_rows"].tolist() for part in parts] == [[2], [0, 1, 2], []]
    told = [[value for tensor in part["media"] for value in tensor.numpy().ravel().tolist()] for part in parts]
    assert told == [[1.0], [2.0, 3.0, 4.0], []]
    assert [list(unit) for unit in found[3:]] == [["prompt"], ["close"]]


def test_an_end_that_is_told_before_the_rows_of_media() -> None:
    """Fault: it is forgotten while the prompt waits."""
    found = given(
        first_capture(prompt(1), choices=[choice(5, reason="length")]), MultimodalPayload({"hidden_3": rows(1)})
    )
    assert found[-2:] == [{"close": True}, {"sides": [END_OF_TEXT]}]


def test_an_answer_of_nothing_is_given_nothing() -> None:
    """Fault: an end without text opens a mouth."""
    assert given(first_capture(prompt(0), choices=[choice(9, reason="stop", stop=9)])) == []
    assert given(first_capture(prompt(0))) == []


def test_rows_that_never_came_are_an_error() -> None:
    """Fault: an answer without sound, for no reason that anybody can see."""
    with pytest.raises(StageFailedError, match="rows of media"):
        given(first_capture(prompt(3), choices=[choice(5, reason="length")]))


def test_what_is_not_the_talkers() -> None:
    """Fault: another choice is spoken, too; steps that say nothing are sent."""
    other = MultimodalPayload(metadata={"choices": [choice(5, index=1)], "positions": [0, 3]})
    assert for_talker(other, REQUEST) is None
    both = MultimodalPayload(metadata={"choices": [choice(5, index=1), choice(6)]})
    assert for_talker(both, REQUEST) == MultimodalPayload(metadata={"token_ids": [6]})


def test_only_frames_travel_on() -> None:
    """Fault: code2wav is sent what a caller might want to know of tokens."""
    frames = Tensor.of(np.zeros((1, 4), np.int32))
    capture = MultimodalPayload({"frames": frames, "hidden_2": rows(1)}, {"choices": [choice(5)]})
    assert for_code2wav(capture, REQUEST) == MultimodalPayload({"frames": frames})
    assert for_code2wav(MultimodalPayload(metadata={"choices": [choice(5)]}), REQUEST) is None
