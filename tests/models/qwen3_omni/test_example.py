"""The example of this model runs as it is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import soundfile

from tests.models.qwen3_omni.cases import IMAGE

EXAMPLE = Path(__file__).parents[3] / "examples" / "qwen3_omni.py"


def test_it_is_shown_a_picture_and_answers_aloud(tiny: Path, tmp_path: Path) -> None:
    """Fault: the command that the model's page leads to does not run."""
    IMAGE.save(tmp_path / "picture.png")
    command = [sys.executable, str(EXAMPLE), str(tiny), "What is it?", "picture.png", "--max-tokens", "6"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "s of speech to out/qwen3_omni.wav" in done.stdout
    samples, rate = soundfile.read(tmp_path / "out" / "qwen3_omni.wav")
    assert rate == 24_000
    assert abs(samples).max() > 0.05
