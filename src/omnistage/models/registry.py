"""Which pipelines there are: names to dotted paths of `PipelineConfig` values, and nothing else. Imports no family."""

from __future__ import annotations

REGISTRY: dict[str, str] = {
    "demo": "omnistage.models.demo.pipeline:PIPELINE",
    "causal_lm": "omnistage.models.causal_lm.pipeline:PIPELINE",
}
