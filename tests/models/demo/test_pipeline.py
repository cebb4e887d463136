"""The built-in pipeline, as configuration."""

from __future__ import annotations

import subprocess
import sys

from omnistage.models.demo.kokoro import voice_names
from omnistage.models.demo.pipeline import PIPELINE, SPEAKER, THINKER


def test_the_speaker_hangs_on_the_thinker() -> None:
    """Fault: the graph is another than the one that is described."""
    assert [(edge.source, edge.target, edge.streaming) for edge in PIPELINE.edges] == [(THINKER, SPEAKER, True)]
    assert [stage.final_output_type for stage in PIPELINE.stages] == ["text", "audio"]


def test_the_voices_are_those_that_ship() -> None:
    """Fault: a voice is advertised that nobody can speak with."""
    assert list(PIPELINE.voices) == voice_names()


def test_reading_the_pipeline_costs_no_model_library() -> None:
    """Fault: the server imports torch, onnxruntime or the dictionary because it looked at a pipeline."""
    code = (
        "import sys; from omnistage.models.demo.pipeline import PIPELINE;"
        "print(sorted({'torch', 'onnxruntime', 'gruut', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
