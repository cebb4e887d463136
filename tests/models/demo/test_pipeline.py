"""The built-in pipeline, as configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from omnistage.config.resolve import resolve_omni_config
from omnistage.engine.compose import served_model
from omnistage.models.demo.kokoro import voice_names
from omnistage.models.demo.pipeline import PAINTER, PIPELINE, SPEAKER, THINKER
from omnistage.models.registry import REGISTRY
from omnistage.orchestrator.plan import OrchestratorConfig


def test_the_speaker_hangs_on_the_thinker() -> None:
    """Fault: the graph is another than the one that is described."""
    assert [(edge.source, edge.target, edge.streaming) for edge in PIPELINE.edges] == [(THINKER, SPEAKER, True)]
    assert [stage.final_output_type for stage in PIPELINE.stages] == ["text", "audio", "image"]


def test_a_picture_needs_no_other_stage(tmp_path: Path) -> None:
    """Fault: a picture waits for the thinker, or text and speech for the painter; whoever asks for neither gets a picture too."""
    for name in ("thinker", "speaker"):
        (tmp_path / name).mkdir()
    (tmp_path / "thinker" / "tokenizer.json").touch()
    resolution = resolve_omni_config(str(tmp_path), {}, registry=REGISTRY, pipeline="demo")
    machine = OrchestratorConfig.of(resolution.stages, resolution.edges)
    assert machine.active(("image",)).stages == (PAINTER,)
    assert machine.active(("text", "audio")).stages == (THINKER, SPEAKER)
    assert machine.active(("text", "image")).entries == (THINKER, PAINTER)
    assert served_model(resolution).unasked == ("text", "audio")
    assert len({stage.process for stage in resolution.stages}) == 3


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
