"""The speaker stage: text as the thinker writes it, cut into phrases, spoken one cut at a time.

    thinker's capture --select--> text deltas --bridge--> cuts --SpeakerModel.run--> float32 samples at 24 kHz

Where a cut lies depends on the whole text alone (models.demo.cuts), so the sound does not depend on how the text arrived.
Knows the words of the engine's protocols (select, bridge, loader); synthesis and phonemes are in their own modules.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omnistage.config.stage import GenerationStageConfig
from omnistage.core.errors import RequestAbortedError
from omnistage.core.params import GenerationParams
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import Interrupted, StageInput
from omnistage.models.demo.cuts import CutState, finish, push
from omnistage.models.demo.kokoro import SAMPLE_RATE_HZ, KokoroVoiceModel, RunOptions, Voice, load_voice
from omnistage.models.demo.phonemes import EnglishPhonemes

DEFAULT_VOICE = "af_heart"
_NO_SOUND = np.zeros(0, np.float32)


@functools.cache
def english() -> EnglishPhonemes:
    """The worker's one phonemiser: the bridge counts with it, the model speaks with it."""
    return EnglishPhonemes()


def spoken_text(capture: MultimodalPayload, request: OmniRequest) -> MultimodalPayload | None:
    """What travels to the speaker: the new text of the first choice, or nothing."""
    text = "".join(choice["text"] for choice in capture.metadata.get("choices", ()) if choice["index"] == 0)
    return MultimodalPayload(metadata={"text": text}) if text else None


def bridge(
    state: CutState | None, source: int, seq: int, payload: MultimodalPayload | None, last: bool
) -> tuple[CutState, list[StageInput]]:
    """Text in, cuts out; the state is the text without a decision yet."""
    state, cuts = push(state or CutState(), payload.metadata["text"] if payload else "", english().count)
    if last:
        cuts += finish(state, english().count)
        state = CutState()
    return state, [StageInput({"text": cut}, len(cut)) for cut in cuts]


@dataclass(frozen=True, slots=True)
class Speech:
    """A request's state: nothing of one cut is carried to the next."""

    voice: Voice
    speed: float


class SpeakerModel:
    """One utterance at a time: the graph has no batch, so a batch is spoken in its order."""

    def __init__(self, synthesiser: KokoroVoiceModel) -> None:
        self._synthesiser = synthesiser
        self._voices = functools.cache(load_voice)
        self._lock = threading.Lock()
        self._running: RunOptions | None = None

    def begin(self, request: OmniRequest, params: GenerationParams) -> Speech:
        """Raises InvalidRequestError for a voice there is not."""
        return Speech(self._voices(params.voice or DEFAULT_VOICE), params.speed)

    def batch_key(self, chunk: Mapping[str, Any], state: Speech) -> object:
        return None

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return 1

    def run(self, batch: Sequence[tuple[Mapping[str, Any], Speech]]) -> list[tuple[MultimodalPayload | None, Speech]]:
        """Raises Interrupted when `interrupt` came while it ran."""
        return [(self._speak(chunk["text"], state), state) for chunk, state in batch]

    def interrupt(self) -> None:
        with self._lock:
            if self._running is not None:
                self._running.terminate = True

    def _speak(self, text: str, state: Speech) -> MultimodalPayload:
        """A cut without anything to say (an emoji, a dash) is no sound."""
        options = RunOptions()  # an interruption while phonemes are looked up ends the synthesis before it begins
        with self._lock:
            self._running = options
        try:
            phonemes = english().phonemes(text)
            samples = self._synthesiser.speak(phonemes, state.voice, state.speed, options) if phonemes else _NO_SOUND
        except RequestAbortedError:
            raise Interrupted from None
        finally:
            with self._lock:
                self._running = None
        return MultimodalPayload({"audio": Tensor.of(samples)}, {"sample_rate": SAMPLE_RATE_HZ})


def load(config: GenerationStageConfig) -> SpeakerModel:
    """Opens the session and the dictionary, so that the first request does not wait for them."""
    english().count("Ready.")
    return SpeakerModel(KokoroVoiceModel(Path(config.model_path), threads=config.threads))
