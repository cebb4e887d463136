"""Kokoro-82M on onnxruntime: phonemes and a style row to 24 kHz float32 samples.

What it does: holds one session, encodes phonemes by the model's vocabulary, runs one utterance at a
time, and cuts the near silence at both ends to a fixed length (`trim`). The graph has batch 1, no
state and no randomness: equal inputs give bit-equal samples. A run is ended from another thread
by setting `terminate` of the `RunOptions` it was given; it then raises RequestAbortedError.

What it does not know: text, how phonemes were made, requests.

Shapes: tokens int64 [1, phonemes + 2], style float32 [1, 256], speed float32 [1], samples
float32 [n]. A voice is float32 [510, 256]; its row is the phoneme count - 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime import RunOptions as RunOptions  # callers make one per run and end it by `terminate`
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,  # noqa: A004 - onnxruntime's name for an operator it does not know
    RuntimeException,
)

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError, RequestAbortedError
from omnistage.obs.process import give_free_memory_back

SAMPLE_RATE_HZ = 24_000
MAX_PHONEMES = 510
STYLE_SIZE = 256
_PAD = 0  # token at both ends of an utterance
_BROKEN = (Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile, NotImplemented, RuntimeException)
_TERMINATED = "terminate flag"  # of onnxruntime's message
_SHRINK = (
    "memory.enable_memory_arena_shrinkage",
    "cpu:0",
)  # after a run its arena gives back what it took beyond the weights

_SILENCE = 0.002  # -54 dB of full scale; the model's own pauses lie 20 dB below
_LEAD_MS = 40.0
_FADE_MS = 5.0
_SENTENCE_ENDS, _SENTENCE_PAUSE_MS = frozenset(".!?…"), 300.0
_CLAUSE_ENDS, _CLAUSE_PAUSE_MS = frozenset(",;:—"), 150.0
_WORD_PAUSE_MS = 40.0


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """`rows`: float32 [510, 256], read-only."""

    name: str
    rows: NDArray[np.float32]

    def style(self, phoneme_count: int) -> NDArray[np.float32]:
        """The style row, [256], of an utterance of 1..510 phonemes."""
        row: NDArray[np.float32] = self.rows[phoneme_count - 1]
        return row


def voice_names() -> list[str]:
    """The voices that come with the family, sorted."""
    return sorted(
        entry.name.removesuffix(".f16") for entry in _voices_folder().iterdir() if entry.name.endswith(".f16")
    )


def load_voice(name: str) -> Voice:
    """Raises InvalidRequestError, naming the voices there are."""
    if name not in (names := voice_names()):
        raise InvalidRequestError.of("voice", name, ", ".join(names))
    halves = np.frombuffer((_voices_folder() / f"{name}.f16").read_bytes(), dtype="<f2")
    rows = halves.reshape(MAX_PHONEMES, STYLE_SIZE).astype(np.float32)
    rows.flags.writeable = False
    return Voice(name, rows)


class KokoroVoiceModel:
    """`folder` holds `model.onnx` and `vocab.json`. `threads`: of the session; 1 is best beside other stages.

    Raises BrokenCheckpointError when the folder cannot be loaded.
    """

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        self._vocabulary = _read_vocabulary(folder / "vocab.json")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # a plan for every length that was ever said, and no faster
        path = folder / "model.onnx"
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except _BROKEN as error:
            raise BrokenCheckpointError(f"{path}: cannot be loaded ({str(error).splitlines()[0]})") from error

    def encode(self, phonemes: str) -> NDArray[np.int64]:
        """Tokens [1, phonemes + 2]. Raises InvalidRequestError for none, too many or unknown phonemes."""
        unknown = sorted(set(phonemes) - self._vocabulary.keys())
        if unknown:
            raise InvalidRequestError.of("phonemes", "".join(unknown), "Kokoro's alphabet")
        if not 1 <= len(phonemes) <= MAX_PHONEMES:
            raise InvalidRequestError.of("phonemes", len(phonemes), f"1 to {MAX_PHONEMES} of them")
        return np.array([[_PAD, *(self._vocabulary[phoneme] for phoneme in phonemes), _PAD]], dtype=np.int64)

    def synthesize(
        self, phonemes: str, style: NDArray[np.float32], speed: float = 1.0, run_options: RunOptions | None = None
    ) -> NDArray[np.float32]:
        """The model's samples as they are, [n], with its near silence of 0.3 to 0.6 s at both ends.

        `style`: [256]. Raises RequestAbortedError when `run_options.terminate` was set while it ran or before.
        What a run computes with is given back at its end, 150 MB for 150 phonemes: a voice that rests keeps none of it,
        however long its longest utterance was.
        """
        options = run_options or RunOptions()
        options.add_run_config_entry(*_SHRINK)
        inputs = {
            "tokens": self.encode(phonemes),
            "style": style.reshape(1, STYLE_SIZE),
            "speed": np.array([speed], dtype=np.float32),
        }
        try:
            samples: NDArray[np.float32] = self._session.run(None, inputs, options)[0]
        except Fail as error:
            if _TERMINATED in str(error):
                raise RequestAbortedError("the synthesis was ended") from error
            raise
        finally:
            give_free_memory_back()  # the runtime has given it to malloc, which keeps it in a worker
        return samples

    def speak(
        self, phonemes: str, voice: Voice, speed: float = 1.0, run_options: RunOptions | None = None
    ) -> NDArray[np.float32]:
        """One cut, ready to be joined to the next: the style row for its length, and trimmed ends."""
        samples = self.synthesize(phonemes, voice.style(len(phonemes)), speed, run_options)
        return trim(samples, pause_ms=pause_ms(phonemes) / speed)


def pause_ms(phonemes: str) -> float:
    """The silence after an utterance, by how it ends: a sentence, a clause, or in the middle."""
    last = phonemes.rstrip("”)")[-1:]
    if last in _SENTENCE_ENDS:
        return _SENTENCE_PAUSE_MS
    return _CLAUSE_PAUSE_MS if last in _CLAUSE_ENDS else _WORD_PAUSE_MS


def trim(samples: NDArray[np.float32], *, pause_ms: float) -> NDArray[np.float32]:
    """Near silence at both ends cut down, so that utterances can be put one after another.

    Keeps `_LEAD_MS` before the first and `pause_ms` after the last sample above `_SILENCE`, as far as
    there is so much, and fades the first and last `_FADE_MS` from and to exact zero: no join clicks.
    A wholly silent input gives no samples. A function of its arguments alone.
    """
    heard = np.flatnonzero(np.abs(samples) > _SILENCE)
    if heard.size == 0:
        return np.zeros(0, dtype=np.float32)
    start = max(0, int(heard[0]) - _samples(_LEAD_MS))
    end = min(samples.size, int(heard[-1]) + 1 + _samples(pause_ms))
    kept = samples[start:end].copy()
    ramp = np.linspace(0.0, 1.0, min(_samples(_FADE_MS), kept.size), dtype=np.float32)
    kept[: ramp.size] *= ramp
    kept[kept.size - ramp.size :] *= ramp[::-1]
    return kept


def _samples(milliseconds: float) -> int:
    return round(milliseconds * SAMPLE_RATE_HZ / 1000)


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        vocabulary: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["vocab"]
    except (OSError, ValueError, KeyError) as error:
        raise BrokenCheckpointError(f"{path}: no vocabulary ({error})") from error
    return vocabulary


def _voices_folder() -> Path:
    return Path(__file__).parent / "voices"
