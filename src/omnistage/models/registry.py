"""Which pipelines there are: names to dotted paths of `PipelineConfig` values, and nothing else. Imports no family."""

from __future__ import annotations

REGISTRY: dict[str, str] = {
    "demo": "omnistage.models.demo.pipeline:PIPELINE",
    "qwen3_omni_moe": "omnistage.models.qwen3_omni.pipeline:PIPELINE",
    "qwen3_omni_moe_thinker": "omnistage.models.qwen3_omni.pipeline:THINKER_PIPELINE",
    "flux": "omnistage.models.flux.pipeline:PIPELINE",
    "qwen_image": "omnistage.models.qwen_image.pipeline:PIPELINE",
    "qwen_image_edit": "omnistage.models.qwen_image.pipeline:EDIT_PIPELINE",
    "qwen_image_edit_plus": "omnistage.models.qwen_image.pipeline:EDIT_PLUS_PIPELINE",
    "diffusers_any": "omnistage.models.diffusers_any.pipeline:PIPELINE",
    "causal_lm": "omnistage.models.causal_lm.pipeline:PIPELINE",
}
