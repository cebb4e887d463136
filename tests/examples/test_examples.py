"""The examples run as they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.weights
def test_offline_writes_what_it_says(tmp_path: Path) -> None:
    """Fault: the first thing a newcomer tries does not run."""
    command = [sys.executable, str(EXAMPLES / "offline.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    for name in ("offline1.wav", "offline2.wav"):
        samples, rate = soundfile.read(tmp_path / "out" / name)
        assert rate == 24000
        assert samples.size > 5000
        assert abs(samples).max() > 0.05


@pytest.mark.weights
def test_the_demo_asks_listens_and_draws(tmp_path: Path) -> None:
    """Fault: `make demo` ends with a traceback, without sound, or with pictures of something else than was asked for."""
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--max-tokens", "6"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("TTFP") == 3
    for number in (1, 2, 3):
        samples, rate = soundfile.read(tmp_path / "out" / f"answer{number}.wav")
        assert rate == 24000
        assert samples.size > 5000
    drawn = [np.asarray(Image.open(tmp_path / "out" / f"picture{number}.png")) for number in (1, 2, 3, 4)]
    assert [picture.shape for picture in drawn] == [(64, 64, 3)] * 4
    heart, butterfly, umbrella = (colour_of(drawn[at]) for at in (0, 2, 3))
    assert heart[0] > 1.5 * max(heart[1:]) and umbrella[0] > 1.5 * max(umbrella[1:])
    assert min(butterfly[0], butterfly[2]) > 1.2 * butterfly[1]


def colour_of(picture: np.ndarray) -> np.ndarray:
    """The mean of what is not white."""
    return np.asarray(picture[picture.min(-1) < 200].mean(0))
