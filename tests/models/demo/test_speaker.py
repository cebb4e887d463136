"""The speaker stage, with a synthesiser that says how much it was asked for instead of speaking."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.core.errors import InvalidRequestError, RequestAbortedError
from omnistage.core.params import GenerationParams, SamplingParams
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import Interrupted
from omnistage.models.demo.cuts import PHONEME_LIMIT
from omnistage.models.demo.speaker import SpeakerModel, bridge, english, spoken_text

REQUEST = OmniRequest(request_id="r", prompt=Prompt(text="?"), wants=("audio",), stage_params={0: SamplingParams()})
ANSWER = "Well, the sky is blue because of Rayleigh scattering. In 1871, he explained it! Is 3.14 pi? 😀"


class Counting:
    """A synthesiser whose samples count the phonemes; it waits to be ended when the voice is `slow`."""

    def speak(self, phonemes: str, voice: Any, speed: float, options: Any) -> np.ndarray:
        while speed < 0.5:
            if options.terminate:
                raise RequestAbortedError("ended")
        return np.full(len(phonemes), speed, np.float32)


def text_item(text: str) -> MultimodalPayload:
    return MultimodalPayload(metadata={"text": text})


def cuts_of(deltas: list[str]) -> list[str]:
    state, cuts = None, []
    for seq, delta in enumerate(deltas):
        state, inputs = bridge(state, 0, seq, text_item(delta), last=False)
        cuts += [unit.data["text"] for unit in inputs]
    _, inputs = bridge(state, 0, len(deltas), None, last=True)
    return cuts + [unit.data["text"] for unit in inputs]


def test_only_the_first_choice_is_spoken() -> None:
    """Fault: two answers are read aloud at once, or a step without text sends an item."""
    choices = [{"index": 1, "text": "no"}, {"index": 0, "text": "yes"}]
    sent = spoken_text(MultimodalPayload(metadata={"choices": choices}), REQUEST)
    assert sent is not None
    assert sent.metadata == {"text": "yes"}
    assert spoken_text(MultimodalPayload(metadata={"choices": choices[:1]}), REQUEST) is None
    assert spoken_text(MultimodalPayload(metadata={"choices": [{"index": 0, "text": ""}]}), REQUEST) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 12), max_size=30))
def test_cuts_do_not_depend_on_how_the_text_arrives(lengths: list[int]) -> None:
    """Fault: a streamed answer sounds other than the same answer whole; a word is lost at a border."""
    deltas, rest = [], ANSWER
    for length in lengths:
        deltas.append(rest[:length])
        rest = rest[length:]
    cuts = cuts_of([*deltas, rest])
    assert cuts == cuts_of([ANSWER])
    assert "".join("".join(cuts).split()) == "".join(ANSWER.split())
    assert all(english().count(cut) <= PHONEME_LIMIT for cut in cuts)


def test_it_speaks_before_the_text_is_over() -> None:
    """Fault: first sound comes after the last token."""
    _, inputs = bridge(None, 0, 0, text_item("Well, the sky is"), last=False)
    assert [unit.data["text"] for unit in inputs] == ["Well,"]


def test_an_empty_answer_is_no_sound() -> None:
    """Fault: an answer of nothing leaves its request open or fails it."""
    assert cuts_of([]) == []
    model = SpeakerModel(Counting())  # type: ignore[arg-type]
    state = model.begin(REQUEST, GenerationParams())
    [(capture, _)] = model.run([({"text": "😀"}, state)])
    assert capture is not None
    assert capture.numpy("audio").shape == (0,)


def test_an_interruption_during_the_look_up_of_phonemes_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: it finds no synthesis to end yet, and a whole cut is spoken for nobody."""

    class Asked:
        def speak(self, phonemes: str, voice: Any, speed: float, options: Any) -> np.ndarray:
            if options.terminate:
                raise RequestAbortedError("ended")
            return np.zeros(1, np.float32)

    class Dictionary:
        def phonemes(self, text: str) -> str:
            model.interrupt()
            return text

    model = SpeakerModel(Asked())  # type: ignore[arg-type]
    monkeypatch.setattr("omnistage.models.demo.speaker.english", Dictionary)
    with pytest.raises(Interrupted):
        model.run([({"text": "Hi."}, model.begin(REQUEST, GenerationParams()))])


def test_voice_and_speed_reach_the_synthesiser() -> None:
    """Fault: an accepted parameter without an effect; an unknown voice speaks with the default one."""
    model = SpeakerModel(Counting())  # type: ignore[arg-type]
    state = model.begin(REQUEST, GenerationParams(voice="am_michael", speed=1.5))
    assert state.voice.name == "am_michael"
    [(capture, after)] = model.run([({"text": "Hello."}, state)])
    assert after is state
    assert capture is not None
    assert capture.metadata == {"sample_rate": 24000}
    assert capture.numpy("audio").tolist() == [1.5] * english().count("Hello.")
    with pytest.raises(InvalidRequestError, match="af_heart, am_michael"):
        model.begin(REQUEST, GenerationParams(voice="nobody"))


def test_a_running_cut_can_be_ended_from_another_thread() -> None:
    """Fault: a cancelled request keeps the voice busy to the end of its sentence; the next one is ended too."""
    model = SpeakerModel(Counting())  # type: ignore[arg-type]
    slow = model.begin(REQUEST, GenerationParams(speed=0.25))
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.01):
            model.interrupt()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        with pytest.raises(Interrupted):
            model.run([({"text": "Hello."}, slow)])
    finally:
        stop.set()
        interrupter.join()
    model.interrupt()
    assert model.run([({"text": "Hello."}, model.begin(REQUEST, GenerationParams()))])[0][0] is not None
