"""The voice model: deterministic, can be ended from another thread, and its pieces join without a click."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnxruntime import RunOptions

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError, RequestAbortedError
from omnistage.models.demo.cuts import cut_text
from omnistage.models.demo.kokoro import (
    SAMPLE_RATE_HZ,
    KokoroVoiceModel,
    load_voice,
    pause_ms,
    trim,
    voice_names,
)
from omnistage.models.demo.phonemes import EnglishPhonemes
from omnistage.models.demo.weights import DemoWeights
from tests.tools.wer import word_errors
from tests.tools.whisper import Whisper

HELLO = "hɛlˈO ðˈɛɹ."
LONG = "ðə skˈI əpˈɪɹz blˈu bɪkˈɔz mˈɑləkjulz ˈɪn ðˈi ˈɛɹ skˈætəɹ blˈu lˈIt fɹˈʌm ðə sˈʌn, mˈɔɹ ðˈæn ðˈA skˈætəɹ ɹˈɛd lˈIt."


@pytest.fixture(scope="module")
def model(demo_weights: DemoWeights) -> KokoroVoiceModel:
    return KokoroVoiceModel(demo_weights.speaker_dir)


def test_voices_by_name() -> None:
    """Fault: a voice missing from the package, misread, or an unknown one answered by another."""
    assert voice_names() == ["af_heart", "am_michael"]
    for name in voice_names():
        voice = load_voice(name)
        assert voice.rows.shape == (510, 256)
        assert voice.rows.dtype == np.float32
        assert not voice.rows.flags.writeable
        assert np.isfinite(voice.rows).all()
        assert np.array_equal(voice.style(1), voice.rows[0])
        assert np.array_equal(voice.style(510), voice.rows[509])
    with pytest.raises(InvalidRequestError, match="'nobody' is not accepted; accepted: af_heart, am_michael"):
        load_voice("nobody")


def test_trim_keeps_the_sound_and_fades_the_ends() -> None:
    """Fault: sound cut off, silence of chance length kept, or a step at an end that clicks."""
    tone = np.full(2400, 0.5, dtype=np.float32)
    samples = np.concatenate([np.zeros(9600, np.float32), tone, np.full(12000, 0.0005, np.float32)])
    kept = trim(samples, pause_ms=150)
    assert kept.size == 960 + 2400 + 3600
    assert (kept[0], kept[-1]) == (0.0, 0.0)
    assert np.array_equal(kept[960:3360], tone)
    assert np.array_equal(kept, trim(samples, pause_ms=150))
    assert trim(tone, pause_ms=150).size == 2400
    assert trim(np.zeros(100, np.float32), pause_ms=150).size == 0


@pytest.mark.parametrize(("end", "expected"), [(".", 300), ("!”", 300), (",", 150), ("—", 150), ("t", 40)])
def test_pauses_follow_the_mark(end: str, expected: float) -> None:
    """Fault: sentences run into each other, or a divided sentence falls apart."""
    assert pause_ms("ˈɪt" + end) == expected


def test_a_broken_folder_is_named(tmp_path: Path) -> None:
    """Fault: a traceback of the runtime in place of the file's name."""
    with pytest.raises(BrokenCheckpointError, match=r"vocab\.json"):
        KokoroVoiceModel(tmp_path)
    (tmp_path / "vocab.json").write_text('{"vocab": {"a": 1}}')
    with pytest.raises(BrokenCheckpointError, match=r"model\.onnx"):
        KokoroVoiceModel(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(BrokenCheckpointError, match=r"model\.onnx"):
        KokoroVoiceModel(tmp_path)


@pytest.mark.weights
@pytest.mark.parametrize(("phonemes", "named"), [("", "0"), ("a" * 511, "511"), ("a❤", "❤")])
def test_phonemes_that_cannot_be_said_are_refused(model: KokoroVoiceModel, phonemes: str, named: str) -> None:
    """Fault: an unknown phoneme dropped, or a style row out of range."""
    with pytest.raises(InvalidRequestError, match=named):
        model.encode(phonemes)


@pytest.mark.weights
def test_speech_is_deterministic_and_follows_voice_and_speed(model: KokoroVoiceModel) -> None:
    """Fault: state kept between utterances, or an input that is not passed on."""
    heart, michael = load_voice("af_heart"), load_voice("am_michael")
    samples = model.speak(HELLO, heart)
    other = model.speak(HELLO, michael)
    assert samples.dtype == np.float32
    assert 0.4 < samples.size / SAMPLE_RATE_HZ < 2.0
    assert 0.1 < np.abs(samples).max() <= 1.0
    assert not np.array_equal(samples, other)
    assert model.speak(HELLO, heart, speed=1.5).size < 0.85 * samples.size
    assert np.array_equal(model.speak(HELLO, heart), samples)


@pytest.mark.weights
def test_a_running_synthesis_is_ended_from_another_thread(model: KokoroVoiceModel, demo_weights: DemoWeights) -> None:
    """Fault: a cancelled request holds the stage until its sentence is spoken, or spoils the next one."""
    voice = load_voice("af_heart")
    began = time.monotonic()
    whole = model.speak(LONG, voice)
    normal_s = time.monotonic() - began
    options = RunOptions()
    timer = threading.Timer(0.05 * normal_s, lambda: setattr(options, "terminate", True))
    timer.start()
    began = time.monotonic()
    with pytest.raises(RequestAbortedError):
        model.speak(LONG, voice, 1.0, options)
    assert time.monotonic() - began < 0.5 * normal_s
    assert np.array_equal(model.speak(LONG, voice), whole)
    fresh = KokoroVoiceModel(demo_weights.speaker_dir)
    assert np.array_equal(fresh.speak(HELLO, voice), model.speak(HELLO, voice))


@pytest.mark.weights
def test_a_voice_that_rests_keeps_no_memory_of_its_longest_utterance(demo_weights: DemoWeights) -> None:
    """Fault: what a run computes with, or a plan for every length, stays for ever; a run that was ended keeps what it had."""
    program = f"""
import sys, threading
from pathlib import Path
from omnistage.core.errors import RequestAbortedError
from omnistage.models.demo.kokoro import *
from omnistage.obs.process import process_figures
model, voice, options = KokoroVoiceModel(Path(sys.argv[1])), load_voice("af_heart"), RunOptions()
model.speak({HELLO!r}, voice)
before = process_figures()["rss_nbytes"]
model.speak({LONG[:60]!r}, voice)
threading.Timer(1.0, lambda: setattr(options, "terminate", True)).start()
try:
    model.speak({LONG!r}, voice, 0.5, options)
except RequestAbortedError:
    print((process_figures()["rss_nbytes"] - before) >> 20)
"""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
    words = [sys.executable, "-c", program, str(demo_weights.speaker_dir)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert int(done.stdout) < 8  # MiB


@pytest.mark.weights
def test_joins_do_not_click(model: KokoroVoiceModel) -> None:
    """Fault: a step between two cuts, heard as a click: a sample difference, or energy at all frequencies."""
    voice = load_voice("af_heart")
    cuts = [model.speak(phonemes, voice) for phonemes in ("jˈɛs,", HELLO, "hˈW ˈɑɹ", "jˈu tədˈA?")]
    joined = np.concatenate(cuts)
    loudest_step = np.abs(np.diff(joined)).max()
    for place in np.cumsum([cut.size for cut in cuts])[:-1]:
        around = joined[place - 240 : place + 240]
        assert np.abs(np.diff(around)).max() < 0.01 * loudest_step
        spectrum = np.abs(np.fft.rfft(around * np.hanning(around.size)))
        assert spectrum[-60:].max() < 0.05  # above 9 kHz, where only a click would be


@pytest.mark.weights
def test_what_is_spoken_is_understood(model: KokoroVoiceModel, recogniser: Whisper) -> None:
    """Fault: words lost or garbled anywhere between text and samples."""
    english, voice = EnglishPhonemes(), load_voice("af_heart")
    text = "In 1945, about 50% of the 1,000,000 people paid $5 for the 2nd ticket, said Dr. Smith."
    samples = np.concatenate([model.speak(english.phonemes(cut), voice) for cut in cut_text(text, english.count)])
    errors = word_errors(text, recogniser.transcribe(samples, SAMPLE_RATE_HZ))
    assert errors.rate <= 0.05


@pytest.mark.weights
def test_a_model_of_the_right_size_with_a_wrong_byte_is_named(tmp_path: Path, demo_weights: DemoWeights) -> None:
    """Fault: a flipped byte that sizes do not show is an error of another kind: a traceback, and three tries to load it."""
    data = bytearray((demo_weights.speaker_dir / "model.onnx").read_bytes())
    data[5000] = ord("X")
    (tmp_path / "model.onnx").write_bytes(data)
    (tmp_path / "vocab.json").write_text('{"vocab": {"a": 1}}')
    with pytest.raises(BrokenCheckpointError, match=r"model\.onnx: cannot be loaded"):
        KokoroVoiceModel(tmp_path)
