"""The examples run as they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

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
def test_the_demo_asks_and_listens(tmp_path: Path) -> None:
    """Fault: `make demo` ends with a traceback, or without sound."""
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--max-tokens", "6"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("TTFP") == 3
    for number in (1, 2, 3):
        samples, rate = soundfile.read(tmp_path / "out" / f"answer{number}.wav")
        assert rate == 24000
        assert samples.size > 5000
